"""The stores of a program's own."""

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
        while True:
            now = self.compare_set(key, before, value)
            if bytes(now) == value:
                return
            before = now

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
