"""Tensors on a GPU: torch's calls on its current stream, without waits of the host. Two ranks may
share one device."""

import os
import sys


def skip():
    print("gpu.py: Skipped\nno GPU: torch sees none")
    sys.exit(0)


# Looks for the driver's device file (in WSL too) before the import of torch, which takes two
# seconds on each rank.
if not any(os.path.exists(door) for door in ("/dev/nvidiactl", "/dev/dxg")):
    skip()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import training  # noqa: E402
import tutti.torch  # noqa: E402
from ranks import equal, run  # noqa: E402

BACKENDS = ("tutti", "cpu:tutti,cuda:tutti", "cpu:gloo,cuda:tutti")


def device(rank):
    return torch.device("cuda", rank % torch.cuda.device_count())


def on_the_current_stream(rank, size):
    here = device(rank)
    torch.cuda.set_device(here)
    stream = torch.cuda.Stream(here)
    with torch.cuda.stream(stream):
        for count in (0, 1, 1000, 1 << 22):
            tensor = torch.full((count,), float(rank), device=here)
            for _ in range(20):  # still running when the call is made
                tensor = tensor * 1.0
            dist.all_reduce(tensor)
            after = tensor + 0
            equal(after, torch.full((count,), float(sum(range(size)))), f"all_reduce of {count}")


def every_kind(rank, size):
    here = device(rank)
    tensor = torch.full((4,), float(rank), device=here)
    dist.broadcast(tensor, size - 1)
    equal(tensor, torch.full((4,), size - 1.0), "broadcast")
    whole = torch.empty(4 * size, device=here)
    dist.all_gather_into_tensor(whole, torch.full((4,), float(rank), device=here))
    equal(whole, torch.arange(float(size)).repeat_interleave(4), "all_gather_into_tensor")
    part = torch.empty(4, device=here)
    dist.reduce_scatter_tensor(part, whole)
    equal(part, torch.full((4,), float(rank * size)), "reduce_scatter_tensor")
    rows = torch.empty(size, device=here)
    dist.all_to_all_single(rows, torch.full((size,), float(rank), device=here))
    equal(rows, torch.arange(float(size)), "all_to_all_single")
    if rank == 0:
        dist.send(torch.ones(3, device=here), 1)
    elif rank == 1:
        got = torch.empty(3, device=here)
        dist.recv(got, 0)
        equal(got, torch.ones(3), "recv")
    dist.barrier()


def ddp(rank, size):
    here = device(rank)
    expected = training.one_rank(size, steps=5)
    for hook in (False, True):
        model = DistributedDataParallel(training.model().to(here))
        if hook:
            tutti.torch.register_ddp_hook(model)
        optimizer = training.sgd(model)
        for step in range(5):
            optimizer.zero_grad()
            data = tuple(tensor.to(here) for tensor in training.batch(step, rank))
            training.loss_of(model, data).backward()
            optimizer.step()
        training.compare(model.module.cpu(), expected, f"DDP on a GPU, hook {hook}")


def a_cpu_tensor_beside(rank, size):
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    equal(tensor, torch.full((3,), float(size)), "all_reduce on the CPU")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        skip()
    for backend in BACKENDS if hasattr(dist, "all_gather_into_tensor") else BACKENDS[:1]:
        run(on_the_current_stream, every_kind, ddp, a_cpu_tensor_beside, backend=backend)
