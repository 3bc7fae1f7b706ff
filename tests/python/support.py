"""Functions that the tests of the Python package share."""

import os
import subprocess
import sys
import threading
import traceback
import unittest

import tutti

DEADLINE = 30.0  # seconds; a longer wait is a hang on any machine


class TableStore(tutti.Store):
    """A store that implements the fewest possible methods."""

    def __init__(self):
        self.lock = threading.Lock()
        self.values = {}

    def get(self, key):
        with self.lock:
            return self.values.get(key)

    def compare_set(self, key, expected, desired):
        with self.lock:
            if self.values.get(key) == expected:
                self.values[key] = desired
            return self.values.get(key, b"")

    def add(self, key, amount):
        with self.lock:
            value = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(value).encode()
            return value


def on_threads(size, function, **settings):
    """Runs function(comm) on ranks that are threads of this process; returns the results by
    rank."""
    store = tutti.MemoryStore()
    results, failures = [None] * size, []

    def run(rank):
        try:
            with tutti.Communicator.create(settings, store, rank=rank, size=size) as comm:
                results[rank] = function(comm)
        except BaseException:
            failures.append(f"rank {rank} of {size}:\n{traceback.format_exc()}")

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)
    if any(thread.is_alive() for thread in threads):
        failures.append("a rank did not end")
    if failures:
        raise AssertionError("\n".join(failures))
    return results


def run_script(text, ranks=1, arguments=(), timeout=DEADLINE, check=True):
    """Runs a program in a new interpreter, or in `ranks` interpreters under tutti-run."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    if ranks > 1:
        command = [os.environ["LAUNCHER"], "-np", str(ranks), *command]
    # The program must not see the launcher's variables of the ranks that run this test.
    launcher = ("TUTTI_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(launcher)
    }
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    if check and ran.returncode != 0:
        raise AssertionError(f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
    return ran


class RankTest(unittest.TestCase):
    """Its cases run in the same order on all ranks that tutti-run started."""

    @classmethod
    def setUpClass(cls):
        cls.comm = tutti.Communicator.create({"connect_timeout": 60})
        cls.rank, cls.size = cls.comm.rank, cls.comm.size

    @classmethod
    def tearDownClass(cls):
        cls.comm.close()
