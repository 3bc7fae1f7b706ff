"""An optimizer that uses the gradients of all ranks."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from .._calls import owned, whole
from ._compression import Compression
from ._handles import synchronize
from ._operations import (
    Adasum,
    Average,
    Sum,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from ._world import ProcessSet, global_process_set, members, next_optimizer


class _Begun:
    """An exchange under way, and how its results are put back into the gradients."""

    def __init__(
        self,
        wait: Callable[[], Any],
        parameters: list[Any],
        contexts: list[Any],
        backs: list[Optional[Callable[[Tensor], Tensor]]],
    ) -> None:
        self.wait, self.parameters, self.contexts, self.backs = wait, parameters, contexts, backs


class _Settings:
    """The arguments of DistributedOptimizer."""

    names: dict[Any, str]
    number: int  # number of this optimizer, equal on all ranks
    compression: Any
    op: int
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet


class _Wrapped:
    """The base of both wrappers. A wrapper precedes the class of the program's optimizer in the
    method resolution order."""

    param_groups: list[dict[str, Any]]

    def _name_of(self, parameter: Any) -> str:
        """Returns the name of a parameter. A parameter that was added after wrapping is named by
        its index in the groups, which is the same on all ranks."""
        names = self._exchange.names
        if parameter not in names:
            taken = set(names.values())
            place = next(
                f"{i}.{j}"
                for i, group in enumerate(self.param_groups)
                for j, other in enumerate(group["params"])
                if other is parameter
            )
            name = owned("optimizer", self._exchange.number, f"noname.{place}")
            while name in taken:
                name += "+"
            names[parameter] = name
        return names[parameter]

    def _in_use(self) -> list[Any]:
        """Returns the parameters that are trained now. Since the last step groups may have been
        added, and parameters frozen or thawed."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"a DistributedOptimizer ({type(self).__name__}) can be neither copied nor pickled: its "
            "copy would step without the other ranks. Keep its state_dict(), or copy the optimizer "
            "and wrap the copy"
        )

    _exchange: _Settings


