"""The asynchronous operations. Each returns a handle for synchronize()."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import torch
import tutti
from torch import Tensor

from .._calls import told, whole, whole_numbers
from .._memory import check, fetch, memory, memory_of_rows, rows_from
from . import _world
from ._adasum import combine
from ._handles import giving, handle_of, synchronize
from ._world import ProcessSet, global_process_set, guarded, members, place_of

Average, Sum, Adasum, Min, Max, Product = range(6)
_WORDS: dict[int, Any] = {Average: "sum", Sum: "sum", Min: "min", Max: "max", Product: "product"}


def operator_of(op: Optional[int], average: Optional[bool]) -> int:
    """Returns the operator. `average` is the older way to give op."""
    if average is not None:
        if op is not None:
            raise ValueError("op and average mean the same: give only op")
        warnings.warn("average is deprecated; give op=Average or op=Sum", DeprecationWarning, 3)
        return Average if average else Sum
    op = Average if op is None else whole(op, "op")
    if op not in (Average, Sum, Adasum, Min, Max, Product):
        raise ValueError(f"op is {op!r}, expected Average, Sum, Adasum, Min, Max or Product")
    return op


@contextlib.contextmanager
def _call(
    kind: str, name: Optional[str], process_set: ProcessSet, parts: Sequence[Any] = ("",)
) -> Iterator[tuple[tutti.Communicator, str]]:
    """A context for a call by a member of the set. The call's name or number is taken before the
    arguments are checked. If the call is refused, the other ranks get an error. `parts` are the
    endings of the names of the call's operations."""
    comm, known = members(process_set)
    full = known.name(kind, name)
    with told(comm, [f"{full}{part}" for part in parts]):
        yield comm, full


def _numbered(tensors: Sequence[Any]) -> list[str]:
    return [f".{index}" for index in range(len(tensors))]


