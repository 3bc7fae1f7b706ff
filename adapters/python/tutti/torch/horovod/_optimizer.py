"""An optimizer whose gradients are those of all ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from ._compression import Compression
from ._handles import synchronize
from ._operations import (
    Adasum,
    Average,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from ._world import ProcessSet, global_process_set, members


class _Begun:
    """An exchange under way, and how its results come back into the gradients."""

    def __init__(self, wait: Callable[[], Any], parameters: list[Any], contexts: list[Any]) -> None:
        self.wait, self.parameters, self.contexts = wait, parameters, contexts


class _Settings:
    """What DistributedOptimizer was given."""

    names: dict[Any, str]
    compression: Any
    op: int
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet


class _Distributed:
    """Stands before the class of a program's optimizer. One thread steps; the hooks run on the
    thread that calls backward()."""

    param_groups: list[dict[str, Any]]
    backward_passes_per_step: int

    def _begin(self, settings: _Settings, passes: int, groups: Any) -> None:
        self._exchange = settings
        self.backward_passes_per_step = passes
        self._trained = [
            p for group in self.param_groups for p in group["params"] if p.requires_grad
        ]
        self._passes_left = {p: passes for p in self._trained}
        self._group_of = {p: group for group in _grouped(groups, self._trained) for p in group}
        self._begun: dict[Any, _Begun] = {}  # by parameter, or by group
        self._ready: set[Any] = set()
        self._is_synchronized = False
        self._synchronizes = True
        self._kept: list[Any] = []
        if settings.process_set.included() and members(settings.process_set)[0].size > 1:
            for parameter in self._trained:
                self._watch(parameter)

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = passes
        self._passes_left = {p: passes for p in self._trained}

    def _watch(self, parameter: Tensor) -> None:
        # The node that accumulates lives as long as somebody holds it; its hook runs when .grad
        # is complete.
        view: Any = parameter.expand_as(parameter)
        node = view.grad_fn.next_functions[0][0]
        node.register_hook(lambda *_: self._has_gradient(parameter))
        self._kept.append(node)

    def _has_gradient(self, parameter: Any) -> None:
        if self._passes_left[parameter] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._is_complete(parameter)

    def _is_complete(self, parameter: Any) -> None:
        self._ready.add(parameter)
        group = self._group_of.get(parameter)
        if group is None:
            self._begun[parameter] = self._start(parameter)
        elif all(p in self._ready for p in group):
            self._begun[group] = self._start_group(group)

    def _start(self, parameter: Any) -> _Begun:
        how, name = self._exchange, self._exchange.names[parameter]
        if parameter.grad.is_sparse:
            if not how.sparse_as_dense:
                wait = sparse_allreduce_async(parameter.grad, name, how.op, how.process_set)
                return _Begun(lambda: [wait()], [parameter], [None])
            parameter.grad = parameter.grad.to_dense()
        small, context = self._compressed(parameter)
        before, after = 1.0, 1.0
        if how.op == Average:
            before, after = 1 / how.predivide, how.predivide
        handle = allreduce_async_(small, None, name, how.op, before, after, how.process_set)
        return _Begun(lambda: [synchronize(handle)], [parameter], [context])

    def _start_group(self, group: tuple[Any, ...]) -> _Begun:
        how = self._exchange
        for parameter in group:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        smalls, contexts = zip(*(self._compressed(parameter) for parameter in group))
        name = how.names[group[0]]
        handle = grouped_allreduce_async_(
            smalls, None, name, how.op, process_set=how.process_set
        )
        return _Begun(lambda: synchronize(handle), list(group), list(contexts))

    def _compressed(self, parameter: Any) -> Any:
        return self._exchange.compression.compress(parameter.grad.detach().contiguous())

    def synchronize(self) -> None:
        """Waits for the gradients of all ranks. A parameter that got none here sends zeros."""
        if not self._kept:
            self._is_synchronized = True
            return
        for parameter in self._trained:
            if parameter not in self._ready:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._is_complete(parameter)
        begun, self._begun = self._begun, {}
        self._ready.clear()
        self._passes_left = {p: self.backward_passes_per_step for p in self._trained}
        error = None
        for one in begun.values():
            try:
                results = one.wait()
            except RuntimeError as failure:  # the others are waited for nevertheless
                error = error or failure
                continue
            for parameter, result, context in zip(one.parameters, results, one.contexts):
                _set_gradient(parameter, self._exchange.compression.decompress(result, context))
        if error is not None:
            raise error
        self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it step() does not synchronize(), because the program has."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Any = None) -> Any:
        if self._synchronizes:
            if self._is_synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to "
                    "consider using optimizer.skip_synchronize() context if you use "
                    "optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            self.synchronize()
        self._is_synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *arguments: Any, **named: Any) -> Any:
        if self._begun or self._ready:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause "
                "a race condition."
            )
        return super().zero_grad(*arguments, **named)  # type: ignore[misc]

    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        self._begun, self._ready = {}, set()
        self._is_synchronized, self._synchronizes = False, True
        self._passes_left = {p: self.backward_passes_per_step for p in self._trained}
        return super().load_state_dict(*arguments, **named)  # type: ignore[misc]


class _DistributedByAdasum:
    """Each rank steps by its own gradients, and what it changed is what the ranks combine."""

    param_groups: list[dict[str, Any]]

    def _begin(self, settings: _Settings, passes: int, groups: Any) -> None:
        self._exchange = settings
        self.backward_passes_per_step = passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Nothing: what is exchanged is not there before step()."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def step(self, closure: Any = None) -> Any:
        how = self._exchange
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [p.detach().clone() for p in trained]
        loss = super().step(closure)  # type: ignore[misc]
        begun = []
        with torch.no_grad():
            for parameter, start in zip(trained, before):
                change = (parameter.detach() - start).contiguous()
                small, context = how.compression.compress(change)
                handle = allreduce_async_(small, None, how.names[parameter], Adasum)
                begun.append((handle, context))
            for parameter, start, (handle, context) in zip(trained, before, begun):
                change = how.compression.decompress(synchronize(handle), context)
                parameter.copy_(start + change)
        return loss


def _set_gradient(parameter: Any, result: Tensor) -> None:
    if result.is_sparse or parameter.grad.is_sparse:
        parameter.grad = result
    elif result.data_ptr() != parameter.grad.data_ptr():
        with torch.no_grad():
            parameter.grad.copy_(result)


def _grouped(groups: Any, trained: list[Any]) -> list[tuple[Any, ...]]:
    """A number of groups, or lists of parameters; who is in none travels alone."""
    if not groups:
        return []
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups is {groups}; it is a number of groups or a list of lists")
        least, more = divmod(len(trained), groups)
        begin, parts = 0, []
        for index in range(min(groups, len(trained))):
            end = begin + least + (index < more)
            parts.append(tuple(trained[begin:end]))
            begin = end
        return parts
    parts = [tuple(p for p in group if p.requires_grad) for group in groups]
    everyone = [p for part in parts for p in part]
    known = set(trained)
    if len(set(everyone)) != len(everyone) or any(p not in known for p in everyone):
        raise ValueError("groups: a parameter is in two groups, or not in the optimizer")
    return [part for part in parts if part]


def _names(optimizer: Any, named_parameters: Any) -> dict[Any, str]:
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(optimizer.param_groups)
            for j, parameter in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: "
            f"{', '.join(twice)}"
        )
    by_parameter = {parameter: name for name, parameter in pairs}
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            if parameter not in by_parameter:
                raise ValueError(
                    "named_parameters was specified, but one or more model parameters were not "
                    f"named: number {j} of group {i}, of shape {tuple(parameter.shape)}"
                )
    return by_parameter


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Optional[Union[int, list[Any]]] = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class over the same parameters and state, whose step() waits for the
    gradients of all ranks. Each is sent the moment it is complete, under its parameter's name.

    `backward_passes_per_step` gradients are added up before they are sent, and not divided.
    `gradient_predivide_factor` f: divided by f before the sum and by size/f after it. `groups`: a
    number, or lists of parameters whose gradients are sent together; `num_groups` is its older
    name. op=Adasum: what step() changes is combined instead of gradients. On a rank outside
    `process_set` nothing is exchanged."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("num_groups is deprecated; give groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    by_adasum = op == Adasum
    if by_adasum and process_set.process_set_id != 0:
        raise ValueError("DistributedOptimizer: Adasum runs on all ranks, not on a process set")
    settings = _Settings()
    settings.names = _names(optimizer, named_parameters)
    settings.compression, settings.op = compression, op
    settings.predivide, settings.sparse_as_dense = gradient_predivide_factor, sparse_as_dense
    settings.process_set = process_set
    base = type(optimizer)
    before = _DistributedByAdasum if by_adasum else _Distributed
    kind = type(base.__name__, (before, base), {"__module__": base.__module__})
    wrapped: Any = object.__new__(kind)
    # The very same groups and state, so that what was made for the given optimizer, such as a
    # schedule of its rate, works on.
    wrapped.__dict__.update(optimizer.__dict__)
    wrapped.__dict__.pop("step", None)  # a scheduler's, around the given optimizer's own
    wrapped._begin(settings, backward_passes_per_step, groups)
    return wrapped
