"""c10d's messages between two ranks."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, Callable, Optional

import torch
import tutti
from torch import Tensor

from ._memory import as_input, in_place, raw_memory, seconds_of, single
from ._work import Work

_Finish = Optional[Callable[[], None]]


class PointToPoint:
    """Messages of one group, numbered for each pair of ranks and tag, so that they are matched in
    order, apart from the group's collectives."""

    _comm: tutti.Communicator
    _group: str
    _place: int
    _extent: int
    _seconds: float

    def _begin_messages(self) -> None:
        self._counts: dict[tuple[int, int, int], int] = defaultdict(int)
        self._mail: dict[int, _Mailbox] = {}  # by tag, of receives from any rank
        self._messages = threading.RLock()  # of both, and of all mailboxes

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        tensor = single("send", tensors)
        self._check_peer("send", "to", dst)
        own = as_input("send", tensor)
        work = self._comm.send(self._message(self._place, dst, tag), raw_memory(own), dst)
        return Work((work,), [tensor], self._seconds)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        tensor = single("recv", tensors)
        self._check_peer("recv", "from", src)
        dense, back = in_place("recv", tensor)
        with self._messages:
            asked = self._mail[tag].take_over(src, dense) if tag in self._mail else None
            if asked is None:
                work = self._comm.recv(self._message(src, self._place, tag), raw_memory(dense), src)
                return Work((work,), [tensor], self._seconds, back, src)
        work, came = asked
        return Work((work,), [tensor], self._seconds, lambda: deliver(came, dense, back), src)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        tensor = single("recv", tensors)
        if self._extent == 1:
            raise ValueError("recv: there is no other rank in this group that could send")
        with self._messages:
            mail = self._mail.setdefault(tag, _Mailbox(self, tag))
            return mail.wait_for_any(tensor)

    def _message(self, source: int, target: int, tag: int) -> str:
        with self._messages:
            number = self._counts[source, target, tag]
            self._counts[source, target, tag] = number + 1
        return f"group {self._group}/{source}-{target}/tag {tag}/{number}"

    def _check_peer(self, call: str, word: str, peer: int) -> None:
        if peer == self._place or not 0 <= peer < self._extent:
            raise ValueError(
                f"{call}: rank {self._place} cannot {call} {word} rank {peer} in a group of "
                f"{self._extent} ranks"
            )


class _Mailbox:
    """Receives of one tag from whichever rank sends first. Tutti's receives name their rank, so
    every rank is asked, into memory of the box; what comes goes to the oldest that waits, or lies
    here for the next receive. Under the lock of the group's messages."""

    def __init__(self, group: PointToPoint, tag: int) -> None:
        self._group = group
        self._tag = tag
        self._asked: dict[int, tuple[tutti.Work, Tensor]] = {}  # by source
        self._waiting: list[_AnySource] = []

    def wait_for_any(self, tensor: Tensor) -> Work:
        receive = _AnySource(tensor, self._group, self._tag)
        sources = [at for at in range(self._group._extent) if at != self._group._place]
        for source in sources:
            if source in self._asked:
                _check_alike(receive.dense, self._asked[source][1], source, self._tag)
        self._waiting.append(receive)
        for source in sources:
            if source in self._asked:
                self._look(source)
            else:
                self._ask(source, receive.dense)
        return receive

    def take_over(self, source: int, dense: Tensor) -> Optional[tuple[tutti.Work, Tensor]]:
        """What a rank was asked for already is the next message from it."""
        asked = self._asked.get(source)
        if asked is None:
            return None
        _check_alike(dense, asked[1], source, self._tag)
        del self._asked[source]
        if self._waiting:
            self._ask(source, self._waiting[0].dense)
        return asked

    def _ask(self, source: int, like: Tensor) -> None:
        group = self._group
        buffer = torch.empty_like(like)
        name = group._message(source, group._place, self._tag)
        work = group._comm.recv(name, raw_memory(buffer), source)
        self._asked[source] = (work, buffer)
        work.add_done_callback(lambda _: self._look(source))

    def _look(self, source: int) -> None:
        """On the library's thread, or that of a receive."""
        with self._group._messages:
            asked = self._asked.get(source)
            if asked is None or not asked[0].done() or not self._waiting:
                return
            work, came = asked
            error = work.exception()
            if isinstance(error, tutti.PeerLeftError) and self._somebody_else(source):
                return  # the others may still send
            receive = self._waiting.pop(0)
            # A message that did not fit is over; a rank that is gone stays so.
            if not isinstance(error, (tutti.PeerError, tutti.ClosedError)):
                del self._asked[source]
                if self._waiting:
                    self._ask(source, self._waiting[0].dense)
        receive.came_from(source, came, error)

    def _somebody_else(self, source: int) -> bool:
        return any(not work.done() for at, (work, _) in self._asked.items() if at != source)


class _AnySource(Work):
    """A receive from whichever rank sends first; its mailbox says which."""

    def __init__(self, tensor: Tensor, group: PointToPoint, tag: int) -> None:
        self.dense, self._back = in_place("recv", tensor)
        self._place = group._place
        self._tag = tag
        self._came = threading.Event()
        super().__init__((), [tensor], group._seconds)
        self._is_over = False

    def came_from(self, source: int, came: Tensor, error: Optional[BaseException]) -> None:
        self._source = source
        if error is None:
            deliver(came, self.dense, self._back)
        with self._lock:
            self._error = error
            self._is_over = True
            tell = self._future is not None
        self._came.set()
        if tell:
            self._tell_future()

    def wait(self, timeout: Any = None) -> bool:
        seconds = seconds_of(timeout, self._seconds)
        if not self._came.wait(seconds):
            raise tutti.TimedOutError(
                f"rank {self._place}: no rank sent with tag {self._tag} within {seconds:g} s"
            )
        return super().wait()

    def is_completed(self) -> bool:
        return self._is_over

    isCompleted = is_completed


def _check_alike(wanted: Tensor, asked: Tensor, source: int, tag: int) -> None:
    if wanted.dtype != asked.dtype or wanted.numel() != asked.numel():
        raise ValueError(
            f"recv: a receive from any rank has asked rank {source} for {asked.numel()} elements of "
            f"{asked.dtype} with tag {tag}, so the next one from it cannot be {wanted.numel()} of "
            f"{wanted.dtype}; use another tag"
        )


def deliver(came: Tensor, dense: Tensor, back: _Finish) -> None:
    dense.copy_(came.view(dense.shape))
    if back is not None:
        back()
