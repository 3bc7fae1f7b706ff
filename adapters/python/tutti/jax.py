"""Collectives on JAX arrays and pytrees of them, as plain calls and in jit as host callbacks.

All ranks call with trees of the same structure. The name of a leaf's operation is the given name
and the leaf's path in the tree, such as "gradients['dense']['bias']". JAX arrays are immutable, so
each call returns a new tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy
import tutti
from jax.experimental import io_callback

if TYPE_CHECKING:
    import optax

# The keys are the names of JAX's dtypes.
_WORDS: dict[str, Any] = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool",
}  # fmt: skip

_Leaves = list[tuple[str, Any]]


def allreduce(
    comm: tutti.Communicator, name: str, tree: Any, op: Any = "average", *, timeout: float = 300.0
) -> Any:
    """Returns each leaf reduced over all ranks, with its shape and dtype. Raises tutti.Error; a
    TimedOutError after `timeout` seconds."""
    leaves, structure = _read(comm, name, tree)
    return structure.unflatten(_to_jax(_allreduce(comm, leaves, op, timeout)))


def allgather(comm: tutti.Communicator, name: str, tree: Any, *, timeout: float = 300.0) -> Any:
    """Returns the ranks' leaves one after another along the first dimension, whose extents may
    differ."""
    leaves, structure = _read(comm, name, tree, rows=True)
    return structure.unflatten(_to_jax(_allgather(comm, leaves, timeout)))


def broadcast(
    comm: tutti.Communicator, name: str, tree: Any, root: int = 0, *, timeout: float = 300.0
) -> Any:
    """Returns the leaves of `root`. The leaves of the other ranks give shape and dtype."""
    leaves, structure = _read(comm, name, tree)
    return structure.unflatten(_to_jax(_broadcast(comm, leaves, root, timeout)))


def allreduce_in_jit(
    comm: tutti.Communicator, name: str, tree: Any, op: Any = "average", *, timeout: float = 300.0
) -> Any:
    """Like allreduce(), while jit traces. It is an ordered callback on the host in each run of the
    compiled function."""
    return _in_jit(comm, name, tree, 1, lambda leaves: _allreduce(comm, leaves, op, timeout))


def allgather_in_jit(
    comm: tutti.Communicator, name: str, tree: Any, *, timeout: float = 300.0
) -> Any:
    """Like allgather(), while jit traces. jit must know the shapes, so all ranks pass the same
    number of rows."""
    return _in_jit(
        comm, name, tree, comm.size, lambda leaves: _allgather(comm, leaves, timeout), rows=True
    )


def broadcast_in_jit(
    comm: tutti.Communicator, name: str, tree: Any, root: int = 0, *, timeout: float = 300.0
) -> Any:
    """Like broadcast(), while jit traces."""
    return _in_jit(comm, name, tree, 1, lambda leaves: _broadcast(comm, leaves, root, timeout))


def average_gradients(
    comm: tutti.Communicator, name: str = "gradients", *, timeout: float = 300.0
) -> optax.GradientTransformation:
    """Returns the first link of an optax chain for data-parallel training. It replaces the updates
    by their mean over all ranks, inside and outside of jit. Ranks that begin with equal parameters
    (broadcast()) keep them equal to the bit."""
    import optax

    def start(_: Any) -> optax.EmptyState:
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        traced = any(_is_traced(leaf) for leaf in jax.tree_util.tree_leaves(updates))
        average = allreduce_in_jit if traced else allreduce
        return average(comm, name, updates, timeout=timeout), state

    return optax.GradientTransformation(start, update)


# --- leaves --------------------------------------------------------------------------------------


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def _refused(comm: tutti.Communicator, name: str, text: str) -> tutti.InvalidArgumentError:
    return tutti.InvalidArgumentError(f'rank {comm.rank}: "{name}" {text}')


def _named(comm: tutti.Communicator, name: str, tree: Any, rows: bool) -> tuple[_Leaves, Any]:
    """Returns the leaves as arrays with their names. All are checked before any of them is sent."""
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves: _Leaves = []
    for path, leaf in paths:
        full = name + jax.tree_util.keystr(path)
        if not _is_traced(leaf) and not isinstance(leaf, jax.Array):
            if not isinstance(leaf, (bool, int, float, numpy.ndarray, numpy.generic)):
                raise _refused(
                    comm,
                    full,
                    f"is of type {type(leaf).__name__}; pass a tree of JAX's arrays, numpy's or "
                    "numbers",
                )
            if not isinstance(leaf, (numpy.ndarray, numpy.generic)) or leaf.dtype.name in _WORDS:
                leaf = jnp.asarray(leaf)
        if leaf.dtype.name not in _WORDS:
            raise _refused(
                comm,
                full,
                f"has dtype {leaf.dtype.name} (expected one of {', '.join(_WORDS)}); view it",
            )
        if rows and leaf.ndim == 0:
            raise _refused(comm, full, "is a scalar, which has no rows; give it a first dimension")
        leaves.append((full, leaf))
    return leaves, structure


def _read(comm: tutti.Communicator, name: str, tree: Any, rows: bool = False) -> tuple[_Leaves, Any]:
    """Like _named(), with the leaves as numpy arrays, which on the CPU are JAX's own memory."""
    leaves, structure = _named(comm, name, tree, rows)
    for full, leaf in leaves:
        if _is_traced(leaf):
            raise _refused(
                comm,
                full,
                "is traced, it has no values yet; inside jit call allreduce_in_jit, allgather_in_jit "
                "or broadcast_in_jit",
            )
        _check_place(comm, full, leaf.devices())
    return [(full, numpy.asarray(leaf)) for full, leaf in leaves], structure


