"""The state of this API: its one communicator, its process sets, and what was built."""

from __future__ import annotations

import importlib
import itertools
import os
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional, TypeVar, Union

import tutti

from .._calls import whole, whole_numbers

T = TypeVar("T")


class HorovodInternalError(RuntimeError):
    """An operation failed. The text is that of Tutti's error, which is the __cause__."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed. Only a program itself raises it, because Tutti starts no new
    ranks."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Exists for scripts that name it. It is never raised, because the package and its library
    always have one version."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name}: built with {version}, and {installed_version} is installed")
        self.name, self.version, self.installed_version = name, version, installed_version


class ProcessSet:
    """Ranks that run operations together. A rank outside of the set may hold it, but not make calls
    with it. `process_set_id` is None until init() or add_process_set() has registered the set."""

    process_set_id: Optional[int] = None
    ranks: Optional[list[int]] = None

    def __init__(self, ranks_or_comm: Any) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            ranks_or_comm = _ranks_of(ranks_or_comm)
        ranks = sorted(whole_numbers(ranks_or_comm, "the ranks of a ProcessSet"))
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"a ProcessSet is made of ranks, each once; got {ranks}")
        self.ranks = ranks

    def size(self) -> int:
        """Returns the number of ranks in the set, on each rank of the world."""
        return len(_known(self).everyone)

    def rank(self) -> Optional[int]:
        """Returns this rank's index in the set, or None if it is not in the set."""
        known = _known(self)
        return known.everyone.index(_opened().rank) if self.included() else None

    def included(self) -> bool:
        return _known(self).comm is not None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


class _Known:
    """A process set for which the ranks have made a communicator."""

    def __init__(
        self,
        comm: Optional[tutti.Communicator],
        everyone: list[int],
        optimizers: Optional[Iterator[int]] = None,
    ) -> None:
        self.comm = comm  # None on a rank outside of the set
        self.optimizers = itertools.count() if optimizers is None else optimizers  # their numbers
        self.everyone = everyone  # global ranks, in order
        self.objects: list[ProcessSet] = []
        self._lock = threading.Lock()
        self._unnamed: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def name(self, kind: str, name: Optional[str]) -> str:
        """Returns the full name. Unnamed operations of a kind are numbered; ranks make them in one
        order."""
        if name is not None:
            return f"{kind}.{name}"
        with self._lock:
            return f"{kind}.noname.{next(self._unnamed[kind])}"


class _World:
    def __init__(self, comm: tutti.Communicator) -> None:
        self.comm = comm
        self.local_ranks = comm.allgather_object("local ranks", (comm.local_rank, comm.local_size))
        self.sets: dict[int, _Known] = {0: _Known(comm, list(range(comm.size)), _optimizers)}
        self.numbers = itertools.count(1)


_world: Optional[_World] = None
# The number of the next optimizer over all ranks. It continues after a loss of ranks, because the
# survivors keep their optimizers.
_optimizers: Iterator[int] = itertools.count()


def init(
    comm: Any = None, process_sets: Union[None, str, Sequence[ProcessSet]] = None
) -> None:
    """Finds the other ranks. `comm` is a list of ranks, of which a world is made (every rank must
    call), or a communicator of mpi4py. `process_sets` are registered from the start;
    add_process_set registers later ones. It may be called twice."""
    global _optimizers
    if _world is not None:
        return
    _optimizers = itertools.count()
    found = tutti.Communicator.create()
    if comm is not None:
        ranks = (
            whole_numbers(comm, "the ranks of init()")
            if isinstance(comm, Iterable)
            else _ranks_of(comm)
        )
        if ranks and ranks != list(range(found.size)):
            part = found.split(0 if found.rank in ranks else -1, _place(ranks, found.rank))
            if part is None:
                found.close()
                raise ValueError(f"init: rank {found.rank} is not in comm, {ranks}")
            _keep_until_shutdown.append(found)
            found = part
    enter(found)
    strangers = sorted(name for name in os.environ if name.startswith("HOROVOD_"))
    if strangers and found.rank == 0:
        warnings.warn(
            f"{', '.join(strangers)}: set, but not used; their replacements are in the table "
            "of docs/coming-from.md, and `tutti-run --options` lists all settings",
            stacklevel=2,
        )
    if process_sets is not None and not isinstance(process_sets, str):
        for one in process_sets:
            _add(one, may_be_known=True)


_keep_until_shutdown: list[tutti.Communicator] = []  # the world has some of their ranks


def enter(comm: tutti.Communicator) -> None:
    """Makes this communicator the world."""
    global _world
    _world = _World(comm)
    global_process_set.ranks = list(range(comm.size))
    _world.sets[0].objects.append(global_process_set)


def shutdown() -> None:
    """Leaves the world. It does nothing before init, or when it is called again."""
    global _world
    world, _world = _world, None
    if world is None:
        return
    world.sets[0].objects.remove(global_process_set)
    for known in world.sets.values():
        _invalidate(known)
    for known in reversed(world.sets.values()):
        if known.comm is not None:
            known.comm.close()
    while _keep_until_shutdown:
        _keep_until_shutdown.pop().close()
    global_process_set.ranks = []


def is_initialized() -> bool:
    return _world is not None


def _opened() -> tutti.Communicator:
    return _entered().comm


def _entered() -> _World:
    if _world is None:
        raise ValueError("Horovod's API has not been initialized; call init() of tutti.torch first")
    return _world


def communicator() -> tutti.Communicator:
    return _opened()


