"""c10d's collectives. Each is one operation of Tutti or a few, and its name is the next number of
the group."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Optional, Sequence

import torch
import tutti
from torch import Tensor

from ._calls import tell, told, whole_numbers
from ._memory import (
    Parts,
    as_input,
    fetch,
    in_place,
    memory,
    operation,
    raw_memory,
    single,
    unit_of,
)
from ._work import SHORT_BYTES, Work, together

_Finish = Optional[Callable[[], None]]


def _call(method: Callable[..., Work]) -> Callable[..., Work]:
    """Decorates a call of c10d, whose name is the next number of its group. A call that is refused
    also takes its number, and the other ranks get an error."""

    @functools.wraps(method)
    def numbered(self: Collectives, *arguments: Any, **named: Any) -> Work:
        name = self._name()
        try:
            return method(self, name, *arguments, **named)
        except Exception:
            tell(self._comm, [name])
            raise

    return numbered


class Collectives:
    """The calls of one group. c10d has no names, but all ranks make the calls of a group in one
    order. So a call's number is its name. If ranks make different calls under one number, they get
    an error."""

    _comm: tutti.Communicator
    _group: str
    _rank: int  # this rank within the group
    _size: int  # number of ranks in it
    _seconds: float

    def _begin_numbers(self) -> None:
        self._numbers = itertools.count()
        self._sequence = 0

    def _name(self) -> str:
        """Returns the name of a call. It is taken before the arguments are checked."""
        number = next(self._numbers)
        self._sequence = number
        return f"group {self._group}/{number}"

    def _each(
        self, call: Callable[..., Work], pairs: Sequence[tuple[Any, Any]], outputs: Any, *more: Any
    ) -> Work:
        """Makes several calls as one. All are made even if one is refused, because each has a
        number."""
        works: list[Work] = []
        refusal: Optional[Exception] = None
        for pair in pairs:
            try:
                works.append(call(*pair, *more))
            except Exception as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return together(works, outputs, self._seconds)

    def _work(self, work: tutti.Work, outputs: Any, finish: _Finish = None) -> Work:
        return Work((work,), outputs, self._seconds, finish)

    def _into(
        self,
        target: Tensor,
        place: tutti.Memory,
        start: Callable[[Optional[tutti.Memory]], tutti.Work],
        outputs: Any,
        finish: _Finish = None,
    ) -> Work:
        """Starts an operation and puts its result into `target`. `place` is the memory of `target`.
        On the CPU the ranks write there. On a GPU the result is copied from the library's
        memory."""
        if not target.is_cuda:
            return self._work(start(place), outputs, finish)
        work = start(None)

        def copy_and_finish() -> None:
            fetch(work.output(), target)
            if finish is not None:
                finish()

        return self._work(work, outputs, copy_and_finish)

    # --- reductions ---

    @_call
    def allreduce(self, name: str, tensors: Any, opts: Any = None, op: Any = None) -> Work:
        tensor = single("all_reduce", tensors)
        kind, scale = operation(_chosen(opts, op))
        if tensor.layout == torch.sparse_coo:
            return self._allreduce_sparse(name, tensor, kind)
        dense, back = in_place("all_reduce", tensor)
        work = self._comm.allreduce(name, memory(dense), kind, prescale=scale)
        is_short = not dense.is_cuda and dense.numel() * dense.element_size() <= SHORT_BYTES
        return Work((work,), [tensor], self._seconds, back, is_short=is_short)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        if not tensors:
            return Work((), [], self._seconds)
        return self._allreduce_coalesced(list(tensors), opts)

    @_call
    def _allreduce_coalesced(self, name: str, tensors: list[Tensor], opts: Any) -> Work:
        names = _parts(name, len(tensors))
        with told(self._comm, names[1:]):
            kind, scale = operation(_chosen(opts, None))
            pairs, backs = [], []
            for part, tensor in zip(names, tensors):
                dense, back = in_place("all_reduce_coalesced", tensor)
                pairs.append((part, memory(dense)))
                if back is not None:
                    backs.append(back)
            work = self._comm.grouped_allreduce(name, pairs, kind, prescale=scale)
        return self._work(work, tensors, (lambda: _all(backs)) if backs else None)

    def allreduce_sparse(self, tensors: Any, opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def _allreduce_sparse(self, name: str, tensor: Tensor, kind: Any) -> Work:
        """Gathers the rows of all ranks one after another. Coalescing adds up the rows with the
        same index."""
        names = _parts(name, 2)
        with told(self._comm, names[1:]):
            if kind not in ("sum", "average"):
                raise ValueError(
                    f"all_reduce of a sparse tensor: {kind} is not supported, only SUM and AVG"
                )
            own = tensor.detach().coalesce()
            indices = own.indices().t().contiguous()
            values = own.values().contiguous()
            works = (
                self._comm.allgather(names[0], memory(indices, indices.shape)),
                self._comm.allgather(names[1], memory(values, (len(values), _row(values)))),
            )

        def finish() -> None:
            all_indices = _taken(works[0], indices)
            all_values = _taken(works[1], values)
            if kind == "average":
                all_values = all_values / self._size
            total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape).coalesce()
            with torch.no_grad():
                tensor.copy_(total)

        return Work(works, [tensor], self._seconds, finish)

    @_call
    def reduce(self, name: str, tensors: Any, opts: Any = None, op: Any = None) -> Work:
        tensor = single("reduce", tensors)
        kind, scale = operation(_chosen(opts, op))
        root = opts if isinstance(opts, int) else opts.rootRank
        dense, back = in_place("reduce", tensor)
        if scale != 1.0:
            raise ValueError("reduce: only all_reduce supports PREMUL_SUM")
        work = self._comm.reduce(name, memory(dense), root, kind)
        return self._work(work, [tensor], back if self._rank == root else None)

    @_call
    def reduce_scatter(self, name: str, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        output = single("reduce_scatter", outputs)
        if inputs and not isinstance(inputs[0], Tensor):
            inputs = inputs[0]
        parts = self._one_a_rank("reduce_scatter", inputs, filled=True)
        return self._reduce_scatter(name, "reduce_scatter", output, parts.flat, parts.counts, opts)

    @_call
    def _reduce_scatter_base(self, name: str, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        call = "reduce_scatter_tensor"
        if input.numel() != output.numel() * self._size:
            raise ValueError(
                f"{call}: input has {input.numel()} elements where {self._size} ranks times "
                f"{output.numel()} of the output are expected"
            )
        flat = as_input(call, input)
        return self._reduce_scatter(name, call, output, flat, [output.numel()] * self._size, opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        pairs = list(zip(outputs, inputs))
        return self._each(self._reduce_scatter_base, pairs, list(outputs), opts)

    def _reduce_scatter(
        self, name: str, call: str, output: Tensor, flat: Tensor, counts: list[int], opts: Any
    ) -> Work:
        kind, scale = operation(_chosen(opts, None))
        if output.dtype != flat.dtype:
            raise ValueError(f"{call}: output is {output.dtype} and input {flat.dtype}")
        dense, back = in_place(call, output)
        if dense.numel() != counts[self._rank]:
            raise ValueError(
                f"{call}: output has {dense.numel()} elements and this rank's part of the input "
                f"{counts[self._rank]}"
            )
        return self._into(
            dense,
            memory(dense),
            lambda into: self._comm.reduce_scatter(
                name, memory(flat), kind, counts, output=into, prescale=scale
            ),
            [output],
            back,
        )

    # --- data movement ---

    @_call
    def broadcast(self, name: str, tensors: Any, opts: Any = 0) -> Work:
        tensor = single("broadcast", tensors)
        root = opts if isinstance(opts, int) else opts.rootRank
        dense, back = in_place("broadcast", tensor)
        work = self._comm.broadcast(name, raw_memory(dense), root)
        return self._work(work, [tensor], back)

    @_call
    def allgather(self, name: str, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        tensor = single("all_gather", inputs)
        if outputs and not isinstance(outputs[0], Tensor):
            outputs = outputs[0]
        parts = self._one_a_rank("all_gather", outputs, filled=False)
        own = as_input("all_gather", tensor)
        _alike("all_gather", own, parts.flat.dtype, parts.counts[self._rank])
        work = self._comm.allgather(name, raw_memory(own), output=raw_memory(parts.flat))
        return self._work(work, [list(outputs)], parts.hand_out)

    @_call
    def _allgather_base(self, name: str, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        call = "all_gather_into_tensor"
        if output.numel() != input.numel() * self._size:
            raise ValueError(
                f"{call}: output has {output.numel()} elements where {self._size} ranks times "
                f"{input.numel()} of the input are expected"
            )
        own = as_input(call, input)
        dense, back = in_place(call, output)
        _alike(call, own, dense.dtype, own.numel())
        work = self._comm.allgather(name, raw_memory(own), output=raw_memory(dense))
        return self._work(work, [output], back)

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        return self._each(self._allgather_base, list(zip(outputs, inputs)), list(outputs))

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Gathers several tensors: outputs[rank][index] is inputs[index] of that rank."""
        pairs = [
            ([[row[index] for row in outputs if index < len(row)]], [tensor])
            for index, tensor in enumerate(inputs)
        ]
        return self._each(self.allgather, pairs, list(outputs))

    @_call
    def gather(self, name: str, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        tensor = single("gather", inputs)
        root = opts if isinstance(opts, int) else opts.rootRank
        own = as_input("gather", tensor)
        if self._rank != root:
            return self._work(self._comm.gather(name, raw_memory(own), root), [])
        if outputs and not isinstance(outputs[0], Tensor):
            outputs = outputs[0]
        parts = self._one_a_rank("gather", outputs, filled=False)
        _alike("gather", own, parts.flat.dtype, parts.counts[self._rank])
        return self._into(
            parts.flat,
            raw_memory(parts.flat),
            lambda into: self._comm.gather(name, raw_memory(own), root, output=into),
            [list(outputs)],
            parts.hand_out,
        )

    @_call
    def scatter(self, name: str, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        output = single("scatter", outputs)
        root = opts if isinstance(opts, int) else opts.rootRank
        dense, back = in_place("scatter", output)
        source, rows = None, None
        if self._rank == root:
            if inputs and not isinstance(inputs[0], Tensor):
                inputs = inputs[0]
            parts = self._one_a_rank("scatter", inputs, filled=True)
            _alike("scatter", dense, parts.flat.dtype, parts.counts[root])
            source, rows = raw_memory(parts.flat), parts.splits()
        return self._into(
            dense,
            raw_memory(dense),
            lambda into: self._comm.scatter(name, source, root, rows, output=into),
            [output],
            back,
        )

    @_call
    def alltoall_base(
        self,
        name: str,
        output: Tensor,
        input: Tensor,
        output_splits: Optional[Sequence[int]] = None,
        input_splits: Optional[Sequence[int]] = None,
        opts: Any = None,
    ) -> Work:
        call = "all_to_all_single"
        own = as_input(call, input)
        dense, back = in_place(call, output)
        _alike(call, own, dense.dtype, own.numel())
        expected = self._rows(call, "output", dense, output_splits)
        splits = self._rows(call, "input", own, input_splits)
        sent = [rows * _row(own) for rows in splits]
        received = [rows * _row(dense) for rows in expected]
        return self._alltoall(name, call, own, sent, dense, received, back)

    @_call
    def alltoall(
        self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        call = "all_to_all"
        given = self._one_a_rank(call, inputs, filled=True)
        wanted = self._one_a_rank(call, outputs, filled=False)
        _alike(call, given.flat, wanted.flat.dtype, given.flat.numel())
        back = wanted.hand_out
        return self._alltoall(
            name, call, given.flat, given.counts, wanted.flat, wanted.counts, back, outputs
        )

    def _alltoall(
        self,
        name: str,
        call: str,
        source: Tensor,
        splits: list[int],
        target: Tensor,
        expected: list[int],
        back: _Finish,
        outputs: Optional[Sequence[Tensor]] = None,
    ) -> Work:
        """Exchanges elements of `source`. c10d's splits count its elements; data that are sent as
        raw bytes have more elements than that."""
        size = unit_of(source)
        sent = [n * size for n in splits]
        works: list[tutti.Work] = []

        def start(into: Optional[tutti.Memory]) -> tutti.Work:
            works.append(self._comm.alltoall(name, raw_memory(source), sent, output=into))
            return works[0]

        def finish() -> None:
            came = [count // size for count in works[0].received_counts()]
            if came != expected:
                raise tutti.MismatchError(
                    f"rank {self._rank}: {call} ({name}) expected {expected} elements from the "
                    f"ranks and got {came}; output splits must be the other ranks' input splits"
                )
            if back is not None:
                back()

        results = [target] if outputs is None else list(outputs)
        return self._into(target, raw_memory(target), start, results, finish)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Gathers the inputs of all ranks one after another into one tensor at the root."""
        outputs = output.chunk(self._size) if self._rank == opts.rootRank else []
        return self.gather([list(outputs)] if outputs else [], [input], opts)

    @_call
    def barrier(self, name: str, opts: Any = None) -> Work:
        return self._work(self._comm.barrier(name), [])

    # torch 2.14 has these names for some of the methods above.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
    gather_into_tensor = gather_single

    # --- internals ---

    def _one_a_rank(self, call: str, tensors: Sequence[Tensor], *, filled: bool) -> Parts:
        if len(tensors) != self._size:
            raise ValueError(
                f"{call}: got {len(tensors)} tensors, expected one for each rank, which is "
                f"{self._size}"
            )
        return Parts(call, tensors, filled=filled)

    def _rows(
        self, call: str, what: str, tensor: Tensor, splits: Optional[Sequence[int]]
    ) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() > 0 else 1
        if splits:
            counts = whole_numbers(splits, f"the {what} splits of {call}")
            if len(counts) != self._size or sum(counts) != rows:
                raise ValueError(
                    f"{call}: {what} splits {counts} do not divide {rows} rows among "
                    f"{self._size} ranks"
                )
            return counts
        if rows % self._size != 0:
            raise ValueError(
                f"{call}: {what} has {rows} rows, which {self._size} ranks cannot share equally; "
                "give splits"
            )
        return [rows // self._size] * self._size


def _chosen(opts: Any, op: Any) -> Any:
    """Returns the operator of a call. The short forms of c10d's calls pass the operator itself, or
    nothing, which means a sum."""
    if op is not None:
        return op
    return torch.distributed.ReduceOp.SUM if opts is None or isinstance(opts, int) else opts


def _parts(name: str, count: int) -> list[str]:
    """Returns the names of the operations of one call. The first is the call's own name, so that
    ranks that make different calls under one number get an error."""
    return [name, *(f"{name}/{index}" for index in range(1, count))]


def _row(tensor: Tensor) -> int:
    """Returns the number of elements in a row of the first dimension."""
    count = 1
    for extent in tensor.shape[1:]:
        count *= extent
    return count


def _taken(work: tutti.Work, like: Tensor) -> Tensor:
    """Returns a copy of a result that is in the library's memory. Its rows have the same shape as
    those of `like`."""
    result = torch.utils.dlpack.from_dlpack(work.output(0))
    return result.clone().view(-1, *like.shape[1:])


def _alike(call: str, own: Tensor, dtype: torch.dtype, count: int) -> None:
    if own.dtype != dtype or own.numel() != count:
        raise ValueError(
            f"{call}: this rank's {own.numel()} elements of {own.dtype} do not fit their place of "
            f"{count} of {dtype}"
        )


def _all(finishes: Sequence[Callable[[], None]]) -> None:
    for finish in finishes:
        finish()

