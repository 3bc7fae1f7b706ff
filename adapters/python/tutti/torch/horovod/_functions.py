"""Calls that a program makes once before it trains. They give one rank's parameters, optimizer
state and objects to all ranks."""

from __future__ import annotations

import pickle
from typing import Any, Optional

import torch
from torch import Tensor

from .._memory import in_place
from ._handles import synchronize
from ._operations import broadcast_async_
from ._world import (
    HorovodInternalError,
    ProcessSet,
    global_process_set,
    guarded,
    members,
    place_of,
)

try:
    import cloudpickle as _pickle  # type: ignore[import-not-found]
except ImportError:
    _pickle = pickle


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Broadcasts in place. `params` is model.state_dict(), or a list of tensors or of (name,
    tensor)."""
    if isinstance(params, dict):
        pairs = sorted(params.items())
    elif isinstance(params, list):
        pairs = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    else:
        raise ValueError(f"broadcast_parameters takes a dict or a list, not {type(params).__name__}")
    _broadcast_all(pairs, root_rank)


def _broadcast_all(pairs: Any, root_rank: int) -> None:
    begun = []
    for name, tensor in pairs:
        if not isinstance(tensor, Tensor):
            continue
        dense, back = in_place("broadcast_parameters", tensor)
        begun.append((broadcast_async_(dense, root_rank, name), back))
    for handle, back in begun:
        synchronize(handle)
        if back is not None:
            back()


class _Place:
    """Takes the place of a tensor in the skeleton of a state."""

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index, self.shape, self.dtype = index, tuple(tensor.shape), tensor.dtype


def _take_apart(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1, value)
    if isinstance(value, dict):
        return {key: _take_apart(part, tensors) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_apart(part, tensors) for part in value)
    return value


def _put_together(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _put_together(part, tensors) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_together(part, tensors) for part in value)
    return value


def _places(value: Any) -> list[_Place]:
    if isinstance(value, _Place):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict) or type(value) in (list, tuple):
        return [place for part in parts for place in _places(part)]
    return []


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None
) -> None:
    """Gives every rank's optimizer the state and options of the root's. The other ranks' optimizers
    need not have a state yet, and no step is made to create one, so `model` has no effect."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("broadcast_optimizer_state: the state of L-BFGS cannot be broadcast")
    tensors: list[Tensor] = []
    skeleton = _take_apart(optimizer.state_dict(), tensors)
    is_root = members(global_process_set)[0].rank == root_rank
    skeleton = broadcast_object(skeleton, root_rank, "optimizer_state")
    if not is_root:
        places = sorted(_places(skeleton), key=lambda place: place.index)
        tensors = [torch.empty(place.shape, dtype=place.dtype) for place in places]
    pairs = [(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)]
    _broadcast_all(pairs, root_rank)
    if not is_root:
        optimizer.load_state_dict(_put_together(skeleton, tensors))


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object. It is sent by cloudpickle if that is installed."""
    comm, known = members(process_set)
    root = place_of(root_rank, process_set)
    full = known.name("object", name)
    return _waited(lambda: comm.broadcast_object(full, obj, root, pickler=_pickle))


def allgather_object(
    obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks in order."""
    comm, known = members(process_set)
    full = known.name("objects", name)
    return list(_waited(lambda: comm.allgather_object(full, obj, pickler=_pickle)))


def _waited(call: Any) -> Any:
    import tutti

    try:
        return guarded(call)
    except (tutti.InvalidArgumentError, tutti.DuplicateNameError) as error:
        raise HorovodInternalError(str(error)) from error
