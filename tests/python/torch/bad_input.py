"""Mistakes of programs: each causes a one-line error, and the group still works afterwards."""

import datetime
import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tutti
import tutti.torch
from ranks import TIMEOUT, equal, raises, run

SHORT = datetime.timedelta(seconds=1)


def usable(rank, size):
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    equal(tensor, torch.full((3,), float(size)), "an all_reduce afterwards")


def tensors_that_cannot_be_taken(rank, size):
    group = tutti.torch.group_of()
    cases = {
        "is on meta": torch.empty(3, device="meta"),
        "with gaps": torch.ones(6)[::2],
        "can be moved but not reduced": torch.ones(3, dtype=torch.complex64),
        "only all_reduce takes sparse tensors": torch.eye(2).to_sparse_csr(),
    }
    for text, tensor in cases.items():
        raises(ValueError, text, lambda tensor=tensor: group.allreduce([tensor]))
    if hasattr(torch, "float8_e5m2"):
        narrow = torch.ones(3).to(torch.float8_e5m2)
        raises(ValueError, "can be moved but not reduced", lambda: group.allreduce([narrow]))
        dist.broadcast(narrow, 0)
    usable(rank, size)


def calls_that_differ(rank, size):
    raises(tutti.MismatchError, "", lambda: dist.all_reduce(torch.ones(3 + rank)))
    dtype = torch.float32 if rank == 0 else torch.float64
    raises(tutti.MismatchError, "", lambda: dist.all_reduce(torch.ones(3, dtype=dtype)))

    def different():
        dist.all_reduce(torch.ones(3)) if rank == 0 else dist.barrier()

    raises(tutti.MismatchError, "", different)
    usable(rank, size)


def calls_that_one_rank_is_refused(rank, size):
    """One rank's call is refused. The other ranks get an error, and the next call works on all
    ranks."""
    group = tutti.torch.group_of()
    whole, gaps = torch.ones(2 * size), torch.ones(4 * size)[::2]
    rows = lambda: list(torch.ones(2 * size, 2 * size).unbind())  # noqa: E731
    sparse, op = torch.eye(2).to_sparse(), dist.ReduceOp
    cases = {
        "all_reduce": lambda bad: group.allreduce([gaps if bad else whole]),
        "all_reduce of rows": lambda bad: group.allreduce([sparse], op=op.MAX if bad else op.SUM),
        "coalesced": lambda bad: group.allreduce_coalesced([whole, gaps if bad else whole, whole]),
        "broadcast": lambda bad: group.broadcast([gaps if bad else whole], 0),
        "reduce": lambda bad: group.reduce([gaps if bad else whole], 0),
        "all_gather": lambda bad: group.allgather([rows()[: size - bad]], [whole]),
        "gathers": lambda bad: group.allgather_coalesced(
            [rows()[: 2 - (bad and at == 1)] for at in range(size)], [whole, whole]
        ),
        "into": lambda bad: group._allgather_base(torch.ones(2 * size**2 - bad), whole),
        "several into": lambda bad: group.allgather_into_tensor_coalesced(
            [torch.ones(2 * size**2), torch.ones(2 * size**2 - bad)], [whole, whole]
        ),
        "scattered": lambda bad: group._reduce_scatter_base(torch.ones(2 + bad), whole),
        "reduce_scatter": lambda bad: group.reduce_scatter(
            [whole], [rows()[: size - bad]], dist.ReduceScatterOptions()
        ),
        "all_to_all": lambda bad: group.alltoall_base(
            torch.ones(2 * size), whole, [], [1.9, 2.1, *[2] * (size - 2)] if bad else []
        ),
        "lists": lambda bad: group.alltoall(rows()[: size - bad], rows()[:size]),
    }
    for what, call in cases.items():
        bad = rank == size - 1
        try:
            call(bad).wait()
        except ValueError:
            assert bad, what
        except tutti.MismatchError as error:
            assert "sent barrier" in str(error) and not bad, (what, error)
        else:
            raise AssertionError(f"rank {rank}: nothing was raised by {what}")
        usable(rank, size)


def memory_that_changes_in_flight(rank, size):
    """A tensor that nobody keeps stays alive until the call ends. A tensor whose memory was
    replaced causes an error."""
    if rank != 0:
        time.sleep(0.5)
    tensor = torch.ones(1000)
    works = [dist.all_reduce(tensor, async_op=True), dist.all_reduce(torch.ones(9), async_op=True)]
    if rank == 0:
        tensor.set_(torch.zeros(5))
        raises(RuntimeError, "was resized, or got other memory", works[0].wait)
        equal(tensor, torch.zeros(5), "the memory that it got")
    for work in works[1:]:
        work.wait()
    usable(rank, size)


