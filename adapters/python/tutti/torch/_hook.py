"""A communication hook for torch's DistributedDataParallel."""

from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from ._calls import owned
from ._group import group_of
from ._memory import memory
from ._work import Work

_WIRES = (None, "f16", "bf16")


class HookState:
    """The state of ddp_hook: the names of a model's parameters, the group, and the dtype in which
    gradients are sent (`wire`: "f16" or "bf16" instead of 32 bits). All ranks make the states of
    their models in one order."""

    def __init__(self, module: Any, process_group: Any = None, *, wire: Optional[str] = None) -> None:
        if wire not in _WIRES:
            raise ValueError(f'wire is {wire!r}; it is "f16", "bf16" or None')
        self.group: Any = group_of(process_group)
        self.wire = wire
        self.names = {parameter: name for name, parameter in module.named_parameters()}
        self._number: Optional[int] = self.group.next_model()
        self._buckets: dict[int, "_Bucket"] = {}

    # A copy gets a number of its own when it is first used, so that one rank alone may make a copy.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_number": None, "_buckets": {}}

    def own(self, what: str) -> str:
        """Returns the name of an operation of this model. Other models of the group have other
        names."""
        if self._number is None:
            self.group = group_of(self.group)
            self._number = self.group.next_model()
        return owned("model", self._number, what)

    def bucket(self, index: int, buffer: Tensor, parameters: Callable[[], list[Tensor]]) -> "_Bucket":
        """Returns the hook's object for a bucket. The object stays the same from step to step until
        torch makes other buckets."""
        known = self._buckets.get(index)
        # A GPU's stream may change.
        if known is None or known.buffer is not buffer or buffer.is_cuda:
            if known is not None:  # buckets that no longer exist are forgotten
                self._buckets.clear()
            known = self._buckets[index] = _Bucket(self, buffer, parameters())
        return known


class _Bucket:
    """A bucket is one block of memory, so its gradients are sent as one tensor. They need not be
    looked up, packed and unpacked one by one."""

    def __init__(self, state: HookState, buffer: Tensor, parameters: list[Tensor]) -> None:
        self.buffer = buffer
        self.memory = memory(buffer)
        first, last = _name(state, parameters[0]), _name(state, parameters[-1])
        self.name = state.own(f"gradients from {first} to {last}")
        is_wide = buffer.dtype in (torch.float32, torch.float64)
        self.wire: Any = state.wire if is_wide else None


# DistributedDataParallel checks the types in this signature, so they cannot be strings.
def ddp_hook(
    state: HookState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Averages a bucket's gradients under the names of its first and last parameter. So ranks may
    reach their buckets in any order, and repeated steps are replayed without negotiation. An error
    or a report of a late rank names the parameters. The last bucket of a pass is waited for here,
    because torch would only wait too, with more threads in between."""
    buffer: Tensor = bucket.buffer()
    if buffer.layout != torch.strided:
        total = state.group.allreduce([buffer], dist.ReduceOp.AVG)
        return total.future_of(buffer)  # type: ignore[no-any-return]
    known = state.bucket(bucket.index(), buffer, bucket.parameters)
    work = state.group.named_communicator().allreduce(
        known.name, known.memory, "average", wire=known.wire
    )
    over = Work((work,), buffer, state.group.seconds)
    if bucket.is_last() and not buffer.is_cuda:
        over.wait()
    return over.get_future()  # type: ignore[no-any-return]


def _name(state: HookState, parameter: Tensor) -> str:
    name: Optional[str] = state.names.get(parameter)
    if name is None:
        raise ValueError(
            f"ddp_hook: a parameter of shape {tuple(parameter.shape)} is not in the module that "
            "HookState was given; give it the one that DistributedDataParallel wraps"
        )
    return name


def register_ddp_hook(ddp: Any, *, wire: Optional[str] = None) -> None:
    """Registers ddp_hook with one of torch's DistributedDataParallel."""
    ddp.register_comm_hook(HookState(ddp.module, ddp.process_group, wire=wire), ddp_hook)
