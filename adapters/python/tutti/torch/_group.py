"""The process group of the tutti backend, and its registration with torch."""

from __future__ import annotations

import atexit
import datetime
import threading
import time
import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist
import tutti
from torch._C import _distributed_c10d as c10d
from tutti._errors import ending

from ._collectives import Collectives
from ._point_to_point import PointToPoint
from ._store import TorchStore, connect
from ._version import torch_version
from ._work import wait_for_helpers

# A Python class can be a Backend from torch 2.14 on. In earlier versions this class is the whole
# ProcessGroup.
_Base: Any = c10d.Backend if torch_version() >= (2, 14) else c10d.ProcessGroup

_live: "weakref.WeakSet[Group]" = weakref.WeakSet()
# With TORCH_DISTRIBUTED_DEBUG=DETAIL only C++ holds a Backend, and Python would collect its Python
# half. destroy_process_group shuts these groups down.
_held: "set[Group]" = set()


class Group(Collectives, PointToPoint, _Base):  # type: ignore[misc]
    """One c10d group over a communicator of its own. Any thread may use it, as long as all ranks
    make the calls of a group in one order. The destructor, shutdown(), abort(), the end of the
    program and destroy_process_group (from torch 2.7 on) close it. Then threads that wait here get
    ClosedError, and the other ranks learn that this one left."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        group: str,
        timeout: datetime.timedelta,
        settings: dict[str, Any],
    ) -> None:
        _Base.__init__(self, rank, size)
        self._torch_store = store
        self._rank = rank
        self._size = size
        self._group = group
        self._seconds = timeout.total_seconds()
        self._settings = settings
        # Each name is used once, so no step could be replayed.
        self._comm, self._store = connect(
            store, group, rank, size, self._seconds, {"replay": False, **settings}
        )
        self._named: Optional[tutti.Communicator] = None
        self._naming = threading.Lock()
        self._is_closed = False
        self._barriers = 0
        self._models = 0
        self._begin_numbers()
        self._begin_messages()
        _live.add(self)
        if not issubclass(_Base, c10d.ProcessGroup):
            _held.add(self)

    @property
    def communicator(self) -> tutti.Communicator:
        """The communicator of the group's own calls."""
        return self._comm

    def named_communicator(self) -> tutti.Communicator:
        """Returns a communicator for gradients. Its operations have the same names in every step,
        so that steps are replayed. All ranks of the group make it together, at the first call."""
        with self._naming:
            if self._is_closed:
                raise tutti.ClosedError(f"rank {self._rank}: group {self._group} is closed")
            if self._named is None:
                named, _ = connect(
                    c10d.PrefixStore("named", self._torch_store),
                    f"{self._group} (named)",
                    self._rank,
                    self._size,
                    self._seconds,
                    self._settings,
                )
                if self._is_closed:  # another thread has closed it meanwhile
                    named.close()
                    raise tutti.ClosedError(f"rank {self._rank}: group {self._group} is closed")
                self._named = named
            return self._named

    @property
    def seconds(self) -> float:
        """The timeout of a call of this group."""
        return self._seconds

    def next_model(self) -> int:
        """Returns the number of the next model that the ranks wrap over this group. They wrap
        models in one order."""
        with self._naming:
            self._models += 1
            return self._models - 1

    # --- called by c10d ---

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "tutti"

    getBackendName = name
    _get_backend_name = name

    # torch asks a ProcessGroup's C++ backends for the following values, and this group has no such
    # backends. torch wants its own name for the group (2.4), and the devices of its tensors
    # (async_save of torch's checkpoints).
    if issubclass(_Base, c10d.ProcessGroup):
        _torchs_name = ""

        def _set_group_name(self, name: str) -> None:
            self._torchs_name = name
            super()._set_group_name(name)

        @property
        def group_name(self) -> str:
            return self._torchs_name

        @property
        def _device_types(self) -> list[torch.device]:
            return [torch.device("cpu"), torch.device("cuda")]

        def _get_backend(self, device: torch.device) -> Any:
            return self

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Rank 0 waits for each rank's message in the store, and announces to all ranks which ranks
        are missing. No operation is pending afterwards, so the group can go on."""
        if isinstance(timeout, c10d.BarrierOptions):
            timeout = timeout.timeout
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        if seconds < 0:  # torch's value for no timeout
            seconds = self._seconds
        key = f"tutti/monitored/{self._barriers}"
        self._barriers += 1
        if self._rank != 0:
            self._store.set(f"{key}/{self._rank}", b"here")
            word = self._store.wait(f"{key}/verdict", seconds * 1.25 + 1)
            if word is None:
                raise tutti.TimedOutError(
                    f"rank {self._rank}: rank 0 did not pass the monitored barrier of group "
                    f"{self._group} within {seconds:g} s"
                )
            if word != b"all":
                raise tutti.TimedOutError(f"rank {self._rank}: {word.decode()}")
            return
        # The text uses torch's words, which programs look for.
        end = time.monotonic() + seconds
        missing = []
        for rank in range(1, self._size):
            left = max(end - time.monotonic(), 0.0)
            if self._store.wait(f"{key}/{rank}", left) is None:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            text = (
                f"{_ranks(missing)} failed to pass monitoredBarrier of group {self._group} within "
                f"{seconds:g} s; see what it does instead"
            )
            if seconds == 0:
                text = f"Rank 0 timed out in monitoredBarrier, which was given no time: {text}"
            self._store.set(f"{key}/verdict", text.encode())
            raise tutti.TimedOutError(f"rank 0: {text}")
        self._store.set(f"{key}/verdict", b"all")

    # The sends and receives of a batch begin when they are called, so there is nothing to do at the
    # batch's begin and end.
    def start_coalescing(self, *_: Any) -> None:
        pass

    def end_coalescing(self, *_: Any) -> None:
        return None

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    # --- copies ---

    # A group is this process's membership. A copy of an object that holds the group has the same
    # membership, so it holds the same group.
    def __copy__(self) -> Group:
        return self

    def __deepcopy__(self, memo: Any) -> Group:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as the default group of the process that reads the file."""
        if not dist.is_initialized() or group_of() is not self:
            raise TypeError(
                f"rank {self._rank}: group {self._group} cannot be pickled, only the default group "
                "can; save module.state_dict()"
            )
        return _default_group, ()

    # --- closing ---

    def close(self, error: Optional[BaseException] = None) -> None:
        """May be called twice, and by any thread. `error`: see tutti.Communicator.close()."""
        _held.discard(self)
        self._is_closed = True
        named, self._named = self._named, None
        if named is not None:
            named.close(error)
        self._comm.close(error)

    shutdown = close
    abort = close

    def __del__(self) -> None:
        if hasattr(self, "_naming"):
            self.close()