class _Distributed(_Wrapped):
    """One thread takes the steps. The hooks run on the thread that calls backward()."""

    backward_passes_per_step: int

    def _begin(self, settings: _Settings, passes: int, groups: Any) -> None:
        self._exchange = settings
        self.backward_passes_per_step = passes
        self._groups = groups
        self._trained: list[Any] = []
        self._begun: dict[Any, _Begun] = {}  # keys are parameters or groups
        self._ready: set[Any] = set()
        self._sparse: dict[Any, int] = {}  # number of sparse dimensions, keyed by parameter
        self._made: list[Any] = []  # frozen parameters whose gradient synchronize() made, as zeros
                                    # to send
        self._is_synchronized = False
        self._synchronizes = True
        self._watched: dict[Any, _Watched] = {}
        known = settings.process_set
        self._exchanges = known.included() and members(known)[0].size > 1
        self._look_again()

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = whole(passes, "backward_passes_per_step")
        self._passes_left = {p: self.backward_passes_per_step for p in self._trained}

    def _look_again(self) -> None:
        """Called between two steps. Notes which parameters are trained now and hooks them."""
        trained = self._in_use()
        if [id(p) for p in trained] != [id(p) for p in self._trained] or not trained:
            self._group_of = {p: group for group in _grouped(self._groups, trained) for p in group}
            self._trained = trained
        self._passes_left = {p: self.backward_passes_per_step for p in trained}
        if not self._exchanges:
            return
        for parameter in trained:
            watched = self._watched.get(parameter)
            if watched is None or watched.is_of_another(parameter):
                self._watched[parameter] = _Watched(parameter, self)
        if len(self._watched) > len(trained):
            self._watched = {p: self._watched[p] for p in trained}

    def _has_gradient(self, parameter: Any) -> None:
        if self._passes_left.get(parameter, 1) <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        if parameter in self._passes_left:
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
        how, name = self._exchange, self._name_of(parameter)
        gradient, back = self._dense(parameter, parameter.grad)
        if gradient.is_sparse:
            wait = sparse_allreduce_async(gradient, name, how.op, how.process_set)
            return _Begun(lambda: [wait()], [parameter], [None], [back])
        small, context = how.compression.compress(gradient.detach().contiguous())
        before, after = 1.0, 1.0
        if how.op == Average:
            before, after = 1 / how.predivide, how.predivide
        handle = allreduce_async_(small, None, name, how.op, before, after, how.process_set)
        return _Begun(lambda: [synchronize(handle)], [parameter], [context], [back])

    def _start_group(self, group: tuple[Any, ...]) -> _Begun:
        how = self._exchange
        gradients, backs = zip(*(self._dense(p, p.grad, is_grouped=True) for p in group))
        smalls, contexts = zip(
            *(how.compression.compress(gradient.detach().contiguous()) for gradient in gradients)
        )
        name = self._name_of(group[0])
        handle = grouped_allreduce_async_(
            smalls, None, name, how.op, process_set=how.process_set
        )
        return _Begun(lambda: synchronize(handle), list(group), list(contexts), list(backs))

    def _dense(
        self, parameter: Any, gradient: Tensor, is_grouped: bool = False
    ) -> tuple[Tensor, Optional[Callable[[Tensor], Tensor]]]:
        """Returns the gradient to send, and a function that converts the result to the kind of
        gradient that the optimizer expects, or None if no conversion is needed."""
        if gradient.is_sparse:
            self._sparse[parameter] = gradient.sparse_dim()
        if gradient.is_sparse and (is_grouped or self._exchange.sparse_as_dense):
            dimensions = gradient.sparse_dim()
            return gradient.to_dense(), lambda result: _to_sparse(result, dimensions)
        return gradient, None

    def _nothing(self, parameter: Any) -> Tensor:
        """Returns zeros as the gradient of a parameter that was not used. They are sparse if its
        last gradient was."""
        dimensions = self._sparse.get(parameter)
        zeros = torch.zeros_like(parameter)
        return zeros if dimensions is None else _to_sparse(zeros, dimensions)

    def synchronize(self) -> None:
        """Waits for the gradients of all ranks. A parameter without a gradient on this rank sends
        zeros."""
        if not self._exchanges:
            self._is_synchronized = True
            return
        # The parameters that were trained when the step began come first, so that all ranks send
        # the same groups.
        for parameter in self._trained:
            if parameter not in self._ready:
                if parameter.grad is None:
                    parameter.grad = self._nothing(parameter)
                    if not parameter.requires_grad:
                        self._made.append(parameter)
                self._is_complete(parameter)
        for parameter in self._in_use():
            if parameter not in self._ready:
                if parameter.grad is None:
                    parameter.grad = self._nothing(parameter)
                self._ready.add(parameter)
                self._begun[parameter] = self._start(parameter)
        begun, self._begun = self._begun, {}
        self._ready.clear()
        error = None
        for one in begun.values():
            try:
                results = one.wait()
            except RuntimeError as failure:  # the others must still be waited for
                error = error or failure
                continue
            for parameter, result, context, back in zip(
                one.parameters, results, one.contexts, one.backs
            ):
                whole_result = self._exchange.compression.decompress(result, context)
                _set_gradient(parameter, whole_result if back is None else back(whole_result))
        for parameter in self._made:
            parameter.grad = None
        self._made.clear()
        self._look_again()
        if error is not None:
            raise error
        self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() does not call synchronize(), because the program has called
        it."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Any = None) -> Any:
        """Takes a step. A closure computes gradients itself, once or several times, and the
        gradients of each call are exchanged. The optimizer gets the mean or sum of all ranks'
        losses, so that it makes the same decisions on every rank. A closure may call synchronize()
        itself, to clip."""
        if closure is not None:
            return super().step(functools.partial(self._evaluate, closure))  # type: ignore[misc]
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
        return super().step()  # type: ignore[misc]

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        self._is_synchronized = False
        loss = closure()
        if not self._is_synchronized:
            if not self._synchronizes:
                raise AssertionError(
                    "optimizer.step(closure) within optimizer.skip_synchronize(): the closure must "
                    "call optimizer.synchronize() after backward(), since it computes gradients."
                )
            self.synchronize()
        self._is_synchronized = False
        return self._of_all_ranks(loss) if self._exchanges else loss

    def _of_all_ranks(self, loss: Any) -> Any:
        """Returns the loss of all ranks. A rank whose closure returns no number takes part too, so
        that the other ranks do not wait for it forever."""
        how = self._exchange
        is_tensor = isinstance(loss, Tensor) and loss.numel() == 1
        is_number = is_tensor or isinstance(loss, (int, float))
        own = torch.tensor([float(loss) if is_number else 0.0], dtype=torch.float64)
        op = Sum if how.op == Sum else Average
        name = owned("optimizer", how.number, "loss of step(closure)")
        total = synchronize(allreduce_async_(own, None, name, op, process_set=how.process_set))
        if is_tensor:
            return total.to(loss.dtype).to(loss.device).reshape(loss.shape)
        return total.item() if is_number else loss

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


