"""Tutti for Python: collectives on anything with the buffer protocol or DLPack (docs/python.md)."""

import atexit as _atexit
import os as _os
import sys as _sys
import threading as _threading

if _sys.version_info < (3, 11):
    raise ImportError(
        "tutti needs Python 3.11 or later (this is {}.{}); run the program with a newer one, such as "
        "the python3 that tutti was installed for".format(*_sys.version_info[:2])
    )

from ._distribution import other_distribution as _other_distribution

if _other := _other_distribution():
    print(_other, file=_sys.stderr)

try:
    from . import _native
except ImportError as _error:
    raise ImportError(
        f"tutti: its library could not be loaded ({_error}). Import the installed package, of the "
        "distribution tutti-collectives; another distribution has the name tutti"
    ) from _error

from . import _await, _errors
from ._communicator import Arena, Communicator, Statistics
from ._errors import (
    AuthenticationError,
    CallbackError,
    ClosedError,
    CorruptDataError,
    DuplicateNameError,
    Error,
    InputOutputError,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    OutOfMemoryError,
    PeerError,
    PeerLeftError,
    PeerLostError,
    PeerSilentError,
    TimedOutError,
    UnavailableError,
    VersionError,
)
from ._native import Declared, Memory, MemoryStore, Tensor, Work
from ._store import Store

__version__ = _native.version

_native.prepare(_errors.make, _await.wait_for, _threading.main_thread().ident)
# Functions that the program registers later run before this, so they may still use communicators.
_atexit.register(lambda: _native.close_all(_errors.described(_errors.ending())))
_os.register_at_fork(after_in_child=_native.after_fork)

__all__ = [
    "Arena",
    "AuthenticationError",
    "CallbackError",
    "ClosedError",
    "Communicator",
    "CorruptDataError",
    "Declared",
    "DuplicateNameError",
    "Error",
    "InputOutputError",
    "InternalError",
    "InvalidArgumentError",
    "Memory",
    "MemoryStore",
    "MismatchError",
    "OutOfMemoryError",
    "PeerError",
    "PeerLeftError",
    "PeerLostError",
    "PeerSilentError",
    "Statistics",
    "Store",
    "Tensor",
    "TimedOutError",
    "UnavailableError",
    "VersionError",
    "Work",
]
