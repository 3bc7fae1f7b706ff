"""Functions that the calls of torch's adapters share: they make names that no other operation under
way has, read whole numbers, and tell the other ranks when this rank refuses a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import tutti
from tutti import _native  # type: ignore[attr-defined]


def owned(kind: str, number: int, what: str) -> str:
    """The name of an operation of a model or an optimizer. Two of them may have parameters of the
    same name and be under way together, so each has a number, which is equal on all ranks."""
    return f"{kind} {number}/{what}"


def whole(value: Any, what: str) -> int:
    """A whole number as it was given. Nothing is converted to one; raises ValueError."""
    return cast(int, _native.whole(value, what))


def whole_numbers(values: Any, what: str) -> list[int]:
    try:
        given = list(values)
    except TypeError:
        raise ValueError(f"{what} must be whole numbers, not {type(values).__name__}") from None
    return [whole(value, f"each of {what}") for value in given]


def tell(comm: tutti.Communicator, names: Sequence[str]) -> None:
    """Submits a barrier under each name of a call that this rank has refused. A barrier matches no
    other kind, so the ranks whose call was not refused hear of it at once. The next call then has
    the same number on all ranks."""
    for name in names:
        with contextlib.suppress(tutti.Error):  # also of one that is under way already
            comm.barrier(name).add_done_callback(lambda work: work.exception())  # its own


@contextlib.contextmanager
def told(comm: tutti.Communicator, names: Sequence[str]) -> Iterator[None]:
    """Within it a call submits operations of these names. If it is refused, tell() reports them."""
    try:
        yield
    except Exception:
        tell(comm, names)
        raise
