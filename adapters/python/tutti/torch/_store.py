"""The store through which the ranks of a torch group find each other: torch's own, which every rank
has reached already."""

from __future__ import annotations

import os
import random
import secrets
import time
from typing import Any, Optional

import tutti

_SECRET_VARIABLES = ("TUTTI_SECRET", "TUTTI_SECRET_FD")
_LOCK_SECONDS = 10.0
_DELETED = b"0"  # digits, because an add may follow
_LONGEST_TIMEOUT = 1e7  # longest timeout of a setting, in seconds


class TorchStore(tutti.Store):
    """A Tutti store over a c10d store. It uses only torch's set, get and add. torch's get waits for
    its key, and its compare_set makes Python objects without holding the GIL (torch 1.13), which
    corrupts a program with several threads. So a counter beside each key says whether the key
    exists, and another counter is a lock for compare_set. A deleted key keeps a value of one byte,
    so that a get that has just read the counter does not wait for it."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def get(self, key: str) -> Optional[bytes]:
        if self._store.add(_mark(key), 0) <= 0:
            return None
        value = bytes(self._store.get(key))
        # The key was deleted in between, or it is a counter at 0 that does not exist.
        if value == _DELETED and self._store.add(_mark(key), 0) <= 0:
            return None
        return value

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, bytes(value))
        self._store.add(_mark(key), 1)

    def add(self, key: str, amount: int) -> int:
        value = int(self._store.add(key, amount))
        self._store.add(_mark(key), 1)
        return value

    def compare_set(self, key: str, expected: Optional[bytes], desired: bytes) -> bytes:
        now = self.get(key)
        if now != expected:  # true for all ranks but the first, so they need no lock
            return b"" if now is None else now
        lock = f"{key} (lock)"
        end = time.monotonic() + _LOCK_SECONDS
        pause = 0.001
        while self._store.add(lock, 1) != 1:
            self._store.add(lock, -1)
            if time.monotonic() > end:
                raise RuntimeError(f"key {key} is locked for {_LOCK_SECONDS:g} s; a rank has died")
            # The pause is random and grows. Ranks that add and take back in the same rhythm would
            # never succeed.
            time.sleep(pause * random.random())
            pause = min(2 * pause, 0.1)
        try:
            now = self.get(key)
            if now != expected:
                return b"" if now is None else now
            self.set(key, desired)
            return desired
        finally:
            self._store.add(lock, -1)

    def wait(self, key: str, seconds: float) -> Optional[bytes]:
        # This polls, because a wait of torch's holds the store's only connection, and other threads
        # of this rank would wait for it.
        end = time.monotonic() + seconds
        pause = 0.0005
        while True:
            found = self.get(key)
            left = end - time.monotonic()
            if found is not None or left <= 0:
                return found
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.05)

    def delete(self, key: str) -> None:
        if self._store.add(_mark(key), 0) > 0:
            self._store.set(key, _DELETED)
            self._store.set(_mark(key), _DELETED)


def _mark(key: str) -> str:
    return f"{key} (here)"


def connect(
    store: Any, group: str, rank: int, size: int, seconds: float, settings: dict[str, Any]
) -> tuple[tutti.Communicator, TorchStore]:
    """Returns a communicator of the ranks that share this store, and the communicator's part of the
    store. Every one of these ranks calls it. Groups of the same name follow one another, each under
    its own number, so that a program may destroy a group and make it again. Each rank counts for
    itself: a rank that failed to join and tries again does not change another rank's number."""
    count = int(store.add(f"tutti/joined/{rank}", 1))
    place = TorchStore(_prefixed(store, f"tutti/{count - 1}"))
    settings = dict(settings)
    settings.setdefault("connect_timeout", min(seconds, _LONGEST_TIMEOUT))
    _agree_on_secret(place, group, rank, seconds, settings)
    return tutti.Communicator.create(settings, place, rank=rank, size=size), place


def _prefixed(store: Any, prefix: str) -> Any:
    from torch._C import _distributed_c10d as c10d

    return c10d.PrefixStore(prefix, store)


def _agree_on_secret(
    place: TorchStore, group: str, rank: int, seconds: float, settings: dict[str, Any]
) -> None:
    """Rank 0 decides which secret lets a rank join: the one in the environment, or one that it
    makes and sends through torch's store."""
    has_own = "secret" in settings or any(name in os.environ for name in _SECRET_VARIABLES)
    if rank == 0:
        place.set("secret", b"own" if has_own else secrets.token_hex(16).encode())
    word = place.wait("secret", seconds)
    if word is None:
        raise tutti.TimedOutError(
            f"rank {rank}: rank 0 did not come to group {group} within {seconds:g} s; see why it "
            "is late, or give the group a longer timeout"
        )
    if word != b"own":
        settings["secret"] = word.decode()
    elif not has_own:
        raise tutti.AuthenticationError(
            f"rank {rank}: rank 0 has TUTTI_SECRET and this rank does not (group {group}); set it "
            "for every rank or for none"
        )
