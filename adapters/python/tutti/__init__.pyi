"""Tutti for Python: collectives on anything with the buffer protocol or DLPack.

Operations are matched by name over all ranks, and ranks may submit them in any order. The arrays of
a call belong to the operation until its Work is done. The Work keeps them alive, and an object that
exports a buffer cannot be resized meanwhile.
"""

import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, final

T = TypeVar("T")

__version__: str

# A numpy array, an array.array, a memoryview, a torch tensor, a Tensor or a Memory. In general it
# is any object that exports a buffer or has `__dlpack__`. It must be dense and row-major; otherwise
# it is refused with one line.
Array: TypeAlias = Any
DType: TypeAlias = Literal[
    "f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "raw"
]
Op: TypeAlias = Literal["sum", "average", "min", "max", "product", "band", "bor", "bxor"]
Wire: TypeAlias = Literal["f16", "bf16"]
# Settings by the names of their variables, in small letters and without TUTTI_. The values are
# those of the variables: {"fusion_bytes": "1M"}.
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
class PeerError(Error): ...  # base of the next three
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
    """Memory at an address, for adapters that know the address; no protocol is used. It must be
    row-major and dense. The Memory keeps `owner` alive. `stream` is the device's stream on which
    the contents become ready, as an integer."""

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
    """A result in the library's memory. It exports DLPack and a writable buffer: numpy.asarray(t),
    torch.from_dlpack(t). For bf16, which Python's buffers lack, it exports only DLPack."""

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
    """The handle of an operation. Dropping it does not cancel the operation, which goes on and
    keeps its memory until it is done. Any thread may use it."""

    name: str
    def wait(self, timeout: float | None = None) -> Any:
        """Returns result(), or raises the operation's Error. Raises TimedOutError after `timeout`
        seconds, and KeyboardInterrupt on Ctrl-C. The operation goes on in both cases, and done() is
        still False."""
    def done(self) -> bool:
        """Returns whether the operation is over, with or without an error. Never blocks."""
    def exception(self) -> Error | None:
        """Returns the error of an operation that is done, or None. Raises InvalidArgumentError
        before it is done."""
    def result(self) -> Any:
        """Waits and returns the operation's result. For an operation in place or into `output` this
        is the caller's array. Otherwise it is the library's Tensor, or a tuple of them. It is None
        for a barrier, or if this rank gets no result."""
    def output(self, index: int = 0) -> Tensor:
        """Waits and returns a result in the library's memory (allgather, gather, scatter,
        reduce_scatter, alltoall, sparse_allreduce and join, if no `output` was given)."""
    def source(self) -> int:
        """Waits and returns the rank that sent, for a receive. Returns -1 for other operations."""
    def received_counts(self) -> tuple[int, ...]:
        """Waits and returns the number of rows from each rank (allgather, alltoall). Empty for
        other operations."""
    def add_done_callback(self, callback: Callable[[Work], object]) -> None:
        """Calls `callback(work)` once when the operation is over. If it is over already, the
        callback runs now on this thread, else on the library's callback thread. An exception that
        it raises is printed as unraisable. It must not wait for other works (CallbackError). No
        callback is called once the interpreter exits."""
    def __await__(self) -> Generator[Any, None, Any]:
        """Waits in asyncio while the running loop goes on. The value is result()."""

@final
class Declared:
    """A name that was looked up once (Communicator.declare). It is valid as long as its
    communicator."""

    name: str

# --- stores --------------------------------------------------------------------------------------

class Store:
    """A store through which ranks find each other. Subclass it over a store of your own. Keys are
    str and values are bytes. Any thread may call any method, also the library's background threads.
    An exception of a method becomes an UnavailableError of the call that used the store. get,
    compare_set and add must be defined; the others have defaults."""

    def get(self, key: str) -> bytes | None:
        """Returns None if the key does not exist. Does not wait."""
    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes:
        """Atomically sets the key if its value is `expected`, or, if `expected` is None, if it does
        not exist. Returns the value after that."""
    def set(self, key: str, value: bytes) -> None: ...
    def add(self, key: str, amount: int) -> int:
        """Atomically adds to a decimal counter that starts at 0, and returns the new value. get()
        of that key returns its digits."""
    def wait(self, key: str, seconds: float) -> bytes | None:
        """Waits for a key and returns its value, or None when `seconds` have passed."""
    def delete(self, key: str) -> None:
        """By default the key stays."""
    def delete_prefix(self, prefix: str) -> None:
        """By default the keys stay."""

@final
class MemoryStore:
    """The library's own store, for ranks that are threads of this process."""

    def __init__(self) -> None: ...

# --- communicators -------------------------------------------------------------------------------

