"""torch's DistributedDataParallel over the backend, compared with one rank that has the joined
batch."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import training
from ranks import equal, run


def train(ddp, rank, steps=training.STEPS, momentum=0.9, branch_of=None):
    optimizer = training.sgd(ddp, momentum)
    for step in range(steps):
        optimizer.zero_grad()
        how = {"take_branch": branch_of(rank, step)} if branch_of else {}
        training.loss_of(ddp, training.batch(step, rank), **how).backward()
        optimizer.step()
    return ddp


def plain(rank, size):
    expected = training.one_rank(size)
    training.moved(expected)
    for how in (
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.002},
        {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": True, "static_graph": True},
    ):
        ddp = DistributedDataParallel(training.model(), **how)
        training.compare(train(ddp, rank), expected, f"DDP {how}")


def starts_from_rank_0(rank, size):
    torch.manual_seed(rank)
    ddp = DistributedDataParallel(torch.nn.Linear(3, 2))
    weights = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(weights, ddp.module.weight.detach())
    for other in weights:
        equal(other, weights[0], "weights after DDP's constructor")


def unused_parameters(rank, size):
    def branch_of(rank, step):
        return (rank + step) % 2 == 0

    # A parameter that no rank used gets no gradient. With momentum the results differ if DDP loses
    # the gradient of a parameter that some rank used.
    expected = training.one_rank(size, branch_of=branch_of, unused=True)
    ddp = DistributedDataParallel(training.model(unused=True), find_unused_parameters=True)
    training.compare(train(ddp, rank, branch_of=branch_of), expected, "find_unused_parameters")
    equal(ddp.module.never.grad, None, "the gradient of what nobody used")
    # Without the option, DDP reports the problem in the next step.
    ddp = DistributedDataParallel(training.model(unused=True))
    training.loss_of(ddp, training.batch(0, rank)).backward()
    try:
        training.loss_of(ddp, training.batch(0, rank))
    except RuntimeError as error:
        assert "find_unused_parameters" in str(error), error
    else:
        raise AssertionError("DDP said nothing of parameters that were not used")


def sparse_gradients(rank, size):
    expected = training.one_rank(size, momentum=0.0, sparse=True)
    ddp = DistributedDataParallel(training.model(sparse=True))
    training.compare(train(ddp, rank, momentum=0.0), expected, "a sparse embedding")


def accumulation(rank, size):
    expected = training.model()
    optimizer = training.sgd(expected)
    for step in range(6):
        optimizer.zero_grad()
        for part in (step, step + 50):
            for other in range(size):
                (training.loss_of(expected, training.batch(part, other)) / size).backward()
        optimizer.step()
    ddp = DistributedDataParallel(training.model())
    optimizer = training.sgd(ddp)
    for step in range(6):
        optimizer.zero_grad()
        with ddp.no_sync():
            training.loss_of(ddp, training.batch(step, rank)).backward()
        training.loss_of(ddp, training.batch(step + 50, rank)).backward()
        optimizer.step()
    training.compare(ddp, expected, "no_sync")


def buffers(rank, size):
    norm = DistributedDataParallel(torch.nn.BatchNorm1d(4))
    for step in range(3):
        norm(torch.randn(8, 4, generator=torch.Generator().manual_seed(rank + 10 * step)))
    norm(torch.zeros(8, 4))  # each forward starts with rank 0's buffers
    means = [torch.empty(4) for _ in range(size)]
    dist.all_gather(means, norm.module.running_mean)
    for mean in means:
        equal(mean, means[0], "buffers")


def hooks_of_torch(rank, size):
    expected = training.one_rank(size)
    ddp = DistributedDataParallel(training.model())
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    training.compare(train(ddp, rank), expected, "allreduce_hook")
    ddp = DistributedDataParallel(training.model())
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    training.compare(train(ddp, rank), expected, "fp16_compress_hook", tolerance=0.05)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    ddp = DistributedDataParallel(training.model())
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    training.compare(train(ddp, rank, steps=6), expected, "PowerSGD", tolerance=10)


def join_of_uneven_data(rank, size):
    ddp = DistributedDataParallel(training.model())
    optimizer = training.sgd(ddp)
    steps = 0
    with ddp.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            training.loss_of(ddp, training.batch(step, rank)).backward()
            optimizer.step()
            steps += 1
    equal(steps, 3 + 2 * rank, "steps under join")
    training.compare(ddp, ddp.module, "join")


def one_batch_on_all(rank, size):
    """DDP of a model with the memory layout channels_last."""
    module = torch.nn.Conv2d(3, 4, 3)
    dist.broadcast(module.weight.data, 0)
    dist.broadcast(module.bias.data, 0)
    alone = torch.nn.Conv2d(3, 4, 3)
    alone.load_state_dict(module.state_dict())
    ddp = DistributedDataParallel(module.to(memory_format=torch.channels_last))
    images = torch.randn(size, 3, 5, 5, generator=torch.Generator().manual_seed(3))
    ddp(images[rank : rank + 1]).square().sum().backward()
    (alone(images).square().sum() / size).backward()
    difference = (ddp.module.weight.grad - alone.weight.grad).abs().max().item()
    assert difference < 1e-4, difference


def bad_input(rank, size):
    # DDP's constructor compares the shapes of all ranks.
    def build():
        DistributedDataParallel(torch.nn.Linear(3, 2 + rank))

    try:
        build()
    except RuntimeError:
        pass
    else:
        raise AssertionError("models of different shapes were taken")


if __name__ == "__main__":
    run(
        plain,
        starts_from_rank_0,
        unused_parameters,
        sparse_gradients,
        accumulation,
        buffers,
        hooks_of_torch,
        join_of_uneven_data,
        one_batch_on_all,
        bad_input,
    )
