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

from ._version import torch_version

# get_future() waits this long for an operation of at most this many bytes. The waiting thread
# drives the operation. An operation that ends after get_future() has returned takes longer, because
# two more threads must wake one after the other to complete the Future.
SHORT_BYTES = 1 << 20
_SHORT_SECONDS = 0.0002

_NO_TIMEOUT: Any = getattr(c10d, "_DEFAULT_NO_TIMEOUT", None)


class _Helpers:
    """Threads that end Futures. Callbacks of a Future may wait for further operations. Those would
    never end if the callbacks ran on the library's callback thread. A task gets an idle thread or a
    new one, so no task waits for another."""

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
        """Waits for the tasks at the program's end. A thread that returns from C++ after Python has
        ended crashes the process."""
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


class _Deadlines:
    """One thread that ends the Futures whose timeout has passed, because waiting for a torch Future
    has no timeout."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._ends: dict[Work, float] = {}  # deadlines of the Futures under way
        self._is_watched = False

    def add(self, work: Work, seconds: float) -> None:
        with self._lock:
            self._ends[work] = end = time.monotonic() + seconds
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="tutti.timeouts", daemon=True).start()
            elif min(self._ends.values()) == end:
                self._lock.notify()

    def remove(self, work: Work) -> None:
        with self._lock:
            self._ends.pop(work, None)

    def _watch(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                late = [work for work, end in self._ends.items() if end <= now]
                for work in late:
                    del self._ends[work]
                if not late:
                    wake = min(self._ends.values(), default=now + threading.TIMEOUT_MAX)
                    self._lock.wait(min(wake - now, threading.TIMEOUT_MAX))
            for work in late:
                work._give_up_future()
            del late


_deadlines = _Deadlines()


def _after_fork() -> None:
    """Resets the state, because a forked child has none of its parent's threads."""
    _helpers.__init__()  # type: ignore[misc]
    _deadlines.__init__()  # type: ignore[misc]
    _keeping.__init__()


os.register_at_fork(after_in_child=_after_fork)


