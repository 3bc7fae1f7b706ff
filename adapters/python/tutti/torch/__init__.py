"""Tutti under PyTorch.

    import torch.distributed as dist
    import tutti.torch
    dist.init_process_group("tutti")

makes torch.distributed, DistributedDataParallel and all that uses them run over Tutti.

    import tutti.torch as hvd

is Horovod's API for PyTorch, name by name. See docs/pytorch.md.
"""

from . import _version  # noqa: F401  first: it says if torch is too old
from ._ddp import DistributedDataParallel
from ._group import Group, group_of, register
from ._hook import HookState, ddp_hook, register_ddp_hook
from ._rendezvous import register as _register_rendezvous
from .horovod import *  # noqa: F403
from .horovod import __all__ as _of_horovod

register()
_register_rendezvous()

__all__ = [
    "DistributedDataParallel",
    "Group",
    "HookState",
    "ddp_hook",
    "group_of",
    "register",
    "register_ddp_hook",
    *_of_horovod,
]
