"""Trains a LeNet-style network on MNIST digits with PyTorch, on any number of ranks:

    tutti-run -np 2 python3 examples/torch_mnist.py
    torchrun --nproc_per_node 2 examples/torch_mnist.py

It differs from a script for gloo by one import and one word. The global batch is the same for any
number of ranks.
"""

import argparse
import gzip
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import tutti.torch  # registers the backend

DATA = pathlib.Path(__file__).resolve().parent / "data" / "mnist"


def read(name, header):
    with gzip.open(DATA / name) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def digits(part):
    images = read(f"{part}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float()
    return (images / 255 - 0.1307) / 0.3081, read(f"{part}-labels-idx1-ubyte.gz", 8).long()


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def wrap(model, kind):
    if kind == "own":  # Tutti's wrapper: the ranks reduce the gradients in place
        return tutti.torch.DistributedDataParallel(model)
    ddp = nn.parallel.DistributedDataParallel(model)
    if kind == "hook":  # torch's wrapper, with the parameters' names for the gradients
        tutti.torch.register_ddp_hook(ddp)
    return ddp


def accuracy(model, images, labels):
    """Returns the right answers in percent. Each rank tests its part."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        right = (model(images[rank::size]).argmax(1) == labels[rank::size]).sum()
    dist.all_reduce(right)
    return 100 * right.item() / len(labels)


def replicas_are_equal(model):
    for parameter in model.parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, 0)
        differs = torch.tensor([0 if torch.equal(of_rank_0, parameter) else 1])
        dist.all_reduce(differs, dist.ReduceOp.MAX)
        if differs.item():
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--wrapper", choices=("ddp", "hook", "own"), default="ddp")
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--steps", type=int, help="stop after so many, without a test")
    parser.add_argument("--save", metavar="FILE", help="rank 0 writes the trained parameters there")
    settings = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(settings.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = wrap(lenet(), settings.wrapper)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=0.9)
    images, labels = digits("train")
    test = digits("t10k")
    steps = len(images) // settings.batch
    left = settings.steps or steps * settings.epochs
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 - step / (steps * settings.epochs)
    )
    for epoch in range(settings.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for step in range(min(steps, left)):
            batch = order[step * settings.batch : (step + 1) * settings.batch][rank::size]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            decay.step()
        left -= min(steps, left)
        if settings.steps:
            continue
        percent = accuracy(model, *test)
        if rank == 0:
            print(f"epoch {epoch + 1}: {percent:.2f} % of the test digits are right", flush=True)
    equal = replicas_are_equal(model)
    if rank == 0:
        print("replicas are equal to the bit" if equal else "replicas DIFFER", flush=True)
    if settings.save and rank == 0:
        torch.save(getattr(model, "module", model).state_dict(), settings.save)
    dist.destroy_process_group()
    return 0 if equal and (settings.steps or percent >= 97) else 1


if __name__ == "__main__":
    sys.exit(main())
