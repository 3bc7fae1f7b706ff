"""Tutti for Python: collectives on anything with the buffer protocol or DLPack.

Names match operations over all ranks; ranks may submit them in any order. What a call is given
belongs to the operation until its Work is done: the Work keeps it alive, and an object that exports
a buffer cannot be resized meanwhile.
"""

import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, final

T = TypeVar("T")

__version__: str

# A numpy array, an array.array, a memoryview, a torch tensor, a Memory, a Tensor: whatever exports
# a buffer, a `__dlpack__` or is a Memory. Dense and row-major, or it is refused in one line.
Array: TypeAlias = Any
DType: TypeAlias = Literal[
    "f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "raw"
]
Op: TypeAlias = Literal["sum", "average", "min", "max", "product", "band", "bor", "bxor"]
Wire: TypeAlias = Literal["f16", "bf16"]
# Settings by their variables' names, in small letters and without TUTTI_; values as the variables take
# them: {"fusion_bytes": "1M"}.
Settings: TypeAlias = Mapping[str, str | int | float | bool]

# --- errors: one class a code, each with the library's one line ---------------------------------

class Error(RuntimeError):
    code: int  # as in <tutti.h>
    rank: int  # the rank that the error is about, or -1
    tensor: str  # the tensor that it is about, or ""

class InvalidArgumentError(Error, ValueError): ...
class MismatchError(Error): ...
class DuplicateNameError(Error, ValueError): ...
class TimedOutError(Error, TimeoutError): ...
class PeerError(Error): ...  # the three that follow
class PeerLostError(PeerError): ...
class PeerSilentError(PeerError): ...
class PeerLeftError(PeerError): ...
class ClosedError(Error): ...  # after close, or in a fork
class AuthenticationError(Error): ...
class VersionError(Error): ...
class UnavailableError(Error): ...
class InputOutputError(Error): ...
class CorruptDataError(Error): ...
class OutOfMemoryError(Error, MemoryError): ...
class CallbackError(Error): ...
class InternalError(Error): ...

# --- memory --------------------------------------------------------------------------------------

@final
class Memory:
    """Memory by its address, for adapters that know it: no protocol is asked. Row-major and dense.
    `owner` is kept alive as long as this is. `stream`: the device's stream on which the contents
    become ready, as an integer."""

    def __init__(
        self,
        pointer: int,
        shape: Sequence[int],
        dtype: DType,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        index: int = 0,
        stream: int = 0,
        owner: object = None,
    ) -> None: ...
    pointer: int
    shape: tuple[int, ...]
    dtype: DType
    device: Literal["cpu", "cuda"]
    index: int
    stream: int

