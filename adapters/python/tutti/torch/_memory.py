"""Conversions of torch's tensors and operators to those of Tutti."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
import tutti
from torch import Tensor

_DTYPES: dict[torch.dtype, Any] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}
for _name, _word in (("uint16", "u16"), ("uint32", "u32"), ("uint64", "u64")):  # torch 2.3 on
    if hasattr(torch, _name):
        _DTYPES[getattr(torch, _name)] = _word

_OPS: dict[str, Any] = {
    "SUM": "sum",
    "AVG": "average",
    "MIN": "min",
    "MAX": "max",
    "PRODUCT": "product",
    "BAND": "band",
    "BOR": "bor",
    "PREMUL_SUM": "sum",
    "BXOR": "bxor",
}


# Operators of c10d that were used before, because reading an operator's name is slow.
_met: dict[Any, tuple[Any, float]] = {}


def operation(options: Any) -> tuple[Any, float]:
    """Returns the operator in an options object of c10d (or the operator itself) and the factor by
    which inputs are multiplied."""
    wanted = getattr(options, "reduceOp", options)
    kind = getattr(wanted, "op", wanted)
    known = _met.get(kind)
    if known is None:
        known = _operation(wanted, kind)
        if kind != torch.distributed.ReduceOp.PREMUL_SUM:  # its factors differ
            _met[kind] = known
    return known


def _operation(wanted: Any, kind: Any) -> tuple[Any, float]:
    name = getattr(kind, "name", str(kind))
    if name not in _OPS:
        raise ValueError(
            f"ReduceOp.{name} is not an operator of the tutti backend ({', '.join(_OPS)})"
        )
    scale = 1.0
    if name == "PREMUL_SUM":
        scale = _factor(wanted)
    return _OPS[name], scale


def _factor(wanted: Any) -> float:
    state = wanted.__getstate__()
    if not isinstance(state, tuple) or len(state) < 2:
        raise ValueError(
            f"torch {torch.__version__} does not pass the factor of a PREMUL_SUM to Python; "
            "multiply the tensor and use SUM"
        )
    factor = state[1]
    return float(factor.item() if isinstance(factor, Tensor) else factor)


def is_dense(tensor: Tensor) -> bool:
    """Returns whether the elements fill one block of memory without gaps, in any order of
    dimensions."""
    if tensor.is_contiguous():
        return True
    extents = sorted((step, extent) for step, extent in zip(tensor.stride(), tensor.shape) if extent != 1)
    expected = 1
    for step, extent in extents:
        if step != expected:
            return False
        expected *= extent
    return True


def check(call: str, tensor: Tensor, what: str = "tensor") -> None:
    """Raises an error of one line for a tensor that no call supports."""
    if tensor.layout != torch.strided:
        raise ValueError(f"{call}: {what} is {tensor.layout}; only all_reduce takes sparse tensors")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"{call}: {what} is on {tensor.device}; the tutti backend takes tensors on cpu and cuda"
        )
    if not is_dense(tensor):
        raise ValueError(
            f"{call}: {what} of shape {tuple(tensor.shape)} has strides {tensor.stride()} with gaps; "
            "tensors must be contiguous, so pass tensor.contiguous()"
        )


def memory(tensor: Tensor, shape: Optional[Sequence[int]] = None) -> tutti.Memory:
    """Returns the memory of a contiguous tensor with its own dtype. Its shape is one row of
    elements unless a shape is given."""
    return _memory(tensor, word_of(tensor.dtype), (tensor.numel(),) if shape is None else shape)


def word_of(dtype: torch.dtype) -> Any:
    """Returns Tutti's name of a dtype that it can reduce."""
    word = _DTYPES.get(dtype)
    if word is None:
        raise ValueError(f"tensors of {dtype} can be moved but not reduced")
    return word


def raw_memory(tensor: Tensor) -> tutti.Memory:
    """Like memory(), for operations that only move data. Dtypes that Tutti does not have (complex,
    float8) are sent as bytes."""
    return _memory(tensor, _DTYPES.get(tensor.dtype, "raw"), (tensor.numel() * unit_of(tensor),))


def _has_word(dtype: torch.dtype) -> bool:
    """Returns whether rows can be sent with their own dtype; others are sent as bytes. DLPack of
    torch 1.13 has no bool, and Tutti has no complex numbers."""
    return dtype in _DTYPES and dtype != torch.bool


def memory_of_rows(tensor: Tensor) -> tutti.Memory:
    """Like raw_memory(), with the tensor's shape, for operations whose ranks may have different
    numbers of rows."""
    if _has_word(tensor.dtype):
        return _memory(tensor, word_of(tensor.dtype), tuple(tensor.shape))
    return _memory(tensor, "raw", (*tensor.shape, tensor.element_size()))


def rows_from(result: tutti.Tensor, like: Tensor) -> Tensor:
    """Returns a tensor on the memory of `result`, which is the result of an operation on
    memory_of_rows(). Its rows have the same shape as those of `like`."""
    shape = (result.shape[0], *like.shape[1:])
    if 0 in shape:
        return like.new_empty(shape)
    taken = torch.utils.dlpack.from_dlpack(result)
    if not _has_word(like.dtype):
        taken = taken.reshape(-1).view(like.dtype)
    return taken.reshape(shape)


