"""Tutti's own DistributedDataParallel. Gradients are in an arena, one block of the library's
memory. There are no buckets, and gradients may become ready in any order."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from typing import Any, Callable, Iterator, Optional

import torch
import tutti
from torch import Tensor, nn

from ._calls import owned
from ._group import Group, group_of
from ._memory import is_dense, raw_memory, word_of


class DistributedDataParallel(nn.Module):
    """Wraps a module on the CPU so that every backward pass ends with the mean over all ranks of
    each parameter's gradient. Gradients are in one block of the library's memory, which ranks of
    one host reduce in place. Each is announced by its name as soon as it is complete.

    After backward() `parameter.grad` is a view of that block. zero_grad() may set it to None, which
    costs a copy into the block in the next step. zero_grad(set_to_none=False) costs zeroing
    instead."""

    def __init__(
        self,
        module: nn.Module,
        *,
        process_group: Any = None,
        wire: Optional[str] = None,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self.process_group = group_of(process_group)
        self._finds_unused = find_unused_parameters
        self._wire = wire
        self._broadcasts_buffers = broadcast_buffers
        self._hands_over = True
        self._reducer: Optional[_Reducer] = self._make_reducer()

    def _make_reducer(self) -> _Reducer:
        # A copy may have been read from a file before the group existed, so it gets its group here.
        self.process_group = group_of(self.process_group)
        reducer = _Reducer(self.module, self.process_group, self._wire, self._finds_unused)
        reducer.hooks.listens = self._hands_over
        return reducer

    # A copy has no arena with the other ranks. It makes one when it is first trained, so that one
    # rank alone may copy, save and load a model.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reducer": None}

    @property
    def require_backward_grad_sync(self) -> bool:
        """Returns whether gradients are reduced. The name is that of torch's own class."""
        return self._hands_over

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        self._hands_over = wanted
        if self._reducer is not None:
            self._reducer.hooks.listens = wanted

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        if self._hands_over:
            trains = torch.is_grad_enabled() or self.training
            if self._reducer is None and trains and _trains(self.module):
                self._reducer = self._make_reducer()
            if self._reducer is not None:
                self._reducer.begin()
                if self.training and self._broadcasts_buffers:
                    # The buffers are listed each time, because the module may have replaced them.
                    self._reducer.broadcast(list(self.module.named_buffers()))
        return self.module(*inputs, **keywords)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward passes only accumulate gradients on this rank."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


