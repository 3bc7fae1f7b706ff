"""An exception class for each status of the library, with its one line."""


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