def models_that_differ(rank, size):
    own, linear = tutti.torch.DistributedDataParallel, torch.nn.Linear
    last = rank == size - 1

    def pair(first, second):
        module = torch.nn.Module()
        setattr(module, first, linear(3, 3))
        setattr(module, second, linear(3, 3))
        return module

    cases = {
        "shape (4, 3)": linear(3, 4 if last else 2),
        'is "b.weight"': pair("b", "a") if last else pair("a", "b"),
        f"on rank {size - 1} is nothing": linear(3, 2, bias=not last),
        'is "c.weight"': pair("a", "c") if last else pair("a", "b"),
    }
    for text, module in cases.items():
        raises(tutti.MismatchError, text, lambda module=module: own(module))
    frozen = linear(3, 2)
    frozen.bias.requires_grad = not last
    raises(tutti.MismatchError, "without a gradient", lambda: own(frozen))
    own(linear(3, 2))(torch.ones(1, 3)).sum().backward()
    usable(rank, size)


def names_twice(rank, size):
    """A parameter with two names counts as one, as in torch's named_parameters()."""
    shared = torch.nn.Module()
    shared.a = torch.nn.Linear(3, 3)
    shared.b = shared.a
    shared.forward = lambda x: shared.b(shared.a(x)).sum()
    own = tutti.torch.DistributedDataParallel(shared)
    own(torch.ones(1, 3)).backward()
    group = tutti.torch.group_of().named_communicator()
    row = tutti.Memory(torch.ones(3).data_ptr(), (3,), "f32", owner=None)
    pairs = [("twice", row), ("twice", row)]
    raises(tutti.DuplicateNameError, "twice", lambda: group.grouped_allreduce("both", pairs).wait())
    usable(rank, size)


def a_backward_that_a_rank_does_not_make(rank, size):
    group = dist.new_group(timeout=SHORT)
    own = tutti.torch.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
    if rank == 0:
        loss = own(torch.ones(1, 3)).sum()
        raises(tutti.TimedOutError, "deadline of wait() passed", loss.backward)
        raises(RuntimeError, "make a new DistributedDataParallel", lambda: own(torch.ones(1, 3)))
    dist.barrier()
    usable(rank, size)


def an_exception_in_a_hook(rank, size):
    def hook(state, bucket):
        raise ArithmeticError("in a hook")

    ddp = DistributedDataParallel(torch.nn.Linear(3, 2))
    ddp.register_comm_hook(None, hook)
    loss = ddp(torch.ones(1, 3)).sum()
    raises((ArithmeticError, RuntimeError), "in a hook", loss.backward, lines=None)
    usable(rank, size)


def an_exception_behind_a_future(rank, size):
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()

    def raise_it(_):
        raise ArithmeticError("behind a Future")

    raises(RuntimeError, "behind a Future", future.then(raise_it).wait, lines=None)
    usable(rank, size)


def a_signal_while_waiting(rank, size):
    """Ctrl-C interrupts a wait. The call continues, and can be waited for again."""
    store = dist.distributed_c10d._get_default_store()
    if rank != 0:
        store.wait(["Ctrl-C was heard"])
        dist.all_reduce(torch.ones(3))
        return usable(rank, size)
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    try:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        work.wait()
    except KeyboardInterrupt:
        store.set("Ctrl-C was heard", "yes")
    else:
        raise AssertionError("Ctrl-C was not heard")
    work.wait()
    equal(tensor, torch.full((3,), float(size)), "what was waited for again")
    usable(rank, size)


def in_a_fork(rank, size):
    """A forked child must not use its parent's groups, and gets an error. DataLoader's workers are
    such children."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(3))
            text = "nothing was raised"
        except tutti.Error as error:
            text = str(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 10_000).decode()
    os.waitpid(child, 0)
    assert "fork" in text, text
    loader = torch.utils.data.DataLoader(UsesTheGroup(), num_workers=1)
    raises(tutti.Error, "fork", lambda: list(loader), lines=None)
    usable(rank, size)


class UsesTheGroup(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        dist.all_reduce(torch.ones(3))
        return index


def after_shutdown(rank, size):
    group = dist.new_group()
    tutti.torch.group_of(group).shutdown()
    closed = tutti.ClosedError
    raises(closed, "", lambda: dist.all_reduce(torch.ones(3), group=group))
    raises(closed, "is closed", tutti.torch.group_of(group).named_communicator)
    usable(rank, size)
    dist.barrier()


if __name__ == "__main__":
    assert TIMEOUT
    raises((RuntimeError, ValueError), "init", lambda: tutti.torch.group_of(), lines=None)
    run(
        tensors_that_cannot_be_taken,
        calls_that_differ,
        calls_that_one_rank_is_refused,
        memory_that_changes_in_flight,
        models_that_differ,
        names_twice,
        a_backward_that_a_rank_does_not_make,
        an_exception_in_a_hook,
        an_exception_behind_a_future,
        a_signal_while_waiting,
        in_a_fork,
        after_shutdown,
    )
