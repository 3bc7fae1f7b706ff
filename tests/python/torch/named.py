"""Tutti's own interface for torch: the hook with names, and a DistributedDataParallel whose
gradients are in an arena."""

import torch
import torch.distributed as dist

import training
import tutti.torch
from ddp import train
from ranks import equal, raises, run


def hook(rank, size):
    expected = training.one_rank(size)
    for how in ({}, {"bucket_cap_mb": 0.002}, {"gradient_as_bucket_view": True}):
        ddp = torch.nn.parallel.DistributedDataParallel(training.model(), **how)
        tutti.torch.register_ddp_hook(ddp)
        training.compare(train(ddp, rank), expected, f"ddp_hook {how}")
    for wire in ("f16", "bf16"):
        ddp = torch.nn.parallel.DistributedDataParallel(training.model())
        tutti.torch.register_ddp_hook(ddp, wire=wire)
        training.compare(train(ddp, rank), expected, f"ddp_hook {wire}", tolerance=0.05)


def hook_with_a_sparse_embedding(rank, size):
    expected = training.one_rank(size, momentum=0.0, sparse=True)
    ddp = torch.nn.parallel.DistributedDataParallel(training.model(sparse=True))
    tutti.torch.register_ddp_hook(ddp)
    training.compare(train(ddp, rank, momentum=0.0), expected, "ddp_hook, sparse")


def own(rank, size):
    expected = training.one_rank(size)
    training.compare(
        train(tutti.torch.DistributedDataParallel(training.model()), rank), expected, "arena"
    )
    kept = tutti.torch.DistributedDataParallel(training.model())
    optimizer = training.sgd(kept)
    addresses = set()
    for step in range(training.STEPS):
        optimizer.zero_grad(set_to_none=False)
        training.loss_of(kept, training.batch(step, rank)).backward()
        addresses.add(kept.module.out.weight.grad.data_ptr())
        optimizer.step()
    training.compare(kept, expected, "arena, gradients kept")
    equal(len(addresses), 1, "places of a gradient")
    wide = tutti.torch.DistributedDataParallel(training.model(), wire="bf16")
    training.compare(train(wide, rank), expected, "arena, bf16", tolerance=0.05)


def own_starts_from_rank_0(rank, size):
    torch.manual_seed(rank)
    wrapped = tutti.torch.DistributedDataParallel(torch.nn.BatchNorm1d(5))
    wrapped(torch.randn(8, 5))
    wrapped(torch.zeros(8, 5))
    for tensor in (wrapped.module.weight.detach(), wrapped.module.running_mean):
        everyone = [torch.empty(5) for _ in range(size)]
        dist.all_gather(everyone, tensor)
        for other in everyone:
            equal(other, everyone[0], "parameters and buffers of rank 0")


def own_with_unused_parameters(rank, size):
    def branch_of(rank, step):
        return (rank + step) % 2 == 0

    expected = training.one_rank(size, branch_of=branch_of, unused=True)
    wrapped = tutti.torch.DistributedDataParallel(
        training.model(unused=True), find_unused_parameters=True
    )
    training.compare(train(wrapped, rank, branch_of=branch_of), expected, "arena, unused")
    equal(wrapped.module.never.grad, None, "the gradient of what nobody used")
    strict = tutti.torch.DistributedDataParallel(training.model(unused=True))
    loss = training.loss_of(strict, training.batch(0, rank))
    raises(RuntimeError, 'gave no gradient to parameter "never"', loss.backward)
    again = "make a new DistributedDataParallel"
    raises(RuntimeError, again, lambda: training.loss_of(strict, training.batch(0, rank)))


def own_after_a_backward_that_raised(rank, size):
    """After a failed backward, the next step would average nothing or half of the old gradients, so
    it is refused."""
    wrapped = tutti.torch.DistributedDataParallel(torch.nn.Sequential(Raises(), torch.nn.Linear(3, 2)))
    loss = wrapped(torch.ones(1, 3, requires_grad=True)).sum()
    raises(ArithmeticError, "in the middle", loss.backward)
    again = "make a new DistributedDataParallel"
    raises(RuntimeError, again, lambda: wrapped(torch.ones(1, 3)))
    dist.barrier()


class Raises(torch.nn.Module):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, tensor):
            return tensor.clone()

        @staticmethod
        def backward(context, gradient):
            raise ArithmeticError("in the middle")

    def forward(self, tensor):
        return self.Function.apply(tensor)


def own_sends_buffers_that_were_replaced(rank, size):
    class Counts(torch.nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, tensor):
            self.seen = self.seen + 1 + rank
            return super().forward(tensor)

    wrapped = tutti.torch.DistributedDataParallel(Counts())
    for _ in range(3):
        wrapped(torch.ones(1, 3)).sum().backward()
    equal(wrapped.module.seen, torch.tensor([3.0 + rank]), "a buffer that the module replaced")


def own_accumulates(rank, size):
    expected = training.model()
    optimizer = training.sgd(expected)
    for step in range(5):
        optimizer.zero_grad()
        for part in (step, step + 50):
            for other in range(size):
                (training.loss_of(expected, training.batch(part, other)) / size).backward()
        optimizer.step()
    for to_none in (True, False):
        wrapped = tutti.torch.DistributedDataParallel(training.model())
        optimizer = training.sgd(wrapped)
        for step in range(5):
            optimizer.zero_grad(set_to_none=to_none)
            with wrapped.no_sync():
                training.loss_of(wrapped, training.batch(step, rank)).backward()
            training.loss_of(wrapped, training.batch(step + 50, rank)).backward()
            optimizer.step()
        training.compare(wrapped, expected, "arena, no_sync")


def own_of_other_layouts(rank, size):
    module = torch.nn.Conv2d(3, 4, 3)
    wrapped = tutti.torch.DistributedDataParallel(module.to(memory_format=torch.channels_last))
    alone = torch.nn.Conv2d(3, 4, 3)
    alone.load_state_dict(wrapped.module.state_dict())
    images = torch.randn(size, 3, 5, 5, generator=torch.Generator().manual_seed(3))
    wrapped(images[rank : rank + 1]).square().sum().backward()
    (alone(images).square().sum() / size).backward()
    difference = (wrapped.module.weight.grad - alone.weight.grad).abs().max().item()
    assert difference < 1e-4, difference


def own_refuses(rank, size):
    sparse = tutti.torch.DistributedDataParallel(torch.nn.Embedding(4, 2, sparse=True))
    loss = sparse(torch.tensor([1])).sum()
    raises(ValueError, "has a sparse gradient", loss.backward)
    raises(
        ValueError,
        "no parameter of the module",
        lambda: tutti.torch.DistributedDataParallel(torch.nn.ReLU()),
    )
    raises(ValueError, "wire is", lambda: tutti.torch.HookState(torch.nn.ReLU(), wire="f8"))


if __name__ == "__main__":
    run(
        hook,
        hook_with_a_sparse_embedding,
        own,
        own_starts_from_rank_0,
        own_with_unused_parameters,
        own_after_a_backward_that_raised,
        own_sends_buffers_that_were_replaced,
        own_accumulates,
        own_of_other_layouts,
        own_refuses,
    )
