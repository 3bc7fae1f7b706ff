"""The Work and the Future that c10d hands to its callers."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any, Callable, Optional, Sequence

import torch
import tutti
from torch._C import _distributed_c10d as c10d

_NO_TIMEOUT: Any = getattr(c10d, "_DEFAULT_NO_TIMEOUT", None)


def torch_version() -> tuple[int, int]:
    """(2, 15). Debian's torch calls itself 1.13.0a0, so only the first two numbers mean much."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


class _Helpers:
    """Threads that end Futures, because what hangs on a Future may wait for further operations, and
    those would never end if it did so on the thread that tells of them. A task gets an idle thread
    or a new one, so none waits for another."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._busy = 0

    def run(self, task: Callable[[], None]) -> None:
        with self._lock:
            self._tasks.append(task)
            self._busy += 1
            if self._idle >= len(self._tasks):
                self._lock.notify()
                return
        threading.Thread(target=self._serve, name="tutti.torch", daemon=True).start()

    def finish(self, seconds: float) -> None:
        """At the program's end: a thread that comes back from C++ after Python is gone ends the
        process badly."""
        with self._lock:
            self._lock.wait_for(lambda: self._busy == 0, seconds)

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                self._lock.wait_for(lambda: bool(self._tasks))
                self._idle -= 1
                task = self._tasks.popleft()
            task()
            del task
            with self._lock:
                self._busy -= 1
                self._lock.notify_all()


_helpers = _Helpers()
# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_helpers.__init__)  # type: ignore[misc]


class Work(c10d.Work):  # type: ignore[misc]
    """One call of c10d: the operations of Tutti that carry it, and what is left to be done here
    once they are over, which is to copy into the caller's tensors where these are not one piece of
    memory. Any thread may call anything; `finish` runs once, under the lock.

    Until torch 2.7 C++ keeps only its own half of a Python Work. The other half would be collected
    while C++ waits for it, so it stays in a table until it was waited for."""

    def __init__(
        self,
        works: Sequence[tutti.Work],
        outputs: Any,
        seconds: float,
        finish: Optional[Callable[[], None]] = None,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._works = tuple(works)
        self._outputs = outputs
        self._seconds = seconds
        self._finish = finish
        self._source = source
        self._lock = threading.RLock()
        self._is_over = False
        self._error: Optional[BaseException] = None
        self._future: Any = None
        self._left = 0
        if not self._works:
            self._complete()
        if _must_be_kept:
            _keep(self)

    # --- what c10d calls ---

    def wait(self, timeout: Any = _NO_TIMEOUT) -> bool:
        if not self._is_over:
            seconds = self._seconds
            if timeout is not None and timeout != _NO_TIMEOUT and timeout.total_seconds() > 0:
                seconds = timeout.total_seconds()
            self._wait_for_works(seconds)
        _kept.pop(id(self), None)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if self._is_over:
            return True
        if not all(work.done() for work in self._works):
            return False
        self._complete()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error if self.is_completed() else None

    def result(self) -> Any:
        return self._outputs

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        with self._lock:
            if self._future is not None:
                return self._future
            self._end = torch.futures.Future()  # type: ignore[var-annotated]
            # C++ hears of an error only if it is raised behind another Future; set_exception would
            # be a value to it.
            self._future = self._end.then(self._value)
            works = self._works
            self._left = len(works)
            is_over = self._is_over
        if is_over:
            self._end.set_result(None)
        # The last of them ends the Future: whoever waits for that drives nothing.
        for work in works:
            work.add_done_callback(self._one_is_done)
        _kept.pop(id(self), None)
        return self._future

    def future_of(self, value: Any) -> Any:
        """A Future of something else than the outputs."""
        self._outputs = value
        return self.get_future()

    # C++ looks these up by its own names.
    isCompleted = is_completed
    isSuccess = is_success
    getFuture = get_future

    # --- inside ---

    def _wait_for_works(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for work in self._works:
            try:
                work.wait(max(end - time.monotonic(), 0.001))
            except tutti.Error:
                if not work.done():
                    raise  # a timeout, and the operation goes on
        self._complete()

    def _complete(self) -> None:
        with self._lock:
            if self._is_over:
                return
            try:
                for work in self._works:
                    error = work.exception()
                    if error is not None:
                        raise error
                if self._finish is not None:
                    self._finish()
            except Exception as error:
                self._error = error
            self._finish = None
            self._works = ()
            self._is_over = True

    def _one_is_done(self, _: tutti.Work) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
        self._complete()
        self._tell_future()

    def _tell_future(self) -> None:
        _helpers.run(lambda: self._end.set_result(None))

    def _value(self, _: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._outputs


wait_for_helpers = _helpers.finish

_must_be_kept = torch_version() < (2, 7)
_kept: dict[int, Work] = {}  # oldest first
_MOST_KEPT = 20_000  # of Works that nobody ever waits for


def _keep(work: Work) -> None:
    _kept[id(work)] = work
    if len(_kept) > _MOST_KEPT:
        oldest = next(iter(_kept))
        if _kept[oldest].is_completed():
            del _kept[oldest]


def together(works: Sequence[Work], outputs: Any, seconds: float) -> Work:
    """One Work for several."""
    operations: list[tutti.Work] = []
    for work in works:
        operations += work._works
        _kept.pop(id(work), None)

    def finish() -> None:
        for work in works:
            work._complete()
            if work._error is not None:
                raise work._error

    return Work(operations, outputs, seconds, finish)
