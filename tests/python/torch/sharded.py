"""Features of newer torch versions on process groups: functional collectives, DeviceMesh, DTensor,
FSDP2."""

import sys
from importlib.metadata import version

VERSION = tuple(int(number) for number in version("torch").split(".")[:2])
if VERSION < (2, 7):  # checked before torch is imported, which takes two seconds
    print(f"sharded.py: Skipped\nFSDP2 on the CPU needs torch 2.7, this is {version('torch')}")
    sys.exit(0)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import training  # noqa: E402
import tutti.torch  # noqa: E402
from ranks import equal, run  # noqa: E402


def functional(rank, size):
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    total = functional.all_reduce(torch.ones(5) * rank, "sum", group)
    equal(total + 0, torch.full((5,), float(sum(range(size)))), "functional all_reduce")
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    equal(gathered + 0, torch.arange(float(size)).repeat_interleave(2), "functional all_gather")
    mine = functional.reduce_scatter_tensor(torch.arange(2.0 * size), "sum", 0, group)
    expected = torch.tensor([2.0 * rank, 2.0 * rank + 1]) * size
    equal(mine + 0, expected, "functional reduce_scatter")
    several = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "avg", group)
    for tensor in several:
        equal(tensor + 0, torch.ones(len(tensor)), "functional all_reduce_coalesced")
    rows = functional.all_to_all_single(torch.full((size,), float(rank)), None, None, group)
    equal(rows + 0, torch.arange(float(size)), "functional all_to_all_single")
    from_last = functional.broadcast(torch.full((3,), float(rank)), size - 1, group)
    equal(from_last + 0, torch.full((3,), size - 1.0), "functional broadcast")


def device_mesh(rank, size):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("outer", "inner"))
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mesh.get_group("inner"))
    base = rank // 2 * 2
    equal(tensor.item(), float(2 * base + 1), "all_reduce in a dimension of a mesh")


def dtensor(rank, size):
    from torch.distributed.device_mesh import init_device_mesh

    if VERSION >= (2, 5):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    else:
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(size * 6.0).view(size * 2, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    equal(sharded.to_local(), whole.chunk(size)[rank], "a DTensor's shard")
    equal(sharded.full_tensor(), whole, "a DTensor's whole")
    columns = distribute_tensor(whole, mesh, [Replicate()])
    equal((sharded * columns).sum().full_tensor(), (whole * whole).sum(), "a DTensor's sum")


def fsdp2(rank, size):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    expected = training.one_rank(size, momentum=0.9)
    sharded = training.model()
    fully_shard(sharded.hidden)
    fully_shard(sharded)
    optimizer = training.sgd(sharded)
    for step in range(training.STEPS):
        optimizer.zero_grad()
        training.loss_of(sharded, training.batch(step, rank)).backward()
        optimizer.step()
    for (name, got), plain in zip(sharded.named_parameters(), expected.parameters()):
        difference = (got.full_tensor() - plain).abs().max().item()
        assert difference <= training.TOLERANCE, f"{name} differs by {difference}"
    narrow = training.model()
    fully_shard(narrow, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    images, words, targets = training.batch(0, rank)
    training.loss_of(narrow, (images.bfloat16(), words, targets)).backward()
    assert all(parameter.grad is not None for parameter in narrow.parameters())


def monitored_barrier(rank, size):
    import datetime

    if VERSION >= (2, 14):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))


if __name__ == "__main__":
    assert tutti.torch
    run(functional, device_mesh, dtensor, fsdp2, monitored_barrier)
