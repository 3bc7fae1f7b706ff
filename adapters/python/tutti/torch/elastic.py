"""Training that continues after the loss of ranks, as far as Communicator.shrink() allows: the
survivors continue from the last commit. A lost rank is not replaced, and no rank is added."""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional, TypeVar

import torch
import tutti
from torch.utils.data import Sampler

from .horovod import _world
from .horovod._functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from .horovod._world import HorovodInternalError, HostsUpdatedInterrupt

T = TypeVar("T")


class State:
    """State that must be the same on all ranks, and the calls that save, restore and synchronize
    it. A program may derive its own class."""

    def __init__(self, **_: Any) -> None:
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Registers functions that are called after ranks were lost. size() has changed then, and a
        learning rate may depend on it."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any = None, update_res: Any = None) -> None:
        """Never called, because the launcher determines the hosts."""

    def commit(self) -> None:
        """Saves the state to which restore() returns."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Never raises, because no host is added."""

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        pass


class ObjectState(State):
    """Plain values, which are attributes: ObjectState(epoch=0).epoch."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._saved = copy.deepcopy(values)
        self.__dict__.update(values)

    def save(self) -> None:
        self._saved = copy.deepcopy({name: getattr(self, name) for name in self._saved})

    def restore(self) -> None:
        self.__dict__.update(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives all ranks rank 0's values and saves them."""
        values = {name: getattr(self, name) for name in self._saved}
        self.__dict__.update(broadcast_object(values, 0, "elastic.values"))
        ObjectState.save(self)


class TorchState(ObjectState):
    """A model, an optimizer and samplers beside plain values. Any other named value that has a
    state_dict() is kept as well."""

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        kept = {name: value for name, value in values.items() if hasattr(value, "state_dict")}
        if model is not None:
            kept["model"] = model
        if optimizer is not None:
            kept["optimizer"] = optimizer
        super().__init__(**{name: v for name, v in values.items() if name not in kept})
        self._kept = kept
        self.__dict__.update(kept)
        self._save_kept()

    def _save_kept(self) -> None:
        self._saved_states = {
            name: copy.deepcopy(value.state_dict()) for name, value in self._kept.items()
        }

    def save(self) -> None:
        super().save()
        self._save_kept()

    def restore(self) -> None:
        super().restore()
        for name, value in self._kept.items():
            value.load_state_dict(copy.deepcopy(self._saved_states[name]))

    def sync(self) -> None:
        for name, value in sorted(self._kept.items()):
            if isinstance(value, ElasticSampler):
                value.sync(f"elastic.{name}")
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, 0)
            elif isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), 0)
            else:
                state = broadcast_object(value.state_dict(), 0, f"elastic.{name}")
                value.load_state_dict(state)
        super().sync()
        self._save_kept()

    def reset(self) -> None:
        for value in self._kept.values():
            if isinstance(value, ElasticSampler):
                value.reset()


class ElasticSampler(Sampler):  # type: ignore[type-arg]
    """Deals to the current ranks those rows of a data set on which no rank has trained in this
    epoch."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch with all rows. Call it at the end of an epoch."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that this rank has trained on the batch with this index."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        begin = batch_idx * batch_size
        return self.indices[begin : begin + batch_size]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_indices": self.processed_indices}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def sync(self, name: Optional[str] = None) -> None:
        """Marks the rows on which any rank has trained as done on all ranks."""
        states = allgather_object(self.state_dict(), name)
        done: set[int] = set()
        for state in states:
            done |= state["processed_indices"]
        self.load_state_dict({"epoch": states[0]["epoch"], "processed_indices": done})

    def reset(self) -> None:
        self.num_replicas, self.rank = _world.size(), _world.rank()
        self.remaining_indices = [
            index for index in range(len(self.dataset)) if index not in self.processed_indices
        ]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        everyone = list(self.remaining_indices)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(everyone)
        # Some rows are dealt twice, so that all ranks have equal numbers.
        while everyone and len(everyone) < self.total_size:
            everyone += everyone[: self.total_size - len(everyone)]
        self.indices = everyone[self.rank : self.total_size : self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.indices))

    def __len__(self) -> int:
        return len(self.indices)


def run(function: Callable[..., T]) -> Callable[..., T]:
    """Decorates function(state, ...). After a loss the survivors restore the state, form a smaller
    world and call the function again. tutti-run must let them live: `tutti-run --keep-going`, or
    `python -m tutti.horovodrun --min-np N`."""

    @functools.wraps(function)
    def wrapper(state: Any, *arguments: Any, **named: Any) -> T:
        while True:
            try:
                state.sync()
                return function(state, *arguments, **named)
            except HorovodInternalError as error:
                if not isinstance(error.__cause__, tutti.PeerError):
                    raise  # no rank was lost, so the error would repeat
                _go_on_without_the_lost()
                state.restore()
            except HostsUpdatedInterrupt:
                pass
            state.on_reset()

    return wrapper


def _go_on_without_the_lost() -> None:
    lost = _world.communicator()
    try:
        survivors = lost.shrink()
    except tutti.Error as error:
        raise HorovodInternalError(f"the survivors cannot go on: {error}") from error
    _world.shutdown()
    _world.enter(survivors)
