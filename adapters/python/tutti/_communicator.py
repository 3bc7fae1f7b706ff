"""Communicator, Arena and Statistics. They call the library by name, through the extension."""

import pickle
from array import array

from . import _native, _objects
from ._errors import ClosedError, described, refused
from ._store import Store

_OPS = {"sum": 0, "average": 1, "min": 2, "max": 3, "product": 4, "band": 5, "bor": 6, "bxor": 7}
_WIRES = {None: -1, "f16": 2, "bf16": 3}


def _chosen(table, what, word):
    try:
        return table[word]
    except (KeyError, TypeError):
        words = ", ".join(str(each) for each in table)
        raise refused(f"unknown {what} {word!r}; expected one of {words}") from None


def _op(word):
    return _chosen(_OPS, "op", word)


def _wire(word):
    return _chosen(_WIRES, "wire type", word)


def _setting(name, value):
    if isinstance(value, bool):
        value = int(value)
    return f"{name}={value}"


def _members(tensors):
    pairs = tensors.items() if hasattr(tensors, "items") else tensors
    names, arrays = [], []
    for name, array in pairs:
        names.append(name)
        arrays.append(array)
    return names, arrays


class Statistics:
    __slots__ = (
        "operations",
        "tensors",
        "buckets",
        "replayed_buckets",
        "vetoed_buckets",
        "data_messages",
        "data_bytes",
        "control_messages",
        "control_bytes",
        "wakeups",
        "allocations",
        "wait_seconds",
        "exposed_seconds",
        "skew_seconds",
        "copied_bytes",
    )

    def __init__(self, values):
        for name, value in zip(self.__slots__, values):
            setattr(self, name, value)

    def __iter__(self):
        for name in self.__slots__:
            yield name, getattr(self, name)

    def __repr__(self):
        return f"Statistics({', '.join(f'{name}={value}' for name, value in self)})"


