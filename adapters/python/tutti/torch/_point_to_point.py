"""c10d's messages between two ranks."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

import torch
import tutti
from torch import Tensor

from ._memory import as_input, in_place, raw_memory, single
from ._work import Work

_FROM_ANY = -1
_MOST_LINES = 64  # if there are more, finished lines are removed
_Finish = Optional[Callable[[], None]]


class PointToPoint:
    """Sends and receives of one group, apart from its collectives. All messages to a rank with one
    tag have the same name, whoever sends them, so a receive from any rank can use this name. _Line
    keeps them in order."""

    _comm: tutti.Communicator
    _group: str
    _rank: int
    _size: int
    _seconds: float

    def _begin_messages(self) -> None:
        self._sends: dict[tuple[int, int], _Line] = {}  # keyed by target rank and tag
        self._receives: dict[int, _Line] = {}  # keyed by tag
        self._most_lines = _MOST_LINES
        self._messages = threading.RLock()  # guards both dicts, and the contents of all lines

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        tensor = single("send", tensors)
        self._check_peer("send", "to", dst)
        own = as_input("send", tensor)
        name, place = self._name_of(dst, tag), raw_memory(own)
        message = _Message(dst, name, lambda: self._comm.send(name, place, dst))
        return self._in_line(self._sends, (dst, tag), message, tensor, None)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        tensor = single("recv", tensors)
        self._check_peer("recv", "from", src)
        dense, back = in_place("recv", tensor)
        name, place = self._name_of(self._rank, tag), raw_memory(dense)
        message = _Message(src, name, lambda: self._comm.recv(name, place, src))
        return self._in_line(self._receives, tag, message, tensor, back)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        tensor = single("recv", tensors)
        if self._size == 1:
            raise ValueError("recv: there is no other rank in this group that could send")
        dense, back = in_place("recv", tensor)
        name, place = self._name_of(self._rank, tag), raw_memory(dense)
        message = _Message(_FROM_ANY, name, lambda: self._comm.recv_any(name, place))
        return self._in_line(self._receives, tag, message, tensor, back)

    def _name_of(self, target: int, tag: int) -> str:
        return f"group {self._group}/to {target}/tag {tag}"

    def _in_line(
        self, lines: dict[Any, _Line], key: Any, message: _Message, tensor: Tensor, back: _Finish
    ) -> Work:
        with self._messages:
            line = lines.get(key)
            if line is None:
                if len(lines) >= self._most_lines:
                    for each in [each for each, line in lines.items() if line.is_over()]:
                        del lines[each]
                    self._most_lines = 2 * max(len(lines), _MOST_LINES)
                line = lines[key] = _Line(self._messages)
            return line.add(message, tensor, self._seconds, back)

    def _check_peer(self, call: str, word: str, peer: int) -> None:
        if peer == self._rank or not 0 <= peer < self._size:
            raise ValueError(
                f"{call}: rank {self._rank} cannot {call} {word} rank {peer} in a group of "
                f"{self._size} ranks"
            )


class _Message:
    """A send or a receive in a line."""

    def __init__(self, peer: int, name: str, begin: Callable[[], tutti.Work]) -> None:
        self.peer = peer
        self.name = name
        self.begin = begin
        self.work: Optional[tutti.Work] = None  # the operation, once it has begun
        self.posted: Optional[_Posted] = None  # the caller's Work, until the message begins
        self.is_watched = False


class _Line:
    """The sends to one rank with one tag, or the receives of one tag, in the order of their calls.
    Between two ranks a name can be pending only once, and the first call gets the first message
    that fits. So a message begins when no earlier message could take its match. A receive from any
    rank begins when all earlier receives have begun, because one of them may be for the same
    sender."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._messages: list[_Message] = []  # the messages that have not ended
        self._is_moving = False
        self._has_changed = False

    def add(self, message: _Message, tensor: Tensor, seconds: float, back: _Finish) -> Work:
        """Adds a message at the end of the line. The caller holds the lock."""
        self._drop_what_is_over()
        if self._may_begin(message, self._messages):
            message.work = message.begin()
        posted = _Posted(self, message, tensor, seconds, back)
        self._messages.append(message)
        if message.work is None:
            message.posted = posted
            self._move()
        return posted

    def is_over(self) -> bool:
        self._drop_what_is_over()
        return not self._messages

    def drop(self, message: _Message) -> None:
        """Forgets a message that has ended, so that its tensor is released. The thread that saw the
        end begins the next message immediately and does not wait for the library's thread."""
        with self._lock:
            if message in self._messages:
                self._messages.remove(message)
                if self._messages:
                    self._move()

    @staticmethod
    def _may_begin(message: _Message, earlier: list[_Message]) -> bool:
        if message.peer == _FROM_ANY:
            return all(each.work is not None and each.peer != _FROM_ANY for each in earlier)
        return all(each.peer not in (message.peer, _FROM_ANY) for each in earlier)

    def _drop_what_is_over(self) -> None:
        self._messages = [
            each for each in self._messages if each.work is None or not each.work.done()
        ]

    def _move(self) -> None:
        """Begins the messages that may begin, again and again while messages end. Any thread may
        call it, also one of the library."""
        with self._lock:
            self._has_changed = True
            if self._is_moving:
                return  # called back by a message that had already ended
            self._is_moving = True
            try:
                while self._has_changed:
                    self._has_changed = False
                    self._begin_some()
            finally:
                self._is_moving = False

    def _begin_some(self) -> None:
        self._drop_what_is_over()
        kept: list[_Message] = []
        for message in self._messages:
            posted = message.posted
            if posted is not None and self._may_begin(message, kept):
                message.posted = None
                try:
                    message.work = message.begin()
                except Exception as error:  # nothing can begin any more, or this tensor is refused
                    posted.fail(error)
                    continue
                posted.begin(message.work)
            kept.append(message)
        self._messages = kept
        if all(message.work is not None for message in kept):
            return
        for message in kept:
            if message.work is not None and not message.is_watched:
                message.is_watched = True
                message.work.add_done_callback(lambda _: self._move())


class _Posted(Work):
    """The Work of a message in a line. The message may begin later."""

    def __init__(
        self, line: _Line, message: _Message, tensor: Tensor, seconds: float, back: _Finish
    ) -> None:
        self._line = line
        self._message = message
        self._beginning = threading.Event()
        self._has_begun = message.work is not None
        works = () if message.work is None else (message.work,)
        source = None if message.peer == _FROM_ANY else message.peer
        super().__init__(works, [tensor], seconds, back, source)

    def begin(self, work: tutti.Work) -> None:
        with self._lock:
            self._works = (work,)
            self._has_begun = True
            self._left = 1
            has_future = self._future is not None
        self._beginning.set()
        if has_future:
            work.add_done_callback(self._one_is_done)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = error
            self._finish = None
            self._is_over = self._has_begun = True
            has_future = self._future is not None
        self._beginning.set()
        if has_future:
            self._tell_future()

    def _wait_for_beginning(self, seconds: float) -> bool:
        return self._has_begun or self._beginning.wait(seconds)

    def _complete(self) -> None:
        super()._complete()
        self._line.drop(self._message)

    def _names(self) -> str:
        return f'"{self._message.name}"'
