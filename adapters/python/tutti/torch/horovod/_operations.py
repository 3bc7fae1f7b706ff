"""The asynchronous operations: each gives a handle for synchronize()."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
import tutti
from torch import Tensor

from .._memory import check, fetch, memory, memory_of_rows, rows_from
from . import _world
from ._adasum import combine
from ._handles import giving, handle_of, synchronize
from ._world import ProcessSet, global_process_set, guarded, members, place_of

Average, Sum, Adasum, Min, Max, Product = range(6)
_WORDS: dict[int, Any] = {Average: "sum", Sum: "sum", Min: "min", Max: "max", Product: "product"}


def operator_of(op: Optional[int], average: Optional[bool]) -> int:
    """`average` is the older way to say op."""
    if average is not None:
        if op is not None:
            raise ValueError("op and average say the same: give op only")
        warnings.warn("average is deprecated; give op=Average or op=Sum", DeprecationWarning, 3)
        return Average if average else Sum
    op = Average if op is None else op
    if op not in (Average, Sum, Adasum, Min, Max, Product):
        raise ValueError(f"op is {op!r}, none of Average, Sum, Adasum, Min, Max and Product")
    return op


def contiguous(call: str, tensor: Tensor) -> Tensor:
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
    """Of what is reduced: shapes must be the same on all ranks."""
    return memory(tensor, tuple(tensor.shape))


# --- allreduce ---


def _averaged(outputs: Sequence[Tensor], ranks: int) -> None:
    """Of integers a mean is their sum divided and cut off towards zero; a factor would round."""
    for output in outputs:
        if not output.is_floating_point():
            output.div_(ranks, rounding_mode="trunc")


def _factor(op: int, tensor: Tensor, postscale: float, ranks: int) -> float:
    """Divided by all ranks, also when some have joined and send nothing."""
    return postscale / ranks if op == Average and tensor.is_floating_point() else postscale


def _allreduce(
    tensor: Tensor, output: Tensor, name: Optional[str], op: int, prescale: float,
    postscale: float, process_set: ProcessSet,
) -> int:  # fmt: skip
    comm, known = members(process_set)
    if op == Adasum:
        return _adasum_allreduce([tensor], [output], name, prescale, postscale, process_set, False)
    full = known.name("allreduce", name)
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


def _adasum_allreduce(
    tensors: Sequence[Tensor], outputs: Sequence[Tensor], name: Optional[str], prescale: float,
    postscale: float, process_set: ProcessSet, is_group: bool,
) -> int:  # fmt: skip
    """Every rank gathers all vectors and combines them itself, each tensor by its own angles."""
    comm, known = members(process_set)
    for tensor in tensors:
        if not tensor.is_floating_point():
            raise ValueError(f"allreduce: Adasum of {tensor.dtype}; it takes floating-point numbers")
    full = known.name("adasum", name)
    gathered = [t.new_empty((comm.size, t.numel())) for t in tensors]
    works = [
        guarded(
            lambda: comm.allgather(
                f"{full}/{index}", _numbers(tensor.reshape(-1)), output=_numbers(into.view(-1))
            )
        )
        for index, (tensor, into) in enumerate(zip(tensors, gathered))
    ]

    def finish() -> Any:
        for output, everyone in zip(outputs, gathered):
            whole = combine([part.double() * prescale for part in everyone]) * postscale
            output.copy_(whole.view(output.shape))
        return list(outputs) if is_group else outputs[0]

    return handle_of(works, finish)


def allreduce_async(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Into a new tensor, which synchronize() gives."""
    op = operator_of(op, average)
    tensor = contiguous("allreduce", tensor)
    output = torch.empty_like(tensor)
    return _allreduce(tensor, output, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """In place."""
    op = operator_of(op, average)
    given = contiguous("allreduce", tensor)
    handle = _allreduce(given, given, name, op, prescale_factor, postscale_factor, process_set)
    return giving(handle, tensor)


def _grouped_allreduce(
    tensors: Sequence[Tensor], outputs: Sequence[Tensor], name: Optional[str], op: int,
    prescale: float, postscale: float, process_set: ProcessSet,
) -> int:  # fmt: skip
    """In place in `outputs`, which hold the inputs."""
    comm, known = members(process_set)
    if not outputs:
        return handle_of([], list)
    if op == Adasum:
        return _adasum_allreduce(outputs, outputs, name, prescale, postscale, process_set, True)
    kinds = {output.is_floating_point() for output in outputs}
    if op == Average and len(kinds) > 1:
        raise ValueError("grouped_allreduce: averages of integers and of others in one group")
    full = known.name("grouped_allreduce", name)
    pairs = [(f"{full}.{index}", _numbers(output)) for index, output in enumerate(outputs)]
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
    """All of them or none, under one handle; a list of new tensors."""
    op = operator_of(op, average)
    given = [contiguous("grouped_allreduce", tensor) for tensor in tensors]
    outputs = [tensor.clone() for tensor in given]
    return _grouped_allreduce(
        given, outputs, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """In place."""
    op = operator_of(op, average)
    given = [contiguous("grouped_allreduce", tensor) for tensor in tensors]
    handle = _grouped_allreduce(
        given, given, name, op, prescale_factor, postscale_factor, process_set
    )
    return giving(handle, list(tensors))


def sparse_allreduce_async(
    tensor: Tensor, name: Optional[str], op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Of a sparse tensor. What it gives is called instead of synchronize()."""
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async: op must be Average or Sum")
    own = tensor.detach().coalesce()
    indices, values = own.indices().t().contiguous(), own.values().contiguous()
    ranks = members(process_set)[0].size
    names = (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    handles = [
        allgather_async(part, part_name, process_set)
        for part, part_name in zip((indices, values), names)
    ]

    def wait() -> Tensor:
        where, what = (synchronize(handle) for handle in handles)
        if op == Average:
            what = what / ranks
        return torch.sparse_coo_tensor(where.t(), what, tensor.shape).coalesce()

    return wait


# --- what moves ---


def allgather_async(
    tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """One behind the other along the first dimension, in which the ranks may differ."""
    comm, known = members(process_set)
    tensor = rows_of("allgather", tensor)
    full = known.name("allgather", name)
    work = guarded(lambda: comm.allgather(full, memory_of_rows(tensor)))
    return handle_of([work], lambda: rows_from(work.output(0), tensor))


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    comm, known = members(process_set)
    given = [rows_of("grouped_allgather", tensor) for tensor in tensors]
    if not given:
        return handle_of([], list)
    full = known.name("grouped_allgather", name)
    pairs = [(f"{full}.{index}", memory_of_rows(tensor)) for index, tensor in enumerate(given)]
    work = guarded(lambda: comm.grouped_allgather(full, pairs))
    return handle_of(
        [work],
        lambda: [rows_from(work.output(index), tensor) for index, tensor in enumerate(given)],
    )


def _broadcast(
    output: Tensor, root_rank: int, name: Optional[str], process_set: ProcessSet
) -> int:
    comm, known = members(process_set)
    root = place_of(root_rank, process_set)
    full = known.name("broadcast", name)
    work = guarded(lambda: comm.broadcast(full, memory_of_rows(output), root))
    return handle_of([work], lambda: output)


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`root_rank` is the rank in the world, also for a process set."""
    output = contiguous("broadcast", tensor).clone()
    return _broadcast(output, root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """In place."""
    given = contiguous("broadcast", tensor)
    return giving(_broadcast(given, root_rank, name, process_set), tensor)


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """synchronize() gives the rows that came and, as int32, how many came from each rank."""
    comm, known = members(process_set)
    tensor = rows_of("alltoall", tensor)
    rows = tensor.shape[0]
    if splits is None:
        if rows % comm.size != 0:
            raise ValueError(f"alltoall: {rows} rows for {comm.size} ranks; give splits")
        counts = [rows // comm.size] * comm.size
    else:
        counts = [int(count) for count in splits]
        if len(counts) != comm.size or min(counts) < 0 or sum(counts) > rows:
            raise ValueError(f"alltoall: splits {counts} of {rows} rows for {comm.size} ranks")
        tensor = tensor[: sum(counts)]
    full = known.name("alltoall", name)
    work = guarded(lambda: comm.alltoall(full, memory_of_rows(tensor), counts))
    return handle_of(
        [work],
        lambda: (
            rows_from(work.output(0), tensor),
            torch.tensor(work.received_counts(), dtype=torch.int32),
        ),
    )


def _reducescatter(
    tensor: Tensor, name: str, op: int, process_set: ProcessSet, prescale: float, postscale: float
) -> tuple[tutti.Work, Callable[[], Tensor]]:
    comm, _ = members(process_set)
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
    """Rows are dealt along the first dimension; what is left over goes to the lowest ranks."""
    tensor = rows_of("reducescatter", tensor)
    full = members(process_set)[1].name("reducescatter", name)
    work, finish = _reducescatter(
        tensor, full, op, process_set, prescale_factor, postscale_factor
    )
    return handle_of([work], finish)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor], name: Optional[str] = None, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    given = [rows_of("grouped_reducescatter", tensor) for tensor in tensors]
    full = members(process_set)[1].name("grouped_reducescatter", name)
    begun = [
        _reducescatter(
            tensor, f"{full}.{index}", op, process_set, prescale_factor, postscale_factor
        )
        for index, tensor in enumerate(given)
    ]
    return handle_of([work for work, _ in begun], lambda: [finish() for _, finish in begun])


# --- what has no tensor ---


def join(device: int = -1) -> int:
    """This rank is out of data, and takes part with zeros until all ranks have joined. The last
    rank to join. `device` is of no consequence."""
    work = guarded(_world.communicator().join)
    return int(synchronize(handle_of([work], work.result)))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    comm, known = members(process_set)
    work = guarded(lambda: comm.barrier(known.name("barrier", None)))
    synchronize(handle_of([work], lambda: None))
