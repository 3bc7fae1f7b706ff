"""The exception classes, one for each status of the library, and the text by which an exception of
the program is described to other ranks."""

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
    """Returns the text by which the other ranks learn why this rank closes, or None if there is no
    error."""
    if error is None or isinstance(error, GeneratorExit):
        return None
    if isinstance(error, SystemExit) and not error.code:
        return None
    try:
        if isinstance(error, BaseException):
            text = "".join(traceback.format_exception_only(error)).strip()
        else:
            text = str(error)
    except Exception:  # the memory is used up, or the program's __str__ raises; closing must go on
        text = type(error).__name__
    return text.replace("\0", " ").encode(errors="replace").decode()


def ending():
    """Returns the exception that ended the program, or None. It is called at the program's end."""
    if hasattr(sys, "ps1"):
        return None  # at a prompt, the user went on after the last exception
    return getattr(sys, "last_value", None)
