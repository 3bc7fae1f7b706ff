"""The blocking operations. Those that do not change their input can be differentiated."""

# mypy: disable-error-code="override"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from . import _operations as start
from ._compression import Compression
from ._handles import synchronize
from ._operations import Average, Sum
from ._world import ProcessSet, global_process_set, members, place_of


def _of_gradient(name: Optional[str]) -> Optional[str]:
    return None if name is None else f"{name}.gradient"


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, how: Any, *tensors: Any) -> Any:
        # Only the asynchronous call checks the arguments, after the operation has its number.
        average, *rest = how
        ctx.name, ctx.how = name, how
        if len(tensors) == 1:
            return synchronize(start.allreduce_async(tensors[0], average, name, *rest))
        return tuple(synchronize(start.grouped_allreduce_async(tensors, average, name, *rest)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradients = tuple(gradient.contiguous() for gradient in gradients)
        reduced = _Allreduce.apply(_of_gradient(ctx.name), ctx.how, *gradients)
        return (None, None, *(reduced if isinstance(reduced, tuple) else (reduced,)))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, process_set: Any, tensor: Any) -> Any:
        gathered = synchronize(start.allgather_async(tensor, name, process_set))
        ctx.name, ctx.set, ctx.rows = name, process_set, tensor.shape[0]
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        name = _of_gradient(ctx.name)
        mean = allreduce(gradient.contiguous(), name=name, op=Average, process_set=ctx.set)
        rows = allgather(torch.tensor([ctx.rows]), name and f"{name}.rows", ctx.set)
        before = int(rows[: members(ctx.set)[0].rank].sum())
        return None, None, mean[before : before + ctx.rows]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, root: Any, process_set: Any, tensor: Any) -> Any:
        ctx.name, ctx.root, ctx.set = name, root, process_set
        return synchronize(start.broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        name = _of_gradient(ctx.name)
        mean = allreduce(gradient.contiguous(), name=name, op=Average, process_set=ctx.set)
        is_root = place_of(ctx.root, ctx.set) == members(ctx.set)[0].rank
        return None, None, None, mean if is_root else torch.zeros_like(mean)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, splits: Any, process_set: Any, tensor: Any) -> Any:
        output, received = synchronize(start.alltoall_async(tensor, splits, name, process_set))
        ctx.name, ctx.set, ctx.received, ctx.shape = name, process_set, received, tensor.shape
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: Any, _: Any) -> Any:
        back, _ = alltoall(gradient.contiguous(), ctx.received, _of_gradient(ctx.name), ctx.set)
        if back.shape[0] < ctx.shape[0]:  # rows that were sent to no rank
            back = torch.cat([back, back.new_zeros(ctx.shape[0] - back.shape[0], *ctx.shape[1:])])
        return None, None, None, back


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, how: Any, tensor: Any) -> Any:
        ctx.name, ctx.how = name, how
        return synchronize(start.reducescatter_async(tensor, name, *how))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        op, process_set, prescale, postscale = ctx.how
        factor = prescale * postscale
        if op == Sum:
            factor *= members(process_set)[0].size
        gathered = allgather(gradient.contiguous() * factor, _of_gradient(ctx.name), process_set)
        return None, None, gathered


def allreduce(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None,
    compression: Any = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:  # fmt: skip
    how = (average, op, prescale_factor, postscale_factor, process_set)
    small, context = compression.compress(tensor)
    return compression.decompress(_Allreduce.apply(name, how, small), context)  # type: ignore


def allreduce_(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:  # fmt: skip
    return synchronize(  # type: ignore[no-any-return]
        start.allreduce_async_(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def grouped_allreduce(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None,
    compression: Any = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:  # fmt: skip
    tensors = list(tensors)
    if len(tensors) == 1:
        return [
            allreduce(
                tensors[0], average, name, compression, op, prescale_factor, postscale_factor,
                process_set,
            )  # fmt: skip
        ]
    if not tensors:
        return []
    how = (average, op, prescale_factor, postscale_factor, process_set)
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors))
    reduced = _Allreduce.apply(name, how, *small)
    return [compression.decompress(*pair) for pair in zip(reduced, contexts)]


def grouped_allreduce_(
    tensors: Sequence[Tensor], average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:  # fmt: skip
    return synchronize(  # type: ignore[no-any-return]
        start.grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def allgather(
    tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    return _Allgather.apply(name, process_set, tensor)  # type: ignore


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    tensors = list(tensors)
    # With separate calls each tensor has a gradient of its own.
    if any(getattr(tensor, "requires_grad", False) for tensor in tensors):
        names = (name and f"{name}.{index}" for index in range(len(tensors)))
        return [allgather(tensor, one, process_set) for tensor, one in zip(tensors, names)]
    return synchronize(  # type: ignore[no-any-return]
        start.grouped_allgather_async(tensors, name, process_set)
    )


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    return _Broadcast.apply(name, root_rank, process_set, tensor)  # type: ignore


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    return synchronize(  # type: ignore[no-any-return]
        start.broadcast_async_(tensor, root_rank, name, process_set)
    )


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the received rows. If `splits` is given, it also returns the number of rows from each
    rank."""
    output, received = _Alltoall.apply(name, splits, process_set, tensor)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: Tensor, name: Optional[str] = None, compression: Any = Compression.none,
    op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Tensor:  # fmt: skip
    how = (op, process_set, prescale_factor, postscale_factor)
    small, context = compression.compress(tensor)
    return compression.decompress(_Reducescatter.apply(name, how, small), context)  # type: ignore


def grouped_reducescatter(
    tensors: Sequence[Tensor], name: Optional[str] = None, compression: Any = Compression.none,
    op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[Tensor]:  # fmt: skip
    tensors = list(tensors)
    if any(getattr(tensor, "requires_grad", False) for tensor in tensors):
        names = (name and f"{name}.{index}" for index in range(len(tensors)))
        return [
            reducescatter(
                tensor, one, compression, op, process_set, prescale_factor, postscale_factor
            )
            for tensor, one in zip(tensors, names)
        ]
    if not tensors:
        return []
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors))
    outputs = synchronize(
        start.grouped_reducescatter_async(
            small, name, op, process_set, prescale_factor, postscale_factor
        )
    )
    return [compression.decompress(*pair) for pair in zip(outputs, contexts)]