def rank() -> int:
    return _opened().rank


def size() -> int:
    return _opened().size


def local_rank() -> int:
    return _opened().local_rank


def local_size() -> int:
    return _opened().local_size


def cross_rank() -> int:
    """Returns this rank's index among the ranks of other hosts that have the same local rank."""
    world = _entered()
    before = world.local_ranks[: world.comm.rank]
    return sum(local == world.comm.local_rank for local, _ in before)


def cross_size() -> int:
    world = _entered()
    return sum(local == world.comm.local_rank for local, _ in world.local_ranks)


def is_homogeneous() -> bool:
    """Returns whether all hosts have the same number of ranks."""
    return len({count for _, count in _entered().local_ranks}) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """`mark_cycles` has no effect, because there are no cycles."""
    _opened().start_timeline(file_path)


def stop_timeline() -> None:
    _opened().stop_timeline()


# --- process sets ---


def _ranks_of(comm: Any) -> list[int]:
    """Returns the ranks in the world of all members of a communicator of mpi4py."""
    try:
        MPI: Any = importlib.import_module("mpi4py.MPI")
        return list(MPI.Group.Translate_ranks(comm.group, None, MPI.COMM_WORLD.group))
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{comm!r} is neither a list of ranks nor a communicator of mpi4py ({error})"
        ) from error


def _place(ranks: Sequence[int], rank: int) -> int:
    return ranks.index(rank) if rank in ranks else 0


def _known(process_set: ProcessSet) -> _Known:
    number = process_set.process_set_id
    known = None if number is None else _entered().sets.get(number)
    if known is None:
        raise ValueError(
            f"{process_set} is not known; pass it to init() or add_process_set() on every rank"
        )
    return known


def members(process_set: ProcessSet) -> tuple[tutti.Communicator, _Known]:
    """Returns the communicator of a set, and the set."""
    known = _known(process_set)
    if known.comm is None:
        raise ValueError(f"rank {rank()} is not a member of {process_set}")
    return known.comm, known


def next_optimizer(process_set: ProcessSet) -> int:
    """Returns the number of the next optimizer. It is equal on all ranks of a set, because they
    wrap their optimizers in one order."""
    return next(_known(process_set).optimizers)


def place_of(root_rank: int, process_set: ProcessSet) -> int:
    """Returns the index in the set of a root, which is given by its rank in the world."""
    everyone = _known(process_set).everyone
    root_rank = whole(root_rank, "root_rank")
    if root_rank not in everyone:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {everyone}")
    return everyone.index(root_rank)


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Registers a set. Every rank of the world calls it with the same ranks."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    return _add(process_set, may_be_known=False)


def _add(process_set: ProcessSet, may_be_known: bool) -> ProcessSet:
    world = _entered()
    ranks = list(process_set.ranks or [])
    if not ranks or ranks[0] < 0 or ranks[-1] >= world.comm.size:
        raise ValueError(f"a process set of ranks {ranks}: there are ranks 0 to {size() - 1}")
    for number, known in world.sets.items():
        if known.everyone == ranks:
            if may_be_known:
                known.objects.append(process_set)
                process_set.process_set_id = number
                return process_set
            raise ValueError(f"ranks {ranks} are process set {number} already")
    part = guarded(lambda: world.comm.split(0 if world.comm.rank in ranks else -1))
    number = next(world.numbers)
    known = _Known(part, ranks)
    known.objects.append(process_set)
    world.sets[number] = known
    process_set.process_set_id = number
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set. Every rank calls it, and the object cannot be used afterwards. Returns False
    for the global set."""
    known = _known(process_set)
    if process_set.process_set_id == 0:
        return False
    del _entered().sets[process_set.process_set_id]  # type: ignore[arg-type]
    if known.comm is not None:
        known.comm.close()
    _invalidate(known)
    return True


def _invalidate(known: _Known) -> None:
    for process_set in known.objects:
        process_set.process_set_id = None
        process_set.ranks = None


def process_set_by_id(process_set_id: int) -> ProcessSet:
    process_set_id = whole(process_set_id, "process_set_id")
    known = _entered().sets.get(process_set_id)
    if known is None:
        raise ValueError(f"there is no process set {process_set_id}")
    return known.objects[0]


def process_sets() -> list[ProcessSet]:
    return [known.objects[0] for _, known in sorted(_entered().sets.items())]


def guarded(call: Callable[[], T]) -> T:
    """Calls `call`. Refused arguments stay a ValueError; failures become Horovod's error."""
    try:
        return call()
    except (tutti.InvalidArgumentError, tutti.DuplicateNameError):
        raise
    except tutti.Error as error:
        raise HorovodInternalError(str(error)) from error


# --- what was built; scripts ask for it ---


def mpi_threads_supported() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Returns False, because no part of MPI is linked. mpirun can start the ranks nevertheless."""
    return False


def gloo_enabled() -> bool:
    """Returns True. In Horovod this means that it runs without MPI, as Tutti does."""
    return True


def gloo_built(verbose: bool = False) -> bool:
    return True


def nccl_built(verbose: bool = False) -> int:
    """Returns 0, because nothing is built in. The backend nccl is a plugin that is loaded when it
    is used."""
    return 0


def ddl_built(verbose: bool = False) -> bool:
    return False


def ccl_built(verbose: bool = False) -> bool:
    return False


def cuda_built(verbose: bool = False) -> bool:
    return False


def rocm_built(verbose: bool = False) -> bool:
    return False