def contiguous(call: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{call}: expected a tensor, got {type(tensor).__name__}")
    check(call, tensor)
    if not tensor.is_contiguous():
        raise ValueError(f"{call}: the tensor must be contiguous, so pass tensor.contiguous()")
    return tensor.detach()


def rows_of(call: str, tensor: Tensor) -> Tensor:
    tensor = contiguous(call, tensor)
    if tensor.dim() == 0:
        raise ValueError(f"{call}: the tensor has no first dimension; pass tensor.unsqueeze(0)")
    return tensor


def _numbers(tensor: Tensor) -> tutti.Memory:
    """Returns the memory of a tensor that is reduced. Shapes must be the same on all ranks."""
    return memory(tensor, tuple(tensor.shape))


# --- allreduce ---


def _averaged(outputs: Sequence[Tensor], ranks: int) -> None:
    """Divides the sums of integers and truncates towards zero, which is their mean. Multiplying by
    a factor would round instead."""
    for output in outputs:
        if not output.is_floating_point():
            output.div_(ranks, rounding_mode="trunc")


def _factor(op: int, tensor: Tensor, postscale: float, ranks: int) -> float:
    """Returns the factor after the reduction. Averages divide by the number of all ranks, even if
    some have joined and send nothing."""
    return postscale / ranks if op == Average and tensor.is_floating_point() else postscale


def _allreduce(
    comm: tutti.Communicator, full: str, tensor: Tensor, output: Tensor, op: int, prescale: float,
    postscale: float,
) -> int:  # fmt: skip
    if op == Adasum:
        works, finish_all = _adasum(comm, [full], [tensor], [output], prescale, postscale)
        return handle_of(works, lambda: finish_all()[0])
    scale = _factor(op, tensor, postscale, comm.size)
    into = None if output is tensor else _numbers(output)
    work = guarded(
        lambda: comm.allreduce(
            full, _numbers(tensor), _WORDS[op], output=into, prescale=prescale, postscale=scale
        )
    )

    def finish() -> Tensor:
        if op == Average:
            _averaged([output], comm.size)
        return output

    return handle_of([work], finish)


def _adasum(
    comm: tutti.Communicator, names: Sequence[str], tensors: Sequence[Tensor],
    outputs: Sequence[Tensor], prescale: float, postscale: float,
) -> tuple[list[tutti.Work], Callable[[], list[Tensor]]]:  # fmt: skip
    """Gathers all vectors on every rank, which then combines them itself. Each tensor has its own
    inner products."""
    for tensor in tensors:
        if not tensor.is_floating_point():
            raise ValueError(f"allreduce: Adasum of {tensor.dtype}; it takes floating-point numbers")
    gathered = [t.new_empty((comm.size, t.numel())) for t in tensors]
    works = [
        guarded(
            lambda: comm.allgather(
                name, _numbers(tensor.reshape(-1)), output=_numbers(into.view(-1))
            )
        )
        for name, tensor, into in zip(names, tensors, gathered)
    ]

    def finish() -> list[Tensor]:
        for output, everyone in zip(outputs, gathered):
            combined = combine([part.double() * prescale for part in everyone]) * postscale
            output.copy_(combined.view(output.shape))
        return list(outputs)

    return works, finish


def allreduce_async(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Reduces into a new tensor, which synchronize() returns."""
    with _call("allreduce", name, process_set) as (comm, full):
        op = operator_of(op, average)
        tensor = contiguous("allreduce", tensor)
        output = torch.empty_like(tensor)
        return _allreduce(comm, full, tensor, output, op, prescale_factor, postscale_factor)


def allreduce_async_(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Like allreduce_async(), in place."""
    with _call("allreduce", name, process_set) as (comm, full):
        op = operator_of(op, average)
        given = contiguous("allreduce", tensor)
        handle = _allreduce(comm, full, given, given, op, prescale_factor, postscale_factor)
    return giving(handle, tensor)


def _grouped_allreduce(
    comm: tutti.Communicator, full: str, outputs: list[Tensor], op: int, prescale: float,
    postscale: float,
) -> int:  # fmt: skip
    """Reduces in place in `outputs`, which hold the inputs."""
    names = [f"{full}{part}" for part in _numbered(outputs)]
    if op == Adasum:
        return handle_of(*_adasum(comm, names, outputs, outputs, prescale, postscale))
    kinds = {output.is_floating_point() for output in outputs}
    if op == Average and len(kinds) > 1:
        raise ValueError("grouped_allreduce: averages of integers and of others in one group")
    pairs = [(one, _numbers(output)) for one, output in zip(names, outputs)]
    scale = _factor(op, outputs[0], postscale, comm.size)
    work = guarded(
        lambda: comm.grouped_allreduce(full, pairs, _WORDS[op], prescale=prescale, postscale=scale)
    )

    def finish() -> list[Tensor]:
        if op == Average:
            _averaged(outputs, comm.size)
        return list(outputs)

    return handle_of([work], finish)


def grouped_allreduce_async(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Reduces all tensors or none, under one handle. synchronize() returns new tensors."""
    tensors = list(tensors)
    if not tensors:
        return handle_of([], list)
    with _call("grouped_allreduce", name, process_set, _numbered(tensors)) as (comm, full):
        op = operator_of(op, average)
        outputs = [contiguous("grouped_allreduce", tensor).clone() for tensor in tensors]
        return _grouped_allreduce(comm, full, outputs, op, prescale_factor, postscale_factor)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Like grouped_allreduce_async(), in place."""
    tensors = list(tensors)
    if not tensors:
        return handle_of([], list)
    with _call("grouped_allreduce", name, process_set, _numbered(tensors)) as (comm, full):
        op = operator_of(op, average)
        given = [contiguous("grouped_allreduce", tensor) for tensor in tensors]
        handle = _grouped_allreduce(comm, full, given, op, prescale_factor, postscale_factor)
    return giving(handle, tensors)


def sparse_allreduce_async(
    tensor: Tensor, name: Optional[str], op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Reduces a sparse tensor. Call the returned function instead of synchronize()."""
    ends = (".indices", ".values")
    with _call("sparse_allreduce", name, process_set, ends) as (comm, full):
        if op not in (Average, Sum):
            raise ValueError("sparse_allreduce_async: op must be Average or Sum")
        if not isinstance(tensor, Tensor) or not tensor.is_sparse:
            raise ValueError("sparse_allreduce_async: a sparse tensor is wanted")
        own = tensor.detach().coalesce()
        parts = (own.indices().t().contiguous(), own.values().contiguous())
        works = [
            guarded(lambda: comm.allgather(f"{full}{end}", memory_of_rows(part)))
            for end, part in zip(ends, parts)
        ]

    def finish() -> Tensor:
        where, what = (rows_from(work.output(0), part) for work, part in zip(works, parts))
        if op == Average:
            what = what / comm.size
        return torch.sparse_coo_tensor(where.t(), what, tensor.shape).coalesce()

    handle = handle_of(works, finish)
    return lambda: synchronize(handle)  # type: ignore[no-any-return]


# --- data movement ---


def allgather_async(
    tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Gathers tensors one after another along the first dimension, where the ranks may differ."""
    with _call("allgather", name, process_set) as (comm, full):
        tensor = rows_of("allgather", tensor)
        work = guarded(lambda: comm.allgather(full, memory_of_rows(tensor)))
    return handle_of([work], lambda: rows_from(work.output(0), tensor))


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    tensors = list(tensors)
    if not tensors:
        return handle_of([], list)
    ends = _numbered(tensors)
    with _call("grouped_allgather", name, process_set, ends) as (comm, full):
        given = [rows_of("grouped_allgather", tensor) for tensor in tensors]
        pairs = [(f"{full}{end}", memory_of_rows(tensor)) for end, tensor in zip(ends, given)]
        work = guarded(lambda: comm.grouped_allgather(full, pairs))
    return handle_of(
        [work],
        lambda: [rows_from(work.output(index), tensor) for index, tensor in enumerate(given)],
    )


def _broadcast(comm: tutti.Communicator, full: str, output: Tensor, root: int) -> int:
    work = guarded(lambda: comm.broadcast(full, memory_of_rows(output), root))
    return handle_of([work], lambda: output)


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`root_rank` is the rank in the world, also for a process set."""
    with _call("broadcast", name, process_set) as (comm, full):
        root = place_of(root_rank, process_set)
        return _broadcast(comm, full, contiguous("broadcast", tensor).clone(), root)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Broadcasts in place."""
    with _call("broadcast", name, process_set) as (comm, full):
        root = place_of(root_rank, process_set)
        handle = _broadcast(comm, full, contiguous("broadcast", tensor), root)
    return giving(handle, tensor)


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Makes synchronize() return the received rows and, as int32, the number of rows from each
    rank."""
    with _call("alltoall", name, process_set) as (comm, full):
        tensor = rows_of("alltoall", tensor)
        rows = tensor.shape[0]
        if splits is None:
            if rows % comm.size != 0:
                raise ValueError(f"alltoall: {rows} rows for {comm.size} ranks; give splits")
            counts = [rows // comm.size] * comm.size
        else:
            counts = whole_numbers(splits, "alltoall's splits")
            if len(counts) != comm.size or min(counts) < 0 or sum(counts) > rows:
                raise ValueError(f"alltoall: splits {counts} of {rows} rows for {comm.size} ranks")
            tensor = tensor[: sum(counts)]
        work = guarded(lambda: comm.alltoall(full, memory_of_rows(tensor), counts))
    return handle_of(
        [work],
        lambda: (
            rows_from(work.output(0), tensor),
            torch.tensor(work.received_counts(), dtype=torch.int32),
        ),
    )


def _reducescatter(
    comm: tutti.Communicator, name: str, tensor: Tensor, op: int, prescale: float, postscale: float
) -> tuple[tutti.Work, Callable[[], Tensor]]:
    if op not in (Average, Sum):
        raise ValueError("reducescatter: op must be Average or Sum")
    least, more = divmod(tensor.shape[0], comm.size)
    rows = [least + (place < more) for place in range(comm.size)]
    output = tensor.new_empty((rows[comm.rank], *tensor.shape[1:]))
    into = None if output.is_cuda else _numbers(output)
    scale = _factor(op, tensor, postscale, comm.size)
    work = guarded(
        lambda: comm.reduce_scatter(
            name, _numbers(tensor), "sum", rows, output=into, prescale=prescale, postscale=scale
        )
    )

    def finish() -> Tensor:
        if into is None:
            fetch(work.output(), output)
        if op == Average:
            _averaged([output], comm.size)
        return output

    return work, finish


def reducescatter_async(
    tensor: Tensor, name: Optional[str] = None, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    """Deals rows along the first dimension. The lowest ranks get the remainder."""
    with _call("reducescatter", name, process_set) as (comm, full):
        rows = rows_of("reducescatter", tensor)
        work, finish = _reducescatter(comm, full, rows, op, prescale_factor, postscale_factor)
    return handle_of([work], finish)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor], name: Optional[str] = None, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    tensors = list(tensors)
    ends = _numbered(tensors)
    with _call("grouped_reducescatter", name, process_set, ends) as (comm, full):
        given = [rows_of("grouped_reducescatter", tensor) for tensor in tensors]
        begun = [
            _reducescatter(comm, f"{full}{end}", rows, op, prescale_factor, postscale_factor)
            for end, rows in zip(ends, given)
        ]
    return handle_of([work for work, _ in begun], lambda: [finish() for _, finish in begun])


# --- operations without a tensor ---


def join(device: int = -1) -> int:
    """Announces that this rank has no more data. The rank takes part with zeros until all ranks
    have joined. Returns the last rank to join. `device` has no effect."""
    work = guarded(_world.communicator().join)
    return int(synchronize(handle_of([work], work.result)))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    comm, known = members(process_set)
    work = guarded(lambda: comm.barrier(known.name("barrier", None)))
    synchronize(handle_of([work], lambda: None))