def _check_place(comm: tutti.Communicator, full: str, devices: Iterable[Any]) -> None:
    devices = list(devices)
    if len(devices) != 1:
        raise _refused(
            comm,
            full,
            f"is spread over {len(devices)} devices (expected one); pass jax.device_get(tree)",
        )
    if devices[0].platform != "cpu":
        raise _refused(
            comm, full, f"lies on {devices[0]} (expected the CPU); pass jax.device_get(tree)"
        )


def _memory(array: numpy.ndarray[Any, Any]) -> tutti.Memory:
    """Returns the array's memory. This also works for bf16, which Python's buffers lack."""
    return tutti.Memory(array.ctypes.data, array.shape, _WORDS[array.dtype.name], owner=array)


def _to_jax(arrays: list[Any]) -> list[jax.Array]:
    return [jnp.asarray(array) for array in arrays]


# --- operations on numpy's arrays, all under way at once -----------------------------------------


def _allreduce(comm: tutti.Communicator, leaves: _Leaves, op: Any, timeout: float) -> list[Any]:
    inputs = [(name, numpy.ascontiguousarray(leaf).reshape(leaf.shape)) for name, leaf in leaves]
    outputs = [numpy.empty(leaf.shape, leaf.dtype) for _, leaf in leaves]
    works = [
        comm.allreduce(name, _memory(leaf), op, output=_memory(output))
        for (name, leaf), output in zip(inputs, outputs)
    ]
    for work in works:
        work.wait(timeout)
    return outputs


def _allgather(comm: tutti.Communicator, leaves: _Leaves, timeout: float) -> list[Any]:
    works = [comm.allgather(name, _memory(numpy.ascontiguousarray(leaf))) for name, leaf in leaves]
    results = [work.wait(timeout) for work in works]
    return [
        numpy.frombuffer(result.tobytes(), leaf.dtype).reshape(result.shape)
        for result, (_, leaf) in zip(results, leaves)
    ]


def _broadcast(comm: tutti.Communicator, leaves: _Leaves, root: int, timeout: float) -> list[Any]:
    arrays = [numpy.array(leaf, order="C", copy=True) for _, leaf in leaves]
    works = [
        comm.broadcast(name, _memory(array), root) for (name, _), array in zip(leaves, arrays)
    ]
    for work in works:
        work.wait(timeout)
    return arrays


def _in_jit(
    comm: tutti.Communicator,
    name: str,
    tree: Any,
    times: int,
    run: Callable[[_Leaves], list[Any]],
    rows: bool = False,
) -> Any:
    """Runs the collective as an ordered callback, so that every rank makes its calls once and in
    the order of its program."""
    leaves, structure = _named(comm, name, tree, rows)
    names = [full for full, _ in leaves]
    shapes = [
        jax.ShapeDtypeStruct((leaf.shape[0] * times, *leaf.shape[1:]) if rows else leaf.shape, leaf.dtype)
        for _, leaf in leaves
    ]

    def call(*arrays: Any) -> list[Any]:
        results = run([(full, numpy.asarray(array)) for full, array in zip(names, arrays)])
        for full, result, shape in zip(names, results, shapes):
            if result.shape != shape.shape:
                raise _refused(
                    comm,
                    full,
                    f"gave {result.shape[0]} rows where jit expects {shape.shape[0]}; all ranks must "
                    "give as many inside jit",
                )
        return results

    return structure.unflatten(
        io_callback(call, shapes, *(leaf for _, leaf in leaves), ordered=True)
    )
