"""An exception class for each status of the library, with its one line; and how an exception of the
program reads on the other ranks."""

import sys
import traceback


class Error(RuntimeError):
    code = 0
    rank = -1
    tensor = ""


class InvalidArgumentError(Error, ValueError):
    code = 1


class MismatchError(Error):
    code = 2


class DuplicateNameError(Error, ValueError):
    code = 3


class TimedOutError(Error, TimeoutError):
    code = 4


class PeerError(Error):
    pass


class PeerLostError(PeerError):
    code = 5


class PeerSilentError(PeerError):
    code = 6


class PeerLeftError(PeerError):
    code = 7


class ClosedError(Error):
    code = 8


class AuthenticationError(Error):
    code = 9


class VersionError(Error):
    code = 10


class UnavailableError(Error):
    code = 11


class InputOutputError(Error):
    code = 12


class CorruptDataError(Error):
    code = 13


class OutOfMemoryError(Error, MemoryError):
    code = 14


class CallbackError(Error):
    code = 15


class InternalError(Error):
    code = 16


_by_code = {
    kind.code: kind
    for kind in (
        InvalidArgumentError, MismatchError, DuplicateNameError, TimedOutError, PeerLostError,
        PeerSilentError, PeerLeftError, ClosedError, AuthenticationError, VersionError,
        UnavailableError, InputOutputError, CorruptDataError, OutOfMemoryError, CallbackError,
        InternalError,
    )
}  # fmt: skip


def make(code, text, rank, tensor):
    error = _by_code.get(code, InternalError)(text)
    error.rank = rank
    error.tensor = tensor
    return error


def refused(text):
    return InvalidArgumentError(text)


def described(error):
    """What the other ranks read of the error because of which this one closes; None: of none."""
    if error is None or isinstance(error, GeneratorExit):
        return None
    if isinstance(error, SystemExit) and not error.code:
        return None
    try:
        if isinstance(error, BaseException):
            text = "".join(traceback.format_exception_only(error)).strip()
        else:
            text = str(error)
    except Exception:  # of memory that is used up, or a __str__ of the program: closing goes on
        text = type(error).__name__
    return text.replace("\0", " ").encode(errors="replace").decode()


def ending():
    """At the program's end: the exception that ended it, or None."""
    if hasattr(sys, "ps1"):
        return None  # after a prompt's last exception the user went on
    return getattr(sys, "last_value", None)
