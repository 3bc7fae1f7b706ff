"""What the calls of torch's adapters share: names that no other operation under way bears, whole
numbers, and a word to the other ranks where one refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import tutti
from tutti import _native  # type: ignore[attr-defined]


def owned(kind: str, number: int, what: str) -> str:
    """The name of an operation of a model or an optimizer. Two of them may have parameters of one
    name and be under way together, so each has a number, alike on all ranks."""
    return f"{kind} {number}/{what}"


def whole(value: Any, what: str) -> int:
    """A whole number as it was given: nothing is converted to one. ValueError."""
    return cast(int, _native.whole(value, what))


def whole_numbers(values: Any, what: str) -> list[int]:
    try:
        given = list(values)
    except TypeError:
        raise ValueError(f"{what} must be whole numbers, not {type(values).__name__}") from None
    return [whole(value, f"each of {what}") for value in given]


def tell(comm: tutti.Communicator, names: Sequence[str]) -> None:
    """Where operations of these names are refused, this rank takes part in them all the same, by
    barriers, which match nothing else: the other ranks, which were not refused, hear of it at once,
    and whatever comes next has the same number on all ranks."""
    for name in names:
        with contextlib.suppress(tutti.Error):  # also of one that is under way already
            comm.barrier(name).add_done_callback(lambda work: work.exception())  # its own


@contextlib.contextmanager
def told(comm: tutti.Communicator, names: Sequence[str]) -> Iterator[None]:
    """A call that submits operations of these names, which tell() is called for if it is refused."""
    try:
        yield
    except Exception:
        tell(comm, names)
        raise
