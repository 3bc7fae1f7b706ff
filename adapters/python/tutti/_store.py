"""The base class of stores that a program provides."""

import time


class Store:
    def get(self, key):
        raise NotImplementedError("a Store needs get(key)")

    def compare_set(self, key, expected, desired):
        raise NotImplementedError("a Store needs compare_set(key, expected, desired)")

    def add(self, key, amount):
        raise NotImplementedError("a Store needs add(key, amount)")

    def set(self, key, value):
        value = bytes(value)
        before = self.get(key)
        in_vain = 0
        while in_vain < 100:
            now = bytes(self.compare_set(key, before, value))
            if now == value:
                return
            # Empty bytes may mean that the key was deleted meanwhile.
            found = now or self.get(key)
            in_vain = in_vain + 1 if found == before else 0
            before = found
        raise RuntimeError(
            f"compare_set of {key!r} left the value that it was to change {in_vain} times; it must "
            "set the desired one where the expected one stands"
        )

    def wait(self, key, seconds):
        end = time.monotonic() + seconds
        pause = 0.001
        while (value := self.get(key)) is None:
            left = end - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.02)
        return value

    def delete(self, key):
        pass

    def delete_prefix(self, prefix):
        pass
