"""Groups that end, that are made again, or that end while somebody waits."""

import datetime
import threading

import torch
import torch.distributed as dist

import tutti
import tutti.torch
from ranks import TIMEOUT, equal, raises, run


def works_that_nobody_keeps(rank, size):
    tensors = [torch.ones(3) for _ in range(2_000)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    last = torch.ones(1)
    dist.all_reduce(last)
    equal(last.item(), float(size), "all_reduce after works that nobody kept")


def many_groups(rank, size):
    for turn in range(10):
        group = dist.new_group()
        tensor = torch.tensor([float(turn)])
        dist.all_reduce(tensor, group=group)
        equal(tensor.item(), float(turn * size), "all_reduce in a group of many")
        dist.destroy_process_group(group)
        tutti_close(group)


def tutti_close(group):
    tutti.torch.group_of(group).shutdown()
    tutti.torch.group_of(group).shutdown()


def closing_while_a_thread_waits(rank, size):
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True) if rank == 0 else None
    errors = []

    def wait():
        try:
            work.wait()
        except tutti.Error as error:
            errors.append(error)

    if rank == 0:
        thread = threading.Thread(target=wait)
        thread.start()
        tutti.torch.group_of(group).abort()
        tutti.torch.group_of(group).abort()
        thread.join(TIMEOUT.total_seconds())
        equal(len(errors), 1, "errors of the thread that waited")
        future = work.get_future()
        raises(RuntimeError, "ClosedError", future.wait, lines=None)
        raises(tutti.ClosedError, "", lambda: dist.all_reduce(torch.ones(2), group=group))
    dist.barrier()


def a_late_rank(rank, size):
    """The last rank comes after rank 0 has given up, and gets the same result as all other
    ranks."""
    group, store = tutti.torch.group_of(), dist.distributed_c10d._get_default_store()
    text = f"{size - 1} failed to pass monitoredBarrier"
    if rank == 0:
        short = datetime.timedelta(seconds=1)
        raises(tutti.TimedOutError, text, lambda: group.monitored_barrier(short, wait_all_ranks=True))
        store.set("rank 0 has given up", "yes")
    else:
        if rank == size - 1:
            store.wait(["rank 0 has given up"], TIMEOUT)
        raises(tutti.TimedOutError, text, lambda: group.monitored_barrier(TIMEOUT))
    dist.barrier()
    group.monitored_barrier()
    at_once = datetime.timedelta(0)
    text = "Rank 0 timed out in monitoredBarrier"
    if rank != 0:  # otherwise rank 0 would find them waiting
        store.wait(["rank 0 had no time"], TIMEOUT)
    raises(tutti.TimedOutError, text, lambda: group.monitored_barrier(at_once if rank == 0 else TIMEOUT))
    if rank == 0:
        store.set("rank 0 had no time", "yes")


def again(rank, size):
    store = dist.distributed_c10d._get_default_store()
    for turn in range(3):
        dist.destroy_process_group()
        # torch 1.13 keeps counting its ranks in the store, so it never connects a second time with
        # one store.
        prefix = f"again {turn}" if torch.__version__.startswith("1.") else "again"
        place = dist.PrefixStore(prefix, store)
        dist.init_process_group("tutti", store=place, rank=rank, world_size=size, timeout=TIMEOUT)
        tensor = torch.tensor([1.0])
        dist.all_reduce(tensor)
        equal(tensor.item(), float(size), f"all_reduce in round {turn}")
    raises(
        ValueError,
        "takes a dict",
        lambda: dist.new_group(pg_options=("backend", "tcp")),
    )
    group = dist.new_group(pg_options={"backend": "tcp"})
    equal(tutti.torch.group_of(group).communicator.backend, "tcp", "a backend by pg_options")
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    equal(tensor, torch.full((1000,), float(size)), "all_reduce over tcp")


def a_backend_for_each_device(rank, size):
    """If Tutti has only the GPU's tensors, gloo has those on the CPU."""
    if issubclass(tutti.torch.Group, dist.ProcessGroup):
        return  # before torch 2.14 Tutti's group has all devices
    for backends in ("cpu:gloo,cuda:tutti", "cpu:tutti,cuda:tutti", "cpu:tutti"):
        group = dist.new_group(backend=backends, timeout=TIMEOUT)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        equal(tensor, torch.full((3,), float(size)), f"all_reduce over {backends}")
        cpu = group._get_backend(torch.device("cpu"))
        equal(isinstance(cpu, tutti.torch.Group), "cpu:tutti" in backends, f"the CPU's of {backends}")
        equal(tutti.torch.group_of(group).size(), size, f"size of {backends}")


if __name__ == "__main__":
    run(
        works_that_nobody_keeps,
        many_groups,
        a_backend_for_each_device,
        closing_while_a_thread_waits,
        a_late_rank,
        again,
    )