class _Watched:
    """Holds the node that accumulates a parameter's gradient, because torch keeps that node only
    while it is referenced. A hook on it runs when .grad is complete. A parameter that is cast or
    moved has another node. The hook is removed with this object and does not keep its optimizer
    alive."""

    def __init__(self, parameter: Tensor, optimizer: _Distributed) -> None:
        self._kind = (parameter.dtype, parameter.device)
        with torch.enable_grad():
            view: Any = parameter.expand_as(parameter)
            self._node = view.grad_fn.next_functions[0][0]
        of_optimizer, of_parameter = weakref.ref(optimizer), weakref.ref(parameter)

        def hook(*_: Any) -> None:
            known, trained = of_optimizer(), of_parameter()
            if known is not None and trained is not None:
                known._has_gradient(trained)

        self._handle = self._node.register_hook(hook)

    def is_of_another(self, parameter: Tensor) -> bool:
        return self._kind != (parameter.dtype, parameter.device)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.remove()


class _DistributedByAdasum(_Wrapped):
    """Each rank steps with its own gradients. The ranks combine the changes of parameters."""

    def _begin(self, settings: _Settings, passes: int, groups: Any) -> None:
        self._exchange = settings
        self.backward_passes_per_step = passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = whole(passes, "backward_passes_per_step")

    def synchronize(self) -> None:
        """Does nothing, because the changes do not exist before step()."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def step(self, closure: Any = None) -> Any:
        """Takes a step. The closure and its gradients stay on this rank; only the changes are
        exchanged."""
        how = self._exchange
        trained = self._in_use()
        before = [p.detach().clone() for p in trained]
        loss = super().step(closure)  # type: ignore[misc]
        begun = []
        with torch.no_grad():
            for parameter, start in zip(trained, before):
                change = (parameter.detach() - start).contiguous()
                small, context = how.compression.compress(change)
                handle = allreduce_async_(small, None, self._name_of(parameter), Adasum)
                begun.append((handle, context))
            for parameter, start, (handle, context) in zip(trained, before, begun):
                change = how.compression.decompress(synchronize(handle), context)
                parameter.copy_(start + change)
        return loss


def _to_sparse(gradient: Tensor, dimensions: int) -> Tensor:
    """Returns the gradient without the rows that are all zero. Some versions of torch lack
    to_sparse() with several dimensions."""
    flat = gradient.reshape(*gradient.shape[:dimensions], -1)
    where = (flat != 0).any(-1).nonzero().t()
    rows = gradient[tuple(where)]
    return torch.sparse_coo_tensor(where, rows, gradient.shape).coalesce()


def _set_gradient(parameter: Any, result: Tensor) -> None:
    if result.is_sparse or parameter.grad.is_sparse:
        parameter.grad = result
    elif result.data_ptr() != parameter.grad.data_ptr():
        with torch.no_grad():
            parameter.grad.copy_(result)


def _grouped(groups: Any, trained: list[Any]) -> list[tuple[Any, ...]]:
    """Returns the groups. `groups` is a number of groups, or lists of parameters. Parameters in no
    group are sent alone."""
    if not groups:
        return []
    if not isinstance(groups, (list, tuple)):
        groups = whole(groups, "groups")
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
            parameter: f"noname.{i}.{j}"
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
    """Returns an optimizer of the same class over the same parameters and state, whose step() waits
    for the gradients of all ranks. Each gradient is sent as soon as it is complete, under its
    parameter's name.

    The gradients of `backward_passes_per_step` passes are added up before they are sent, and not
    divided. With `gradient_predivide_factor` f, gradients are divided by f before the sum and by
    size/f after it. `groups` is a number, or lists of parameters whose gradients are sent together;
    `num_groups` is its older name. With op=Adasum the changes of step() are combined instead of
    gradients. On a rank outside `process_set` nothing is exchanged."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("num_groups is deprecated; give groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if isinstance(groups, Iterable):
        groups = [list(group) for group in groups]  # generators can be read only once
    passes = whole(backward_passes_per_step, "backward_passes_per_step")
    by_adasum = op == Adasum
    if by_adasum and process_set.process_set_id != 0:
        raise ValueError("DistributedOptimizer: Adasum runs on all ranks, not on a process set")
    settings = _Settings()
    names = _names(optimizer, named_parameters)
    settings.number = next_optimizer(process_set)
    settings.names = {p: owned("optimizer", settings.number, name) for p, name in names.items()}
    settings.compression, settings.op = compression, op
    settings.predivide, settings.sparse_as_dense = gradient_predivide_factor, sparse_as_dense
    settings.process_set = process_set
    base = type(optimizer)
    before = _DistributedByAdasum if by_adasum else _Distributed
    kind = type(base.__name__, (before, base), {"__module__": base.__module__})
    wrapped: Any = object.__new__(kind)
    # The wrapper shares groups and state, so that objects made for the given optimizer, such as a
    # learning rate schedule, still work.
    wrapped.__dict__.update(optimizer.__dict__)
    wrapped.__dict__.pop("step", None)  # removes a scheduler's wrapper of step
    wrapped._begin(settings, passes, groups)
    return wrapped
