"""A model to train on several ranks, and on one rank with the joined batch."""

import torch
import torch.distributed as dist
from torch import nn

STEPS = 30
BATCH = 6  # per rank and step
TOLERANCE = 1e-4


class Model(nn.Module):
    """Has a convolution, an embedding, a branch that some ranks do not take, and a parameter that
    no rank uses."""

    def __init__(self, sparse=False, unused=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.embedding = nn.Embedding(10, 8, sparse=sparse)
        self.hidden = nn.Linear(4 * 6 * 6 + 8, 32)
        self.out = nn.Linear(32, 3)
        if unused:
            self.branch = nn.Linear(32, 32)
            self.never = nn.Parameter(torch.ones(5))

    def forward(self, images, words, take_branch=False):
        features = torch.relu(self.conv(images)).flatten(1)
        hidden = torch.tanh(self.hidden(torch.cat([features, self.embedding(words)], 1)))
        if take_branch:
            hidden = torch.tanh(self.branch(hidden))
        return self.out(hidden)


def model(**what):
    torch.manual_seed(7)
    return Model(**what)


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    images = torch.randn(BATCH, 1, 8, 8, generator=generator)
    words = torch.randint(0, 10, (BATCH,), generator=generator)
    targets = torch.randint(0, 3, (BATCH,), generator=generator)
    return images, words, targets


def loss_of(replica, data, **how):
    images, words, targets = data
    return nn.functional.cross_entropy(replica(images, words, **how), targets)


def sgd(module, momentum=0.9):
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=momentum)


def one_rank(size, steps=STEPS, momentum=0.9, branch_of=None, **what):
    """Trains on one rank with the batches of all ranks: the gradient is the mean over ranks of the
    means over their batches."""
    plain = model(**what)
    optimizer = sgd(plain, momentum)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            how = {"take_branch": branch_of(rank, step)} if branch_of else {}
            (loss_of(plain, batch(step, rank), **how) / size).backward()
        optimizer.step()
    return plain


def compare(trained, plain, what, tolerance=TOLERANCE):
    rank = dist.get_rank()
    for (name, got), expected in zip(trained.named_parameters(), plain.parameters()):
        difference = (got - expected).abs().max().item()
        if not difference <= tolerance:
            raise AssertionError(f"rank {rank}: {what}: {name} differs by {difference} from one rank")
        everyone = [torch.empty_like(got) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, got.detach())
        for other, values in enumerate(everyone):
            if not torch.equal(values, got):
                raise AssertionError(f"rank {rank}: {what}: {name} is not the same on rank {other}")


def moved(plain):
    """Checks that training changed the model."""
    start = model()
    if all(torch.equal(a, b) for a, b in zip(plain.parameters(), start.parameters())):
        raise AssertionError("the reference did not train")


