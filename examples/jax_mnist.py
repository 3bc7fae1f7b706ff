"""Trains a LeNet-style network on MNIST digits with JAX and optax, on any number of ranks:

    tutti-run -np 2 python3 examples/jax_mnist.py

The whole step is one jitted function. A callback inside it averages the gradients. The global batch
is the same for any number of ranks.
"""

import argparse
import functools
import gzip
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy
import optax

import tutti
import tutti.jax

DATA = pathlib.Path(__file__).resolve().parent / "data" / "mnist"


def read(name, header):
    with gzip.open(DATA / name) as file:
        return numpy.frombuffer(file.read()[header:], "u1")


def digits(part):
    images = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1).astype("f4")
    return (images / 255 - 0.1307) / 0.3081, read(f"{part}-labels-idx1-ubyte.gz", 8).astype("i4")


def lenet(key):
    shapes = {"conv1": (5, 5, 1, 12), "conv2": (5, 5, 12, 32)}
    shapes |= {"dense1": (800, 120), "dense2": (120, 84), "dense3": (84, 10)}
    parameters = {}
    for name, shape in shapes.items():
        key, own = jax.random.split(key)
        bound = float(numpy.prod(shape[:-1])) ** -0.5
        parameters[name] = {
            "weight": jax.random.uniform(own, shape, minval=-bound, maxval=bound),
            "bias": jnp.zeros(shape[-1]),
        }
    return parameters


def pooled(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def scores(parameters, x):
    for name, padding in (("conv1", "SAME"), ("conv2", "VALID")):
        of = parameters[name]
        x = jax.lax.conv_general_dilated(
            x, of["weight"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = pooled(jax.nn.relu(x + of["bias"]))
    x = x.reshape(len(x), -1)
    for name in ("dense1", "dense2", "dense3"):
        x = x @ parameters[name]["weight"] + parameters[name]["bias"]
        x = jax.nn.relu(x) if name != "dense3" else x
    return x


def loss(parameters, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores(parameters, images), labels).mean()


@functools.partial(jax.jit, static_argnums=0)
def step(optimizer, parameters, state, images, labels):
    gradients = jax.grad(loss)(parameters, images, labels)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state


@jax.jit
def right(parameters, images, labels):
    return (scores(parameters, images).argmax(1) == labels).sum()


def accuracy(comm, parameters, images, labels):
    """Returns the right answers in percent. Each rank tests its part."""
    mine = right(parameters, images[comm.rank :: comm.size], labels[comm.rank :: comm.size])
    return 100 * int(tutti.jax.allreduce(comm, "right", mine, "sum")) / len(labels)


def replicas_are_equal(comm, parameters):
    of_rank_0 = tutti.jax.broadcast(comm, "of rank 0", parameters)
    pairs = zip(jax.tree_util.tree_leaves(of_rank_0), jax.tree_util.tree_leaves(parameters))
    differs = any(not numpy.array_equal(one, other) for one, other in pairs)
    return int(tutti.jax.allreduce(comm, "differs", int(differs), "max")) == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--steps", type=int, help="stop after so many, without a test")
    parser.add_argument("--save", metavar="FILE", help="rank 0 writes the trained parameters (.npz)")
    settings = parser.parse_args()

    with tutti.Communicator.create() as comm:
        images, labels = digits("train")
        test = digits("t10k")
        steps = len(images) // settings.batch
        parameters = tutti.jax.broadcast(comm, "parameters", lenet(jax.random.PRNGKey(comm.rank)))
        left = settings.steps or steps * settings.epochs
        decay = optax.linear_schedule(settings.learning_rate, 0.0, steps * settings.epochs)
        optimizer = optax.chain(
            tutti.jax.average_gradients(comm), optax.sgd(decay, momentum=0.9)
        )
        state = optimizer.init(parameters)
        for epoch in range(settings.epochs):
            order = numpy.random.default_rng(epoch).permutation(len(images))
            for at in range(min(steps, left)):
                batch = order[at * settings.batch : (at + 1) * settings.batch][comm.rank :: comm.size]
                parameters, state = step(optimizer, parameters, state, images[batch], labels[batch])
            left -= min(steps, left)
            if settings.steps:
                continue
            percent = accuracy(comm, parameters, *test)
            if comm.rank == 0:
                print(f"epoch {epoch + 1}: {percent:.2f} % of the test digits are right", flush=True)
        equal = replicas_are_equal(comm, parameters)
        if comm.rank == 0:
            print("replicas are equal to the bit" if equal else "replicas DIFFER", flush=True)
            if settings.save:
                leaves, _ = jax.tree_util.tree_flatten_with_path(parameters)
                named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
                numpy.savez(settings.save, **named)
    return 0 if equal and (settings.steps or percent >= 97) else 1


if __name__ == "__main__":
    sys.exit(main())