@final
class Communicator:
    """One rank of a group of ranks. `with` closes it. Any thread may use it."""

    @staticmethod
    def create(
        settings: Settings | None = None,
        store: Store | MemoryStore | None = None,
        *,
        rank: int | None = None,
        size: int | None = None,
    ) -> Communicator:
        """Finds the other ranks by the launcher's environment variables; without a launcher there
        is one rank. With a store, rank and size are required. Ranks that are processes use a store
        of their own, and ranks that are threads share a MemoryStore."""
    def close(self, error: BaseException | str | None = None) -> None:
        """Leaves the communicator; pending operations fail with ClosedError. It may be called
        twice, and by any thread. `error` is the reason for which the program closes. The other
        ranks' errors contain it (one line, of which 400 bytes are used), and tutti-run names this
        rank as the first that failed. If an exception leaves a `with` statement, it is
        passed as `error`. So is an exception that ends the program, except SystemExit."""
    def abort(self, error: BaseException | str | None = None) -> None:
        """close() under its name in torch.distributed. The other ranks learn that this one left,
        and threads that wait here get ClosedError."""
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

    # --- matched by name; each returns immediately ---

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
        """Reduces in place, or into `output`, which has the same shape and dtype."""
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
        """Reduces all arrays or none, in place or into `outputs`, one for each array. Returns one
        Work. Its result() is the list of the arrays with the results."""
    def sparse_allreduce(
        self, name: str, indices: Array, values: Array, op: Op = "average"
    ) -> Work:
        """Reduces sparse rows: indices i64[k], values [k, ...]. result() is (indices, values) of
        all ranks."""
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
        """Broadcasts in place, or root's `tensor` into the `output` of all ranks."""
    def reduce(
        self,
        name: str | Declared,
        tensor: Array,
        root: int = 0,
        op: Op = "sum",
        *,
        output: Array | None = None,
    ) -> Work:
        """Reduces to root, in place or into `output`."""
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
        """Scatters root's `tensor`; that of the other ranks is not used."""
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
        """Receives into `tensor`."""
    def recv_any(self, name: str, tensor: Array) -> Work:
        """Receives from any rank that sends this name here; Work.source() returns which. One send
        is taken; others wait for the next receive."""
    def barrier(self, name: str | Declared = "barrier") -> Work: ...
    def join(self) -> Work:
        """Announces that this rank has no more data. Averages then divide by the number of ranks
        that have not joined. result() is the last rank to join, an int."""
    def declare(self, name: str, like: Array) -> Declared:
        """Looks a name up once. All kinds take it instead of the name, in place or with output."""

    # --- blocking: every rank makes these in one order; in shared memory nothing is negotiated ---

    def allreduce_blocking(
        self, name: str, tensor: Array, op: Op = "average", *, output: Array | None = None
    ) -> None:
        """Reduces in place, or into `output`. KeyboardInterrupt is raised when the call is over."""
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
        """`rows` is the number of rows of each rank, the same list on all ranks. None means equal
        numbers."""
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
        """Sends to a rank. The n-th send_blocking() from one rank to another matches the n-th
        recv_blocking() there, and both must have the same name. It may block until the other rank
        receives."""
    def recv_blocking(self, name: str, tensor: Array, source: int) -> None:
        """Receives into `tensor`."""
    def sendrecv_blocking(
        self,
        send_name: str,
        tensor: Array,
        to: int,
        recv_name: str,
        output: Array,
        source: int,
    ) -> None:
        """Sends and receives at the same time, so that ranks in a ring do not block each other."""
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
        """Collective. Makes one communicator for the ranks of each color, ordered by (key, rank). A
        rank with a negative color gets None."""
    def shrink(self, timeout: float = 30.0) -> Communicator:
        """Makes a communicator of the survivors after a loss, in their old order. The old
        communicator can then only be closed."""

    # --- the library's memory ---

    def allocate(self, bytes: int) -> Tensor:
        """Allocates zeroed u8 memory. If the backend shares memory, all ranks of this host can
        access it, and collectives read and write it directly. The memory exists as long as an array
        that uses it."""

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
        """Makes an arena. Every rank makes the same arenas in the same order."""

    # --- statistics and timeline ---

    def statistics(self) -> Statistics: ...
    def start_timeline(self, file: str) -> None: ...
    def stop_timeline(self) -> None: ...

@final
class Arena:
    """Gradient arrays in one block of the library's memory. Ranks that share memory reduce them in
    place. A `with` statement closes the arena; an array that was handed out keeps the memory."""

    names: tuple[str, ...]
    _native: Any
    def __getitem__(self, name: str) -> Tensor: ...
    def ready(self, name: str) -> None:
        """Announces that this rank's gradient is complete, and starts its reduction. Arrays may
        become ready in any order and from any thread."""
    def leave_out(self, name: str) -> None:
        """Announces that this rank has no gradient for this array in this step."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits until every array holds its result, and begins a new step. Raises TimedOutError
        after `timeout` seconds; the step may then be waited for again."""
    def used(self, name: str) -> bool:
        """Returns whether any rank had a gradient for this array in the last step."""
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
    """Counts since the communicator was made, with the fields of tutti_statistics_t (<tutti.h>).
    Python does not have plans_locked, predicted_messages, predicted_bytes, negotiation_messages and
    caller_runs."""

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