class _Reducer:
    """The part of a wrapped model that is shared with the other ranks: the arena of its gradients,
    and the hooks that announce them. The hooks are on nodes of autograd, which may live longer than
    this object. So they refer to it weakly, and its destructor removes them."""

    def __init__(
        self, module: nn.Module, group: Group, wire: Optional[str], finds_unused: bool
    ) -> None:
        self._module = module
        self._group = group
        self._finds_unused = finds_unused
        self._comm = group.named_communicator()
        self._named = [
            (name, parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and parameter.numel() > 0
        ]
        if not self._named:
            raise ValueError("DistributedDataParallel: no parameter of the module requires a gradient")
        for name, parameter in self._named:
            _check(name, parameter)
        self._remember()
        self._number = group.next_model()
        self._compare()
        self.broadcast([*module.named_parameters(), *module.named_buffers()])
        self._arrays = [self._own(name) for name, _ in self._named]
        self._arena = self._comm.arena(
            {
                array: (word_of(parameter.dtype), (parameter.numel(),))
                for array, (_, parameter) in zip(self._arrays, self._named)
            },
            "average",
            wire=wire,  # type: ignore[arg-type]
            may_be_left_out=self._arrays if finds_unused else (),
        )
        self._views = [
            self._view(array, parameter) for array, (_, parameter) in zip(self._arrays, self._named)
        ]
        self.hooks: Any = self._arena._native  # records which gradients of this pass are announced
        self._is_broken = False  # the arena's step was interrupted
        self._accumulators, self._handles = [], []
        finish = functools.partial(_at_the_end_of_backward, weakref.WeakMethod(self._finish))
        move = weakref.WeakMethod(self._move)
        for index, (_, parameter) in enumerate(self._named):
            # The hook is on the node that adds to .grad. A hook of Tensor.register_hook would run
            # before the addition.
            with torch.enable_grad():
                view: Any = parameter.expand_as(parameter)
                node = view.grad_fn.next_functions[0][0]
            elsewhere = functools.partial(_call, move, index)
            hook = self.hooks.hook(index, parameter, self._views[index], finish, elsewhere)
            self._handles.append(node.register_hook(hook))
            self._accumulators.append(node)  # the parameter holds it only weakly

    def __del__(self) -> None:
        for handle in self.__dict__.get("_handles", ()):
            handle.remove()

    def begin(self) -> None:
        """Called before a forward pass. Raises RuntimeError if the last backward pass was
        interrupted, or if a parameter has another dtype or device than when wrapped, or newly
        requires a gradient."""
        rank = self._group.rank()
        if self.hooks.has_begun or self._is_broken:
            raise RuntimeError(
                f"rank {rank}: an earlier backward() ended in an exception after "
                "some of its gradients were handed over, so the ranks may be in different steps; make "
                "a new DistributedDataParallel on every rank"
            )
        if self._is_as_wrapped():
            return
        for name, parameter in self._module.named_parameters():
            if not parameter.requires_grad:
                continue
            kind = self._kinds.get(id(parameter))
            if kind == (parameter.dtype, parameter.device):
                continue
            what = (
                f"was {kind[0]} on {kind[1]} when the model was wrapped, and is {parameter.dtype} on "
                f"{parameter.device}"
                if kind is not None
                else "requires a gradient and did not when the model was wrapped, or was put there "
                "since"
            )
            raise RuntimeError(
                f'rank {rank}: parameter "{name}" {what}, so the ranks would not share its gradient; '
                "make a new DistributedDataParallel on every rank"
            )
        self._remember()

    def _remember(self) -> None:
        self._places = [(one, [*one._modules.values()]) for one in self._module.modules()]
        self._kinds = {
            id(parameter): (parameter.dtype, parameter.device)
            for parameter in self._module.parameters()
            if parameter.requires_grad
        }

    def _is_as_wrapped(self) -> bool:
        """Returns whether the module still has the same parameters. The comparison ignores names,
        because collecting them takes ten times as long."""
        for module, children in self._places:
            if module._modules and [*module._modules.values()] != children:
                return False
            for parameter in module._parameters.values():
                if parameter is None or not parameter.requires_grad:
                    continue
                kind = self._kinds.get(id(parameter))
                if kind is None or kind[0] != parameter.dtype or kind[1] != parameter.device:
                    return False
        return True

    # --- internals ---

    def _own(self, what: str) -> str:
        return owned("model", self._number, what)

    def _view(self, array: str, parameter: Tensor) -> Tensor:
        """Returns the arena's memory with the strides of the parameter, which autograd's gradients
        have."""
        flat = torch.utils.dlpack.from_dlpack(self._arena[array])
        return flat.as_strided(parameter.shape, parameter.stride())

    def _compare(self) -> None:
        """Raises the same error on all ranks if the model is not the same on each. Otherwise ranks
        would wait for tensors with other names, or in another order."""
        needs = {name for name, _ in self._named}
        tensors = [*self._module.named_parameters(), *self._module.named_buffers()]
        own = [
            f'"{name}", {tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()}'
            + ("" if name in needs else ", without a gradient")
            for name, tensor in tensors
        ]
        work = self._comm.allgather(self._own("its tensors"), "\n".join(own).encode())
        rows = bytes(work.wait(self._group.seconds).tobytes())
        models = []
        for count in work.received_counts():
            models.append(rows[:count].decode().split("\n"))
            rows = rows[count:]
        for rank, model in enumerate(models):
            for index, pair in enumerate(itertools.zip_longest(model, models[0], fillvalue="nothing")):
                if pair[0] != pair[1]:
                    raise tutti.MismatchError(
                        f"DistributedDataParallel: tensor {index} of the model on rank {rank} is "
                        f"{pair[0]}, and on rank 0 {pair[1]}; build the same model on every rank"
                    )

    def broadcast(self, tensors: list[tuple[str, Tensor]]) -> None:
        works, backs = [], []
        for name, tensor in tensors:
            whole = tensor.detach().contiguous()
            works.append(self._comm.broadcast(self._own(f"{name} (of rank 0)"), raw_memory(whole)))
            if whole.data_ptr() != tensor.data_ptr():
                backs.append((tensor, whole))
        for work in works:
            work.wait(self._group.seconds)
        with torch.no_grad():
            for tensor, whole in backs:
                tensor.copy_(whole)

    def _move(self, index: int) -> None:
        """Copies a gradient into the arena if autograd has put it into other memory."""
        name, parameter = self._named[index]
        gradient, view = parameter.grad, self._views[index]
        assert gradient is not None
        if gradient.layout != torch.strided:
            raise ValueError(
                f'parameter "{name}" has a sparse gradient, which an arena cannot hold; make its '
                "layer dense, or use torch's own DistributedDataParallel"
            )
        if gradient.data_ptr() != view.data_ptr():
            with torch.no_grad():
                view.copy_(gradient)
        # Autograd may have left another view of the same memory, so this sets the arena's view
        # again.
        parameter.grad = view

    def _finish(self) -> None:
        """Called at the end of backward()."""
        missing: list[int] = self.hooks.take_missing()
        left_out = []
        for index in missing:
            name, parameter = self._named[index]
            if parameter.grad is not None:  # accumulated under no_sync
                self._move(index)
                self._arena.ready(self._arrays[index])
            elif self._finds_unused:
                self._arena.leave_out(self._arrays[index])
                left_out.append(index)
            else:
                self._is_broken = True
                raise RuntimeError(
                    f"rank {self._group.rank()}: this backward pass gave no gradient to "
                    f'parameter "{name}" ({len(missing)} such); use it in the loss, or pass '
                    "find_unused_parameters=True"
                )
        try:
            self._arena.wait(self._group.seconds)
        except BaseException:  # a timeout, or Ctrl-C: the arena's step is still open
            self._is_broken = True
            raise
        for index in left_out:
            name, parameter = self._named[index]
            if self._arena.used(self._arrays[index]):
                parameter.grad = self._views[index]


def _at_the_end_of_backward(finish: "weakref.WeakMethod[Callable[[], None]]") -> None:
    torch.autograd.Variable._execution_engine.queue_callback(functools.partial(_call, finish))


def _call(method: Any, *arguments: Any) -> None:
    """Calls the method behind a weak reference, unless its object no longer exists."""
    bound = method()
    if bound is not None:
        bound(*arguments)


def _check(name: str, parameter: Tensor) -> None:
    if parameter.device.type != "cpu":
        raise ValueError(
            f'parameter "{name}" is on {parameter.device}, and an arena lies in host memory; use '
            "torch's own DistributedDataParallel with ddp_hook"
        )
    if not is_dense(parameter):
        raise ValueError(
            f'parameter "{name}" of shape {tuple(parameter.shape)} has strides '
            f"{parameter.stride()} with gaps; make it contiguous"
        )
