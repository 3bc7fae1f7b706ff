"""Tutti's own DistributedDataParallel: gradients in an arena, no buckets, any order."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Callable, Iterator, Optional

import torch
import tutti
from torch import Tensor, nn

from ._group import group_of
from ._memory import is_dense, raw_memory, word_of


class DistributedDataParallel(nn.Module):
    """Wraps a module on the CPU so that every backward pass ends with the mean over all ranks of
    each parameter's gradient. Gradients lie in one block of the library's memory, which ranks of
    one host reduce where they are; each is handed over by its name the moment it is complete.

    After backward() `parameter.grad` is a view of that block. zero_grad() may set it to None, which
    costs a copy into the block in the next step; zero_grad(set_to_none=False) costs zeroing
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
        self._comm = self.process_group.named_communicator()
        self._named = [
            (name, parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and parameter.numel() > 0
        ]
        if not self._named:
            raise ValueError("DistributedDataParallel: no parameter of the module requires a gradient")
        for name, parameter in self._named:
            _check(name, parameter)
        self._broadcasts_buffers = broadcast_buffers
        # Models of one process may have the same names, and ranks wrap them in one order.
        self._prefix = f"model {self.process_group.next_model()}/"
        self._compare()
        self._broadcast([*module.named_parameters(), *module.named_buffers()])
        self._arena = self._comm.arena(
            {
                self._prefix + name: (word_of(parameter.dtype), (parameter.numel(),))
                for name, parameter in self._named
            },
            "average",
            wire=wire,  # type: ignore[arg-type]
            may_be_left_out=[self._prefix + name for name, _ in self._named]
            if find_unused_parameters
            else (),
        )
        self._views = [self._view(name, parameter) for name, parameter in self._named]
        self._hooks: Any = self._arena._native  # which know what came in this backward pass
        self._arrays = [self._prefix + name for name, _ in self._named]
        self._is_broken = False  # the arena's step was left half done
        self._accumulators = []
        for index, (_, parameter) in enumerate(self._named):
            # The node that adds to .grad. Tensor.register_hook would run before it has.
            with torch.enable_grad():
                view: Any = parameter.expand_as(parameter)
                node = view.grad_fn.next_functions[0][0]
            node.register_hook(
                self._hooks.hook(
                    index,
                    parameter,
                    self._views[index],
                    functools.partial(_at_the_end_of_backward, self._finish),
                    functools.partial(self._move, index),
                )
            )
            self._accumulators.append(node)  # the parameter holds it weakly

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether gradients are handed over, under the name that torch's own has."""
        return bool(self._hooks.listens)

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        self._hooks.listens = wanted

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        if self.require_backward_grad_sync and (self._hooks.has_begun or self._is_broken):
            raise RuntimeError(
                f"rank {self.process_group.rank()}: an earlier backward() ended in an exception after "
                "some of its gradients were handed over, so the ranks may be in different steps; make "
                "a new DistributedDataParallel on every rank"
            )
        if self.training and self.require_backward_grad_sync and self._broadcasts_buffers:
            # Asked anew each time: the module may have put others in their place.
            self._broadcast(list(self.module.named_buffers()))
        return self.module(*inputs, **keywords)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate on this rank."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    # --- inside ---

    def _view(self, name: str, parameter: Tensor) -> Tensor:
        """The arena's memory with the strides of the parameter, as autograd makes gradients."""
        flat = torch.utils.dlpack.from_dlpack(self._arena[self._prefix + name])
        return flat.as_strided(parameter.shape, parameter.stride())

    def _compare(self) -> None:
        """All ranks get one error if the model is not the same on each: tensors of other names or in
        another order would be waited for."""
        needs = {name for name, _ in self._named}
        tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
        own = [
            f'"{name}", {tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()}'
            + ("" if name in needs else ", without a gradient")
            for name, tensor in tensors
        ]
        work = self._comm.allgather(f"{self._prefix}its tensors", "\n".join(own).encode())
        rows = bytes(work.wait(self.process_group.seconds).tobytes())
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

    def _broadcast(self, tensors: list[tuple[str, Tensor]]) -> None:
        works, backs = [], []
        for name, tensor in tensors:
            whole = tensor.detach().contiguous()
            works.append(self._comm.broadcast(f"{self._prefix}{name} (of rank 0)", raw_memory(whole)))
            if whole.data_ptr() != tensor.data_ptr():
                backs.append((tensor, whole))
        for work in works:
            work.wait(self.process_group.seconds)
        with torch.no_grad():
            for tensor, whole in backs:
                tensor.copy_(whole)

    def _move(self, index: int) -> None:
        """A gradient that autograd has made elsewhere goes into the arena."""
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
        # What autograd left may be another view of the same memory.
        parameter.grad = view

    def _finish(self) -> None:
        """At the end of backward()."""
        missing: list[int] = self._hooks.take_missing()
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
                    f"rank {self.process_group.rank()}: this backward pass gave no gradient to "
                    f'parameter "{name}" ({len(missing)} such); use it in the loss, or pass '
                    "find_unused_parameters=True"
                )
        try:
            self._arena.wait(self.process_group.seconds)
        except BaseException:  # a timeout, or Ctrl-C: the arena's step is still open
            self._is_broken = True
            raise
        for index in left_out:
            name, parameter = self._named[index]
            if self._arena.used(self._arrays[index]):
                parameter.grad = self._views[index]


def _at_the_end_of_backward(finish: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(finish)


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