class Communicator:
    __slots__ = (
        "_native",
        "closed",
        "rank",
        "size",
        "local_rank",
        "local_size",
        "hosts",
        "backend",
        "__weakref__",
    )

    def __init__(self, native):
        if not isinstance(native, _native.Native):
            raise refused("a Communicator is made by Communicator.create()")
        self._native = native
        self.closed = False
        (
            self.rank,
            self.size,
            self.local_rank,
            self.local_size,
            self.hosts,
            self.backend,
        ) = native.numbers()

    @staticmethod
    def create(settings=None, store=None, *, rank=None, size=None):
        lines = [_setting(name, value) for name, value in dict(settings or {}).items()]
        if store is None:
            if rank is not None or size is not None:
                raise refused(
                    "give rank and size only with a store; otherwise the launcher provides them"
                )
            return Communicator(_native.create(lines, None, 0, 1, False))
        if rank is None or size is None:
            raise refused("with a store, rank and size are needed too")
        is_thread = isinstance(store, _native.MemoryStore)
        if not is_thread:
            if not isinstance(store, Store):
                raise refused(f"{type(store).__name__} is not a tutti.Store; make a subclass of it")
            kind = type(store)
            store = _native.ProgramStore(
                store, kind.set is not Store.set, kind.wait is not Store.wait
            )
        return Communicator(_native.create(lines, store, rank, size, is_thread))

    def close(self, error=None):
        self.closed = True
        self._native.close(described(error))

    abort = close

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close(error)

    def __repr__(self):
        state = "closed" if self.closed else self.backend
        return f"<tutti.Communicator rank {self.rank} of {self.size}, {state}>"

    # --- matched by name -------------------------------------------------------------------------

    def _start(self, kind, name, first, second=None, peer=0, op=0, rows=None):
        return self._native.start(kind, name, first, second, peer, op, 1.0, 1.0, -1, 0, rows)

    def allreduce(
        self,
        name,
        tensor,
        op="average",
        *,
        output=None,
        prescale=1.0,
        postscale=1.0,
        wire=None,
        priority=0,
    ):
        return self._native.start(
            _native.ALLREDUCE,
            name,
            tensor,
            output,
            0,
            _op(op),
            prescale,
            postscale,
            _wire(wire),
            priority,
            None,
        )

    def _start_group(self, kind, group, tensors, outputs, op, prescale, postscale, wire, priority):
        names, arrays = _members(tensors)
        if outputs is not None:
            outputs = list(outputs.values() if hasattr(outputs, "values") else outputs)
        return self._native.start_group(
            kind, group, names, arrays, outputs, _op(op), prescale, postscale, _wire(wire), priority
        )

    def grouped_allreduce(
        self,
        group,
        tensors,
        op="average",
        *,
        outputs=None,
        prescale=1.0,
        postscale=1.0,
        wire=None,
        priority=0,
    ):
        return self._start_group(
            _native.ALLREDUCE, group, tensors, outputs, op, prescale, postscale, wire, priority
        )

    def sparse_allreduce(self, name, indices, values, op="average"):
        return self._start(_native.SPARSE_ALLREDUCE, name, indices, values, op=_op(op))

    def allgather(self, name, tensor, *, output=None):
        return self._start(_native.ALLGATHER, name, tensor, output)

    def grouped_allgather(self, group, tensors, *, outputs=None):
        return self._start_group(
            _native.ALLGATHER, group, tensors, outputs, "sum", 1.0, 1.0, None, 0
        )

    def broadcast(self, name, tensor, root=0, *, output=None):
        if output is not None and self.rank != root and isinstance(name, str):
            tensor, output = output, None
        return self._start(_native.BROADCAST, name, tensor, output, peer=root)

    def reduce(self, name, tensor, root=0, op="sum", *, output=None):
        return self._start(_native.REDUCE, name, tensor, output, root, _op(op))

    def gather(self, name, tensor, root=0, *, output=None):
        return self._start(_native.GATHER, name, tensor, output, root)

    def scatter(self, name, tensor, root=0, rows=None, *, output=None):
        if tensor is None and self.rank == root:
            raise refused(f'"{name}": rank {root} is the root of a scatter and has no array')
        return self._start(_native.SCATTER, name, tensor, output, root, rows=rows)

    def reduce_scatter(
        self,
        name,
        tensor,
        op="average",
        rows=None,
        *,
        output=None,
        prescale=1.0,
        postscale=1.0,
        wire=None,
        priority=0,
    ):
        return self._native.start(
            _native.REDUCE_SCATTER,
            name,
            tensor,
            output,
            0,
            _op(op),
            prescale,
            postscale,
            _wire(wire),
            priority,
            rows,
        )

    def grouped_reduce_scatter(
        self,
        group,
        tensors,
        op="average",
        *,
        outputs=None,
        prescale=1.0,
        postscale=1.0,
        wire=None,
        priority=0,
    ):
        return self._start_group(
            _native.REDUCE_SCATTER, group, tensors, outputs, op, prescale, postscale, wire, priority
        )

    def alltoall(self, name, tensor, splits=None, *, output=None):
        return self._start(_native.ALLTOALL, name, tensor, output, rows=splits)

    def send(self, name, tensor, to):
        return self._start(_native.SEND, name, tensor, peer=to)

    def recv(self, name, tensor, source):
        if source == _native.ANY_RANK:
            raise refused(
                f'"{getattr(name, "name", name)}": rank {source} of {self.size} does not exist; '
                f"ranks are 0 to {self.size - 1}"
            )
        return self._start(_native.RECV, name, tensor, peer=source)

    def recv_any(self, name, tensor):
        return self._start(_native.RECV, name, tensor, peer=_native.ANY_RANK)

    def barrier(self, name="barrier"):
        return self._start(_native.BARRIER, name, None)

    def join(self):
        return self._start(_native.JOIN, "join", None)

    def declare(self, name, like):
        return self._native.declare(name, like)

    # --- blocking --------------------------------------------------------------------------------

    def _block(self, kind, name, first, second=None, peer=0, op=0, rows=None):
        self._native.blocking(kind, name, first, second, peer, op, rows)

    def allreduce_blocking(self, name, tensor, op="average", *, output=None):
        self._block(_native.ALLREDUCE, name, tensor, output, op=_op(op))

    def allreduce_value(self, name, value, op="average"):
        return self._native.allreduce_value(name, value, _op(op))

    def broadcast_blocking(self, name, tensor, root=0):
        self._block(_native.BROADCAST, name, tensor, peer=root)

    def reduce_blocking(self, name, tensor, root=0, op="sum", *, output=None):
        self._block(_native.REDUCE, name, tensor, output, root, _op(op))

    def allgather_blocking(self, name, tensor, output, rows=None):
        self._block(_native.ALLGATHER, name, tensor, output, rows=rows)

    def gather_blocking(self, name, tensor, output, root=0, rows=None):
        self._block(_native.GATHER, name, tensor, output, root, rows=rows)

    def scatter_blocking(self, name, tensor, output, root=0, rows=None):
        self._block(_native.SCATTER, name, tensor, output, root, rows=rows)

    def reduce_scatter_blocking(self, name, tensor, output, op="average", rows=None):
        self._block(_native.REDUCE_SCATTER, name, tensor, output, op=_op(op), rows=rows)

    def alltoall_blocking(self, name, tensor, output):
        self._block(_native.ALLTOALL, name, tensor, output)

    def send_blocking(self, name, tensor, to):
        self._block(_native.SEND, name, tensor, peer=to)

    def recv_blocking(self, name, tensor, source):
        self._block(_native.RECV, name, tensor, peer=source)

    def sendrecv_blocking(self, send_name, tensor, to, recv_name, output, source):
        self._native.sendrecv_blocking(send_name, tensor, to, recv_name, output, source)

    def barrier_blocking(self):
        self._native.barrier_blocking()

    # --- objects ---------------------------------------------------------------------------------

    def broadcast_bytes(self, name, data, root=0):
        held, cause = bytearray(), None
        if self.rank == root:
            # The broadcast is in place and bytes cannot be written, so this makes a copy.
            try:
                if data is None:
                    raise refused("it is the root of a broadcast and has no bytes")
                held = bytearray(data)
            except Exception as error:
                held, cause = bytearray(_objects.reason_of(error).encode(errors="replace")), error
        # The first broadcast has the given name and sends the length. A negative length n means
        # that the root failed. Then -1 - n bytes of text with the reason follow instead of the
        # data.
        length = array("q", [len(held) if cause is None else -1 - len(held)])
        self.broadcast(name, length, root).wait()
        if self.rank != root:
            held = bytearray(length[0] if length[0] >= 0 else -1 - length[0])
        self.broadcast(f"{name}.bytes", held, root).wait()
        if length[0] < 0:
            raise _objects.could_not(name, root, held.decode()) from cause
        return bytes(held)

    def allgather_bytes(self, name, data):
        work = self.allgather(name, memoryview(data).cast("B"))
        together = work.wait().tobytes()
        parts, begin = [], 0
        for count in work.received_counts():
            parts.append(together[begin : begin + count])
            begin += count
        return parts

    def broadcast_object(self, name, value, root=0, *, pickler=pickle):
        return _objects.broadcast_object(self, name, value, root, pickler)

    def allgather_object(self, name, value, *, pickler=pickle):
        return _objects.allgather_object(self, name, value, pickler)

    def gather_object(self, name, value, root=0, *, pickler=pickle):
        return _objects.gather_object(self, name, value, root, pickler)

    def scatter_object(self, name, values, root=0, *, pickler=pickle):
        return _objects.scatter_object(self, name, values, root, pickler)

    # --- other groups, arenas, statistics and timeline --------------------------------------------

    def split(self, color, key=0):
        native = self._native.split(color, key)
        return None if native is None else Communicator(native)

    def shrink(self, timeout=30.0):
        return Communicator(self._native.shrink(timeout))

    def allocate(self, bytes):
        return self._native.allocate(bytes)

    def arena(
        self, arrays, op="average", *, prescale=1.0, postscale=1.0, wire=None, may_be_left_out=()
    ):
        left_out = set(may_be_left_out)
        unknown = left_out.difference(arrays)
        if unknown:
            raise refused(f"may_be_left_out names {sorted(unknown)}, which are not in the arena")
        rows = [
            (name, dtype, tuple(shape), name in left_out)
            for name, (dtype, shape) in arrays.items()
        ]
        return Arena(self._native.arena(rows, _op(op), prescale, postscale, _wire(wire)))

    def statistics(self):
        return Statistics(self._native.statistics())

    def start_timeline(self, file):
        self._native.start_timeline(str(file))

    def stop_timeline(self):
        self._native.stop_timeline()


class Arena:
    __slots__ = ("_native", "names", "__weakref__")

    def __init__(self, native):
        if not isinstance(native, _native.NativeArena):
            raise refused("an Arena is made by Communicator.arena()")
        self._native = native
        self.names = native.names

    def _open(self):
        if self._native is None:
            raise ClosedError("this Arena is closed")
        return self._native

    def __getitem__(self, name):
        return self._open().array(name)

    def ready(self, name):
        self._open().ready(name)

    def leave_out(self, name):
        self._open().leave_out(name)

    def wait(self, timeout=None):
        self._open().wait(timeout)

    def used(self, name):
        return self._open().used(name)

    def close(self):
        # The memory is freed with the last array that was handed out.
        self._native = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()
