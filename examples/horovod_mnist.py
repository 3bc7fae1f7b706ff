"""Trains a LeNet-style network on MNIST digits with a script in Horovod's usual form:

    python3 -m tutti.horovodrun -np 2 python3 examples/horovod_mnist.py
    tutti-run -np 2 python3 examples/horovod_mnist.py

Only the line that imports hvd was changed. The global batch is the same for any number of ranks.
"""

import argparse
import gzip
import itertools
import pathlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import tutti.torch as hvd  # was: import horovod.torch as hvd

DATA = pathlib.Path(__file__).resolve().parent / "data" / "mnist"


def read(name, header):
    with gzip.open(DATA / name) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def digits(part):
    images = read(f"{part}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float()
    return TensorDataset(
        (images / 255 - 0.1307) / 0.3081, read(f"{part}-labels-idx1-ubyte.gz", 8).long()
    )


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def test(model, loader):
    """Returns the right answers in percent, over the parts of all ranks."""
    model.eval()
    right, count = torch.tensor(0.0), torch.tensor(0.0)
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum()
            count += len(labels)
    model.train()
    right = hvd.allreduce(right, op=hvd.Sum, name="right")
    return 100 * float(right / hvd.allreduce(count, op=hvd.Sum, name="count"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--use-adasum", action="store_true")
    parser.add_argument("--steps", type=int, help="stop after so many, without a test")
    parser.add_argument("--save", metavar="FILE", help="rank 0 writes the trained parameters there")
    settings = parser.parse_args()

    hvd.init()
    torch.manual_seed(1 + hvd.rank())
    torch.set_num_threads(1)
    training, testing = digits("train"), digits("t10k")
    sampler = DistributedSampler(training, num_replicas=hvd.size(), rank=hvd.rank())
    batches = DataLoader(
        training, batch_size=max(settings.batch_size // hvd.size(), 1), sampler=sampler
    )
    test_sampler = DistributedSampler(testing, num_replicas=hvd.size(), rank=hvd.rank())
    test_batches = DataLoader(testing, batch_size=500, sampler=test_sampler)

    model = lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if settings.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if settings.use_adasum else hvd.Average,
    )
    steps = settings.epochs * len(batches)
    left = settings.steps or steps
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for epoch in range(settings.epochs):
        sampler.set_epoch(epoch)
        for images, labels in itertools.islice(batches, left):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            decay.step()
            left -= 1
        if settings.steps:
            continue
        percent = test(model, test_batches)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: {percent:.2f} % of the test digits are right", flush=True)

    replicas = hvd.allgather_object([p.detach().numpy().tobytes() for p in model.parameters()])
    equal = all(replica == replicas[0] for replica in replicas)
    if hvd.rank() == 0:
        print("replicas are equal to the bit" if equal else "replicas DIFFER", flush=True)
    if settings.save and hvd.rank() == 0:
        torch.save(model.state_dict(), settings.save)
    hvd.shutdown()
    return 0 if equal and (settings.steps or percent >= 97) else 1


if __name__ == "__main__":
    sys.exit(main())