class Work(c10d.Work):
    """One call of c10d: its operations of Tutti, and `finish`, which runs after them. `finish`
    copies the results into those of the caller's tensors that are not one block of memory. It runs
    once, under the lock. Any thread may call any method.

    Before torch 2.7, C++ keeps only its own half of a Python Work. Python would collect the other
    half while C++ waits for it, so a table keeps it until it was waited for."""

    _has_begun = True  # False: operations are added later

    def __init__(
        self,
        works: Sequence[tutti.Work],
        outputs: Any,
        seconds: float,
        finish: Optional[Callable[[], None]] = None,
        source: Optional[int] = -1,  # None: the operation returns it
        is_short: bool = False,
    ) -> None:
        super().__init__()
        self._works = tuple(works)
        self._outputs = outputs
        self._seconds = seconds
        self._finish = finish
        self._source = source
        self._is_short = is_short
        self._places = _places(outputs)
        self._lock = threading.RLock()
        self._is_over = False
        self._error: Optional[BaseException] = None
        self._future: Any = None
        self._future_is_over = False
        self._future_error: Optional[BaseException] = None
        self._left = 0
        if not self._works and self._has_begun:
            self._complete()
        if _must_be_kept:
            _keep(self)

    # --- called by c10d ---

    def wait(self, timeout: Any = _NO_TIMEOUT) -> bool:
        if not self._is_over:
            seconds = self._seconds
            if timeout is not None and timeout != _NO_TIMEOUT and timeout.total_seconds() > 0:
                seconds = timeout.total_seconds()
            self._wait_for_works(seconds)
        _let_go(self)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if self._is_over:
            return True
        if not self._has_begun or not all(work.done() for work in self._works):
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
        return -1 if self._source is None else self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        if self._is_short and not self._is_over:
            self._wait_a_moment()
        with self._lock:
            if self._future is not None:
                return self._future
            if self._is_over and self._error is None:
                self._future = torch.futures.Future()
                self._future.set_result(self._outputs)
                _let_go(self)
                return self._future
            self._end: Any = torch.futures.Future()
            # C++ recognizes an error only if it is raised in a callback of another Future. It would
            # take an error from set_exception() for a value.
            self._future = self._end.then(self._value)
            works = self._works
            self._left = len(works)
            is_over = self._is_over
        if is_over:
            self._end_future(self._error)
        else:
            _deadlines.add(self, self._seconds)
        # The callback of the last operation ends the Future. A thread that waits for a Future
        # drives no operation.
        for work in works:
            work.add_done_callback(self._one_is_done)
        _let_go(self)
        return self._future

    def future_of(self, value: Any) -> Any:
        """Returns a Future whose value is `value` instead of the outputs."""
        self._outputs = value
        return self.get_future()

    # C++ calls the methods by these names.
    isCompleted = is_completed
    isSuccess = is_success
    getFuture = get_future

    # --- internals ---

    def _wait_a_moment(self) -> None:
        try:
            for work in self._works:
                work.wait(_SHORT_SECONDS)
        except tutti.Error:  # not over yet, or failed; the Future reports that
            pass
        self.is_completed()

    def _wait_for_works(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        if not self._wait_for_beginning(seconds):
            raise self._timed_out(seconds)
        for work in self._works:
            try:
                work.wait(max(end - time.monotonic(), 0.001))
            except tutti.TimedOutError:
                if not work.done():
                    raise self._timed_out(seconds) from None
            except tutti.Error:
                if not work.done():
                    raise
        self._complete()

    def _wait_for_beginning(self, seconds: float) -> bool:
        return True

    def _complete(self) -> None:
        with self._lock:
            if self._is_over:
                return
            try:
                for work in self._works:
                    error = work.exception()
                    if error is not None:
                        raise error
                    if self._source is None:
                        self._source = work.source()
                if self._finish is not None:
                    self._finish()
                if self._places != _places(self._outputs):
                    raise RuntimeError(
                        f"{self._names()}: a tensor was resized, or got other memory, while it was on "
                        "its way, so it does not hold the result; wait for the Work first"
                    )
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
        _deadlines.remove(self)
        _helpers.run(lambda: self._end_future(self._error))

    def _timed_out(self, seconds: float) -> tutti.TimedOutError:
        """Returns the error of a wait. The operation goes on, and wait() may be called again."""
        of = "the timeout of its group" if seconds == self._seconds else "this wait's timeout"
        return tutti.TimedOutError(
            f"{self._names()} was not over within {seconds:g} s, {of}; see which rank did not come, or give "
            "a longer one"
        )

    def _names(self) -> str:
        return ", ".join(f'"{work.name}"' for work in self._works)

    def _give_up_future(self) -> None:
        """Ends the Future because its timeout has passed."""
        error = self._timed_out(self._seconds)
        _helpers.run(lambda: self._end_future(error))

    def _end_future(self, error: Optional[BaseException]) -> None:
        """Ends the Future once, by the end of the operation or by a timeout, whichever is first."""
        with self._lock:
            if self._future_is_over:
                return
            self._future_is_over = True
            self._future_error = error
        self._end.set_result(None)

    def _value(self, _: Any) -> Any:
        if self._future_error is not None:
            raise self._future_error
        return self._outputs


def _places(outputs: Any) -> list[int]:
    """Returns the addresses of a call's tensors, if its outputs are a list of strided tensors."""
    if not isinstance(outputs, list):
        return []
    return [
        tensor.data_ptr()
        for tensor in outputs
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
    ]


wait_for_helpers = _helpers.finish

_must_be_kept = torch_version() < (2, 7)
_keeping = threading.RLock()
_kept: dict[int, Work] = {}  # oldest first; guarded by _keeping
_MOST_KEPT = 20_000  # limit for Works that are never waited for


def _keep(work: Work) -> None:
    with _keeping:
        _kept[id(work)] = work
        oldest = next(iter(_kept.values())) if len(_kept) > _MOST_KEPT else None
    if oldest is not None and oldest.is_completed():
        _let_go(oldest)


def _let_go(work: Work) -> None:
    with _keeping:
        _kept.pop(id(work), None)


def together(works: Sequence[Work], outputs: Any, seconds: float) -> Work:
    """Returns one Work for several."""
    operations: list[tutti.Work] = []
    for work in works:
        operations += work._works
        _let_go(work)

    def finish() -> None:
        for work in works:
            work._complete()
            if work._error is not None:
                raise work._error

    return Work(operations, outputs, seconds, finish)