@final
class Tensor:
    """A result in the library's memory. It exports a writable buffer (not for bf16, of which
    Python's buffers know nothing) and DLPack: numpy.asarray(t), torch.from_dlpack(t)."""

    pointer: int
    shape: tuple[int, ...]
    dtype: DType
    nbytes: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(self, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def tobytes(self) -> bytes: ...

# --- works ---------------------------------------------------------------------------------------

@final
class Work:
    """The handle of an operation. Dropping it does not cancel: the operation goes on, and its
    memory is kept until it is done. Any thread."""

    name: str
    def wait(self, timeout: float | None = None) -> Any:
        """Returns result(), or raises the operation's Error. TimedOutError after `timeout` seconds:
        the operation goes on, and done() is still False. Ctrl-C raises KeyboardInterrupt; the
        operation goes on."""
    def done(self) -> bool:
        """Over, well or not. Never blocks."""
    def exception(self) -> Error | None:
        """Of an operation that is done: its error, if it has one. InvalidArgumentError before."""
    def result(self) -> Any:
        """Waits. What the operation left: the caller's own array of what it does in place or into
        `output`; else the Tensor that the library made, or a tuple of them; None of a barrier, or
        where this rank gets nothing."""
    def output(self, index: int = 0) -> Tensor:
        """Waits. A result in the library's memory (allgather, gather, scatter, reduce_scatter,
        alltoall, sparse_allreduce and join, when no `output` was given)."""
    def source(self) -> int:
        """Waits. Of a receive: the rank that sent; -1 of anything else."""
    def received_counts(self) -> tuple[int, ...]:
        """Waits. Rows that came from each rank (allgather, alltoall); of anything else none."""
    def add_done_callback(self, callback: Callable[[Work], object]) -> None:
        """Calls `callback(work)` once when the operation is over: at once and here if it is, else on
        the library's callback thread. What it raises is printed as unraisable. It must not wait for
        other works (CallbackError). None is called once the interpreter exits."""
    def __await__(self) -> Generator[Any, None, Any]:
        """In asyncio: the running loop goes on meanwhile; the value is result()."""

@final
class Declared:
    """A name looked up once (Communicator.declare). Dies with its communicator."""

    name: str

# --- stores --------------------------------------------------------------------------------------

class Store:
    """Where ranks meet: subclass it over a store of your own. Keys are str, values bytes. Any
    thread may call any method, also the library's background threads; what a method raises becomes
    an UnavailableError of the call that needed it. get, compare_set and add are needed, the others
    have defaults."""

    def get(self, key: str) -> bytes | None:
        """None if the key is not there. Does not wait."""
    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes:
        """Atomically: sets the key if its value is `expected` (None: if it is not there); returns
        the value that then stands."""
    def set(self, key: str, value: bytes) -> None: ...
    def add(self, key: str, amount: int) -> int:
        """Atomically adds to a decimal counter that starts at 0; returns the new value. What get()
        gives for that key is its digits."""
    def wait(self, key: str, seconds: float) -> bytes | None:
        """Waits for a key; None if it did not come in time."""
    def delete(self, key: str) -> None:
        """Default: the key stays."""
    def delete_prefix(self, prefix: str) -> None:
        """Default: the keys stay."""

@final
class MemoryStore:
    """The library's own store for ranks that are threads of this process."""

    def __init__(self) -> None: ...

# --- communicators -------------------------------------------------------------------------------

@final
class Communicator:
    """One member of a group of ranks that act together. `with` closes it. Any thread."""

    @staticmethod
    def create(
        settings: Settings | None = None,
        store: Store | MemoryStore | None = None,
        *,
        rank: int | None = None,
        size: int | None = None,
    ) -> Communicator:
        """Finds the other ranks by what the launcher says; alone it is one rank. With a store, rank
        and size are needed too: ranks as processes meet in one of their own, ranks as threads share
        a MemoryStore."""
    def close(self, error: BaseException | str | None = None) -> None:
        """Says goodbye; what is pending fails with ClosedError. Twice is fine. Any thread. `error`:
        because of which the program closes: the other ranks' errors tell it (one line, of which 400
        bytes count), and tutti-run names this rank as the one that failed first. A `with` statement
        that an exception leaves, and one that ends the program and is no SystemExit, say so by
        themselves."""
    def abort(self, error: BaseException | str | None = None) -> None:
        """close() by the name that it has in torch.distributed: the other ranks hear that this one
        left, those that wait here get ClosedError."""
    closed: bool
    def __enter__(self) -> Communicator: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None: ...

    rank: int
    size: int
    local_rank: int
    local_size: int
    hosts: int
    backend: str

    # --- matched by name; each returns at once ---

    def allreduce(
        self,
        name: str | Declared,
        tensor: Array,
        op: Op = "average",
        *,
        output: Array | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wire: Wire | None = None,
        priority: int = 0,
    ) -> Work:
        """In place, or into `output`, which is alike."""
    def grouped_allreduce(
        self,
        group: str,
        tensors: Mapping[str, Array] | Iterable[tuple[str, Array]],
        op: Op = "average",
        *,
        outputs: Sequence[Array] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wire: Wire | None = None,
        priority: int = 0,
    ) -> Work:
        """In place, or into `outputs`, one for each array; all or none, one Work. result(): the list
        of the arrays that hold the results."""
    def sparse_allreduce(
        self, name: str, indices: Array, values: Array, op: Op = "average"
    ) -> Work:
        """indices i64[k], values [k, ...]. result(): (indices, values) of all ranks."""
    def allgather(self, name: str | Declared, tensor: Array, *, output: Array | None = None) -> Work: ...
    def grouped_allgather(
        self,
        group: str,
        tensors: Mapping[str, Array] | Iterable[tuple[str, Array]],
        *,
        outputs: Sequence[Array] | None = None,
    ) -> Work: ...
    def broadcast(
        self,
        name: str | Declared,
        tensor: Array | None,
        root: int = 0,
        *,
        output: Array | None = None,
    ) -> Work:
        """In place, or root's `tensor` into the `output` of all."""
    def reduce(
        self,
        name: str | Declared,
        tensor: Array,
        root: int = 0,
        op: Op = "sum",
        *,
        output: Array | None = None,
    ) -> Work:
        """At root in place, or into `output`."""
    def gather(
        self, name: str | Declared, tensor: Array, root: int = 0, *, output: Array | None = None
    ) -> Work: ...
    def scatter(
        self,
        name: str | Declared,
        tensor: Array | None,
        root: int = 0,
        rows: Sequence[int] | None = None,
        *,
        output: Array | None = None,
    ) -> Work:
        """`tensor` counts at root only."""
    def reduce_scatter(
        self,
        name: str | Declared,
        tensor: Array,
        op: Op = "average",
        rows: Sequence[int] | None = None,
        *,
        output: Array | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wire: Wire | None = None,
        priority: int = 0,
    ) -> Work: ...
    def grouped_reduce_scatter(
        self,
        group: str,
        tensors: Mapping[str, Array] | Iterable[tuple[str, Array]],
        op: Op = "average",
        *,
        outputs: Sequence[Array] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wire: Wire | None = None,
        priority: int = 0,
    ) -> Work: ...
    def alltoall(
        self,
        name: str | Declared,
        tensor: Array,
        splits: Sequence[int] | None = None,
        *,
        output: Array | None = None,
    ) -> Work: ...
    def send(self, name: str | Declared, tensor: Array, to: int) -> Work: ...
    def recv(self, name: str | Declared, tensor: Array, source: int) -> Work:
        """Into `tensor`."""
    def recv_any(self, name: str, tensor: Array) -> Work:
        """From whichever rank sends this name here: Work.source(). Of several one is taken, the
        others wait for the next receive."""
    def barrier(self, name: str | Declared = "barrier") -> Work: ...
    def join(self) -> Work:
        """This rank is out of data: averages divide by those that are left. result(): the last rank
        to join, an int."""
    def declare(self, name: str, like: Array) -> Declared:
        """Looks a name up once; all kinds take it instead of the name, in place or with an
        output."""

    # --- blocking: every rank makes these in one order; in shared memory nothing is negotiated ---

    def allreduce_blocking(
        self, name: str, tensor: Array, op: Op = "average", *, output: Array | None = None
    ) -> None:
        """In place, or into `output`. KeyboardInterrupt is raised when the call is over."""
    def allreduce_value(self, name: str, value: float, op: Op = "average") -> float: ...
    def broadcast_blocking(self, name: str, tensor: Array, root: int = 0) -> None: ...
    def reduce_blocking(
        self,
        name: str,
        tensor: Array,
        root: int = 0,
        op: Op = "sum",
        *,
        output: Array | None = None,
    ) -> None: ...
    def allgather_blocking(
        self, name: str, tensor: Array, output: Array, rows: Sequence[int] | None = None
    ) -> None:
        """`rows`: of each rank, the same on all; None: as many of each."""
    def gather_blocking(
        self,
        name: str,
        tensor: Array,
        output: Array | None,
        root: int = 0,
        rows: Sequence[int] | None = None,
    ) -> None: ...
    def scatter_blocking(
        self,
        name: str,
        tensor: Array | None,
        output: Array,
        root: int = 0,
        rows: Sequence[int] | None = None,
    ) -> None: ...
    def reduce_scatter_blocking(
        self,
        name: str,
        tensor: Array,
        output: Array,
        op: Op = "average",
        rows: Sequence[int] | None = None,
    ) -> None: ...
    def alltoall_blocking(self, name: str, tensor: Array, output: Array) -> None: ...
    def send_blocking(self, name: str, tensor: Array, to: int) -> None:
        """The n-th of these from one rank to another meets the n-th recv_blocking() there, by the
        same name; it may last until then."""
    def recv_blocking(self, name: str, tensor: Array, source: int) -> None:
        """Into `tensor`."""
    def sendrecv_blocking(
        self,
        send_name: str,
        tensor: Array,
        to: int,
        recv_name: str,
        output: Array,
        source: int,
    ) -> None:
        """Both at the same time, so that ranks in a ring do not wait for each other."""
    def barrier_blocking(self) -> None: ...

    # --- objects, blocking, matched by name: by pickle, so from ranks that you trust ---

    def broadcast_bytes(self, name: str, data: Array | None, root: int = 0) -> bytes: ...
    def allgather_bytes(self, name: str, data: Array) -> list[bytes]: ...
    # An object that cannot be pickled is an InvalidArgumentError on every rank. `pickler` is a
    # module or any object with dumps and loads, such as cloudpickle, and the same on every rank.
    def broadcast_object(
        self, name: str, value: T, root: int = 0, *, pickler: Any = ...
    ) -> T: ...
    def allgather_object(self, name: str, value: T, *, pickler: Any = ...) -> list[T]: ...
    def gather_object(
        self, name: str, value: T, root: int = 0, *, pickler: Any = ...
    ) -> list[T] | None: ...
    def scatter_object(
        self, name: str, values: Sequence[T] | None, root: int = 0, *, pickler: Any = ...
    ) -> T: ...

    # --- other groups of ranks ---

    def split(self, color: int, key: int = 0) -> Communicator | None:
        """Collective: the ranks of one color, ordered by (key, rank); a negative color gets None."""
    def shrink(self, timeout: float = 30.0) -> Communicator:
        """After a loss: the survivors, in old order. This one is then only to be closed."""

    # --- memory of the library's ---

    def allocate(self, bytes: int) -> Tensor:
        """Zeroed u8 memory that the ranks of this host reach, if the backend shares memory:
        collectives read and write it where it is. Lives as long as an array in it."""

    # --- arenas ---

    def arena(
        self,
        arrays: Mapping[str, tuple[DType, Sequence[int]]],
        op: Op = "average",
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wire: Wire | None = None,
        may_be_left_out: Iterable[str] = (),
    ) -> Arena:
        """Every rank makes the same arenas in the same order."""

    # --- what it does ---

    def statistics(self) -> Statistics: ...
    def start_timeline(self, file: str) -> None: ...
    def stop_timeline(self) -> None: ...

@final
class Arena:
    """Gradient arrays in one block of the library's memory, which ranks that share memory reduce in
    place. `with` closes it; an array that was handed out keeps the memory."""

    names: tuple[str, ...]
    _native: Any
    def __getitem__(self, name: str) -> Tensor: ...
    def ready(self, name: str) -> None:
        """This rank's gradient is complete: starts its reduction. Any order, any thread."""
    def leave_out(self, name: str) -> None:
        """This rank has no gradient of this array in this step."""
    def wait(self, timeout: float | None = None) -> None:
        """Every array holds its result, and a new step begins. After `timeout` seconds:
        TimedOutError, and the step may be waited for again."""
    def used(self, name: str) -> bool:
        """Whether any rank had this array in the last step."""
    def close(self) -> None: ...
    def __enter__(self) -> Arena: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None: ...

@final
class Statistics:
    """Since the communicator was made; fields of tutti_statistics_t (<tutti.h>). Of these Python has
    not: plans_locked, predicted_messages, predicted_bytes, negotiation_messages, caller_runs."""

    operations: int
    tensors: int
    buckets: int
    replayed_buckets: int
    vetoed_buckets: int
    data_messages: int
    data_bytes: int
    control_messages: int
    control_bytes: int
    wakeups: int
    allocations: int
    wait_seconds: float
    exposed_seconds: float
    skew_seconds: float
    copied_bytes: int
    def __iter__(self) -> Generator[tuple[str, int | float], None, None]: ...
