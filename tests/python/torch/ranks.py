"""Functions that the scripts of this folder share. Each script runs on every rank, under any
launcher, and ends with an error if a result differs from torch's own arithmetic."""

import datetime
import sys
import traceback

import torch
import torch.distributed as dist

import tutti.torch  # noqa: F401  registers the backend

TIMEOUT = datetime.timedelta(seconds=150)  # a longer wait is a hang on any machine


def equal(got, expected, what):
    """Expects equal bits, dtype and shape."""
    if isinstance(got, torch.Tensor):
        same = got.dtype == expected.dtype and got.shape == expected.shape
        same = same and torch.equal(got.detach().cpu(), expected)
    else:
        same = got == expected
    if not same:
        raise AssertionError(f"rank {dist.get_rank()}: {what}: expected {expected}, got {got}")


def raises(kind, text, call, lines=1):
    """`call` must raise `kind` with `text`, in one line unless torch adds its own lines."""
    try:
        call()
    except kind as error:
        line = str(error)
        if text not in line or (lines == 1 and "\n" in line.strip()):
            raise AssertionError(f'expected one line with "{text}", got: {line}') from error
        return
    raise AssertionError(f'nothing was raised where "{text}" was expected')


def run(*parts, backend="tutti"):
    """Runs the parts in order in one default group."""
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=TIMEOUT)
    rank = dist.get_rank()
    for part in parts:
        try:
            part(rank, dist.get_world_size())
        except BaseException:
            print(f"rank {rank}: {part.__name__} failed", file=sys.stderr, flush=True)
            traceback.print_exc()
            sys.stderr.flush()
            raise
        if rank == 0:
            print(f"passed: {part.__name__}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