def _ranks(ranks: list[int]) -> str:
    names = ", ".join(str(rank) for rank in ranks)
    return f"Rank {names}" if len(ranks) == 1 else f"Ranks {names}"


def create(options: Any, settings: Any = None) -> Group:
    """Makes a group. torch calls it for init_process_group and new_group. Their `pg_options` is a
    dict of Tutti's settings: {"backend": "tcp"}."""
    if settings is not None and not isinstance(settings, dict):
        raise ValueError(
            f"pg_options is {type(settings).__name__}; the tutti backend takes a dict of Tutti's "
            'settings, such as {"backend": "tcp"}'
        )
    return Group(
        options.store,
        options.group_rank,
        options.group_size,
        str(options.group_id) or "0",
        options.timeout,
        dict(settings or {}),
    )


def register() -> None:
    """Registers the backend for init_process_group("tutti"). It may be called twice."""
    if hasattr(dist.Backend, "TUTTI"):
        return
    if torch_version() >= (2, 0):
        dist.Backend.register_backend("tutti", create, extended_api=True, devices=["cpu", "cuda"])
    else:
        dist.Backend.register_backend("tutti", create, extended_api=True)


def _default_group() -> Optional[Group]:
    return group_of() if dist.is_initialized() else None


def group_of(group: Any = None) -> Group:
    """Returns the Group behind the `group` argument of torch's calls; None is the default group."""
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    if isinstance(group, Group):
        return group
    for device in ("cpu", "cuda"):
        try:
            backend = group._get_backend(torch.device(device))
        except (AttributeError, RuntimeError):
            continue  # torch 1.13, or no backend for that device
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        if isinstance(backend, Group):
            return backend
    raise ValueError(
        f"the process group is {type(group).__name__}, not one of the tutti backend; call "
        'init_process_group("tutti") or new_group(backend="tutti")'
    )


@atexit.register
def _close_all() -> None:
    """Closes all groups before the interpreter stops the library's callbacks."""
    error = ending()
    for group in list(_live):
        group.close(error)
    wait_for_helpers(5)