def fetch(result: tutti.Tensor, target: Tensor) -> None:
    """Copies a result in the library's memory into a contiguous tensor with the same number of
    bytes."""
    if target.numel() == 0:
        return
    came = torch.utils.dlpack.from_dlpack(result).reshape(-1)
    flat = target.detach().view(-1)
    _copy(flat, came if came.dtype == flat.dtype else came.view(flat.dtype))


def unit_of(tensor: Tensor) -> int:
    """Returns the number of elements that are sent for one element of this tensor."""
    return 1 if tensor.dtype in _DTYPES else tensor.element_size()


def _memory(tensor: Tensor, word: Any, shape: Sequence[int]) -> tutti.Memory:
    if tensor.is_cuda:
        stream = torch.cuda.current_stream(tensor.device)
        return tutti.Memory(
            tensor.data_ptr(),
            shape,
            word,
            device="cuda",
            index=tensor.device.index or 0,
            stream=stream.cuda_stream,
            owner=tensor,
        )
    return tutti.Memory(tensor.data_ptr(), shape, word, owner=tensor)


def in_place(call: str, tensor: Tensor) -> tuple[Tensor, Optional[Callable[[], None]]]:
    """Returns a contiguous tensor to use instead of the caller's, and a function that copies its
    result back. Elements are sent in row-major order, whatever the strides on each rank are."""
    if tensor.layout != torch.strided or not tensor.is_cpu or not tensor.is_contiguous():
        check(call, tensor)  # checks only here, because most tensors are fine
    tensor = tensor.detach()  # keeps the memory, even if the caller's tensor gets another
    if tensor.is_contiguous():
        return tensor, None
    copy = tensor.contiguous()
    return copy, lambda: _copy(tensor, copy)


def _copy(target: Tensor, source: Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)


def as_input(call: str, tensor: Tensor) -> Tensor:
    """Returns a contiguous tensor with the same elements, which is only read."""
    check(call, tensor, "input")
    return tensor.detach().contiguous()


def single(call: str, tensors: Any) -> Tensor:
    """Returns the only tensor of a list. torch's calls for several devices in one process are not
    supported."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(
            f"{call}: got {len(tensors)} tensors, expected one; a process has one "
            "device here, so make one call for each tensor"
        )
    tensor: Tensor = tensors[0]
    return tensor


class Parts:
    """Several tensors one after another in one flat tensor. They are the inputs of a call that
    deals them to the ranks, or the outputs of a call, which are filled from the flat tensor."""

    def __init__(self, call: str, tensors: Sequence[Tensor], *, filled: bool) -> None:
        for index, tensor in enumerate(tensors):
            check(call, tensor, f"tensor {index}")
            if tensor.dtype != tensors[0].dtype:
                raise ValueError(
                    f"{call}: tensor {index} is {tensor.dtype} and tensor 0 {tensors[0].dtype}; "
                    "all must have the same dtype"
                )
        self._tensors = [tensor.detach() for tensor in tensors]
        self.counts = [tensor.numel() for tensor in tensors]
        self._aliased = self._neighbours()
        if self._aliased is not None:
            self.flat = self._aliased
        elif filled:
            self.flat = torch.cat([tensor.reshape(-1) for tensor in self._tensors])
        else:
            like = self._tensors[0]
            self.flat = torch.empty(sum(self.counts), dtype=like.dtype, device=like.device)

    def _neighbours(self) -> Optional[Tensor]:
        """If the tensors are one after another in memory, as torch.chunk leaves them, returns that
        memory."""
        first = self._tensors[0]
        address = first.data_ptr()
        for tensor in self._tensors:
            if not tensor.is_contiguous() or tensor.data_ptr() != address:
                return None
            if _storage_address(tensor) != _storage_address(first):
                return None
            address += tensor.numel() * tensor.element_size()
        return first.as_strided((sum(self.counts),), (1,))

    def splits(self) -> list[int]:
        """Returns the number of elements of each tensor, as raw_memory() counts them."""
        return [count * unit_of(self.flat) for count in self.counts]

    def hand_out(self) -> None:
        """Copies the received elements into the caller's tensors."""
        if self._aliased is not None:
            return
        begin = 0
        for tensor, count in zip(self._tensors, self.counts):
            _copy(tensor, self.flat[begin : begin + count].view(tensor.shape))
            begin += count


def _storage_address(tensor: Tensor) -> int:
    asked: Any = tensor
    storage = asked.untyped_storage() if hasattr(asked, "untyped_storage") else asked.storage()
    return int(storage.data_ptr())


def seconds_of(timeout: Any, default: float) -> float:
    """Returns the seconds of a c10d timeout. No timeout, or one that is not positive, means the
    group's own."""
    if timeout is None:
        return default
    seconds = float(timeout.total_seconds())
    return seconds if seconds > 0 else default
