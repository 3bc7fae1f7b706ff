"""Operations under way, by their handles."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Callable, Optional, Sequence

import tutti

from ._world import HorovodInternalError


class Pending:
    """The Works of a call, and the function that makes the caller's result when they have ended."""

    def __init__(self, works: Sequence[tutti.Work], finish: Callable[[], Any]) -> None:
        self.works = works
        self.finish = finish


_lock = threading.Lock()
_numbers = itertools.count()
_pending: dict[int, Pending] = {}


def handle_of(works: Sequence[tutti.Work], finish: Callable[[], Any]) -> int:
    with _lock:
        handle = next(_numbers)
        _pending[handle] = Pending(works, finish)
    return handle


def giving(handle: int, value: Any) -> int:
    """Makes synchronize() return the caller's own tensor, for an operation in place."""
    pending = _pending[handle]
    finish = pending.finish

    def both() -> Any:
        finish()
        return value

    pending.finish = both
    return handle


def poll(handle: int) -> bool:
    """Returns whether synchronize() would return without waiting."""
    pending = _pending.get(handle)
    if pending is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return all(work.done() for work in pending.works)


def synchronize(handle: Optional[int]) -> Any:
    """Waits for the operation and returns its result. A handle can be used once. Returns None for
    an unknown handle. Raises HorovodInternalError if the operation failed."""
    with _lock:
        pending = _pending.pop(handle, None)  # type: ignore[arg-type]
    if pending is None:
        return None

    # Waits for all operations before it raises the first error, because after an error the caller
    # may free the memory of every operation.
    error: Optional[tutti.Error] = None
    for work in pending.works:
        try:
            work.wait()
        except tutti.Error as failure:
            error = error or failure
    if error is not None:
        raise HorovodInternalError(str(error)) from error
    return pending.finish()
