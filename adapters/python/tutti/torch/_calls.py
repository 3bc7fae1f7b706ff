"""Functions that the adapters of torch share. They make names that no other pending operation has,
read whole numbers, and announce to the other ranks that this rank refuses a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import tutti
from tutti import _native  # type: ignore[attr-defined]


def owned(kind: str, number: int, what: str) -> str:
    """Returns the name of an operation of a model or an optimizer. Two models may have parameters
    of the same name that are pending together. So each model has a `number`, equal on all ranks."""
    return f"{kind} {number}/{what}"


def whole(value: Any, what: str) -> int:
    """Returns a whole number as it was given. Raises ValueError for other types, which are not
    converted."""
    return cast(int, _native.whole(value, what))


def whole_numbers(values: Any, what: str) -> list[int]:
    try:
        given = list(values)
    except TypeError:
        raise ValueError(f"{what} must be whole numbers, not {type(values).__name__}") from None
    return [whole(value, f"each of {what}") for value in given]


def tell(comm: tutti.Communicator, names: Sequence[str]) -> None:
    """Submits a barrier under each name of a call that this rank has refused. A barrier matches no
    other kind, so the ranks whose call was not refused get an error immediately. The next call then
    has the same number on all ranks."""
    for name in names:
        with contextlib.suppress(tutti.Error):  # an operation of this name may be pending
            # The callback retrieves the barrier's own error.
            comm.barrier(name).add_done_callback(lambda work: work.exception())


@contextlib.contextmanager
def told(comm: tutti.Communicator, names: Sequence[str]) -> Iterator[None]:
    """A context in which a call submits operations of these names. If the call is refused, tell()
    announces that under the names."""
    try:
        yield
    except Exception:
        tell(comm, names)
        raise
