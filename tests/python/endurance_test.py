"""Descriptors, threads and memory must stay flat over a long run. Threads of the program, callbacks
of the library and waits compete for the GIL.

    endurance_test.py [--seconds S] [--groups N] [--bytes N]      on 2 ranks, under tutti-run
"""

import argparse
import faulthandler
import gc
import os
import random
import sys
import threading
import time

import numpy

import tutti

WAIT = 120.0  # seconds; a longer wait is a hang on any machine
DTYPES = ["f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
COUNTS = [0, 1, 2, 1000, 65_536, 400_000]


def count():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
        "kilobytes": int(fields["RssAnon"].split()[0]) + int(fields["RssShmem"].split()[0]),
    }


def check_flat(what, before, after, kilobytes):
    print(f"{what}: {before} -> {after}", flush=True)
    assert after["descriptors"] <= before["descriptors"], what
    assert after["threads"] <= before["threads"], what
    assert after["kilobytes"] <= before["kilobytes"] + kilobytes, what


class Calls:
    """Makes every kind of call, in a random order that all ranks share. Each call checks its
    result."""

    KINDS = (
        "allreduce group sparse allgather broadcast reduce gather scatter reduce_scatter "
        "alltoall pair barrier objects bf16 declared callback".split()
    )

    def __init__(self, comm, name, seed):
        self.comm, self.name, self.chance = comm, name, random.Random(seed)

    def step(self):
        self.call(
            self.chance.choice(self.KINDS), self.chance.choice(DTYPES), self.chance.choice(COUNTS)
        )

    def largest(self):
        for kind in self.KINDS:
            for rows in COUNTS:
                self.call(kind, "f8", rows)

    def call(self, kind, dtype, rows):
        getattr(self, kind)(f"{self.name}/{kind}", dtype, rows)

    def own(self, dtype, rows):
        return numpy.full(rows, self.comm.rank + 1, dtype)

    def all(self, array, value):
        assert array.size == 0 or (array[0] == value and array[-1] == value), (array, value)

    def total(self):
        return self.comm.size * (self.comm.size + 1) // 2

    def allreduce(self, name, dtype, rows):
        array = self.own(dtype, rows)
        self.comm.allreduce(f"{name}/{dtype}/{rows}", array, "sum").wait(WAIT)
        self.all(array, self.total())

    def group(self, name, dtype, rows):
        members = {f"{name}/{i}": self.own(dtype, 1 + rows // 100) for i in range(8)}
        self.comm.grouped_allreduce(f"{name}/{dtype}/{rows}", members, "max").wait(WAIT)
        for array in members.values():
            self.all(array, self.comm.size)

    def sparse(self, name, dtype, rows):
        rows = min(rows, 1000)
        indices, values = numpy.arange(rows), numpy.ones((rows, 2), "f4")
        work = self.comm.sparse_allreduce(f"{name}/{rows}", indices, values, "sum")
        got = numpy.asarray(work.wait(WAIT)[1])
        assert got.shape == (rows * self.comm.size, 2)

    def allgather(self, name, dtype, rows):
        got = self.comm.allgather(f"{name}/{dtype}/{rows}", self.own(dtype, rows)).wait(WAIT)
        assert len(numpy.asarray(got)) == rows * self.comm.size

    def broadcast(self, name, dtype, rows):
        array = self.own(dtype, rows)
        self.comm.broadcast(f"{name}/{dtype}/{rows}", array, self.comm.size - 1).wait(WAIT)
        self.all(array, self.comm.size)

    def reduce(self, name, dtype, rows):
        array = self.own(dtype, rows)
        self.comm.reduce(f"{name}/{dtype}/{rows}", array).wait(WAIT)
        if self.comm.rank == 0:
            self.all(array, self.total())

    def gather(self, name, dtype, rows):
        work = self.comm.gather(f"{name}/{dtype}/{rows}", self.own(dtype, rows))
        got = work.wait(WAIT)
        assert self.comm.rank != 0 or len(numpy.asarray(got)) == rows * self.comm.size

    def scatter(self, name, dtype, rows):
        array = self.own(dtype, rows * self.comm.size) if self.comm.rank == 0 else None
        self.all(numpy.asarray(self.comm.scatter(f"{name}/{dtype}/{rows}", array).wait(WAIT)), 1)

    def reduce_scatter(self, name, dtype, rows):
        array = self.own(dtype, rows * self.comm.size)
        work = self.comm.reduce_scatter(f"{name}/{dtype}/{rows}", array, "sum")
        self.all(numpy.asarray(work.wait(WAIT)), self.total())

    def alltoall(self, name, dtype, rows):
        array = self.own(dtype, rows * self.comm.size)
        work = self.comm.alltoall(f"{name}/{dtype}/{rows}", array)
        assert len(numpy.asarray(work.wait(WAIT))) == rows * self.comm.size

    def pair(self, name, dtype, rows):
        rank, size = self.comm.rank, self.comm.size
        came = self.own(dtype, rows)
        works = [
            self.comm.send(f"{name}/{rank}", self.own(dtype, rows), (rank + 1) % size),
            self.comm.recv(f"{name}/{(rank - 1) % size}", came, (rank - 1) % size),
        ]
        for work in works:
            work.wait(WAIT)
        self.all(came, (rank - 1) % size + 1)

    def barrier(self, name, dtype, rows):
        self.comm.barrier(name).wait(WAIT)

    def objects(self, name, dtype, rows):
        words = self.comm.allgather_object(name, {"rank": self.comm.rank, "rows": rows})
        assert [word["rank"] for word in words] == list(range(self.comm.size))

    def bf16(self, name, dtype, rows):
        array = numpy.full(rows, 0x3F80, "u2")  # ones in bf16
        memory = tutti.Memory(array.ctypes.data, (rows,), "bf16", owner=array)
        self.comm.allreduce(f"{name}/{rows}", memory, "sum").wait(WAIT)
        self.all(array, 0x4000 if self.comm.size == 2 else array[0] if rows else 0)

    def declared(self, name, dtype, rows):
        array = self.own("f4", 16)
        self.comm.allreduce(self.comm.declare(name, array), array, "sum").wait(WAIT)
        self.all(array, self.total())

    def callback(self, name, dtype, rows):
        """Makes three calls and keeps no Work. Callbacks that need the GIL report their ends."""
        told = threading.Semaphore(0)
        for i in range(3):
            work = self.comm.allreduce(f"{name}/{i}", self.own("f4", 1000))
            work.add_done_callback(lambda work: (sum(range(1000)), told.release()))
        del work
        for _ in range(3):
            assert told.acquire(timeout=WAIT)


def in_threads(functions):
    failures = []

    def run(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def mixed_calls(comm, seconds, seed):
    """Three threads make random calls, one of them blocking calls too, while a fourth thread keeps
    the GIL busy. All ranks end after the same number of steps."""
    busy = True

    def keep_busy():
        while busy:
            sum(range(10_000))

    callers = [Calls(comm, f"thread {i}", seed + i) for i in range(3)]

    def turn(caller, steps, blocking):
        for step in range(steps):
            caller.step()
            if blocking:
                assert comm.allreduce_value("value", comm.rank + 1.0, "sum") == caller.total()
                comm.barrier_blocking()

    hog = threading.Thread(target=keep_busy)
    hog.start()
    try:
        # Uses every name with its longest tensor first, so that memory which the library keeps for
        # it does not count as growth later.
        in_threads([caller.largest for caller in callers])
        turns, before, began = 0, None, time.monotonic()
        while True:
            in_threads([lambda i=i: turn(callers[i], 20, i == 0) for i in range(3)])
            turns += 1
            passed = time.monotonic() - began
            if comm.allreduce_value("over", float(passed > seconds and before is not None), "min"):
                break
            if before is None and passed > seconds / 3:
                gc.collect()
                before = count()
        gc.collect()
        check_flat(f"{turns} turns of 60 mixed calls in {passed:.0f} s", before, count(), 24 << 10)
    finally:
        busy = False
        hog.join()


def groups_at_once(comm, seed):
    parts = [comm.split(0, key) for key in range(8)]
    callers = [Calls(part, "at once", seed + i) for i, part in enumerate(parts)]

    def turn(caller):
        for _ in range(20):
            caller.step()

    in_threads([lambda caller=caller: turn(caller) for caller in callers])
    for part in parts:
        part.close()
    print("8 groups at once", flush=True)


def many_groups(comm, groups):
    def one(turn):
        with comm.split(0) as part:
            array = numpy.full(100, turn, "f4")
            part.allreduce("a", array, "sum").wait(WAIT)
            assert array[99] == turn * comm.size

    for turn in range(20):
        one(turn)
    gc.collect()
    before = count()
    for turn in range(groups):
        one(turn)
    gc.collect()
    check_flat(f"{groups} groups made and destroyed", before, count(), 16 << 10)


def many_tensors(comm):
    arrays = [numpy.full(3, comm.rank, "f4") for _ in range(10_000)]
    for _ in range(2):
        works = [comm.allreduce(f"tensor {i}", array, "max") for i, array in enumerate(arrays)]
        for work in works:
            work.wait(WAIT)
        assert all(array[2] == comm.size - 1 for array in arrays)
    print("10,000 tensors", flush=True)


def large(comm, size):
    with open("/proc/meminfo") as file:
        free = int(next(line for line in file if line.startswith("MemAvailable")).split()[1]) << 10
    if comm.allreduce_value("free", float(free), "min") < 2.5 * comm.local_size * size:
        print(f"{size} bytes: left out, there are {free} bytes of memory", flush=True)
        return
    array = numpy.full(size + 3, comm.rank + 1, "u1")
    comm.allreduce("large", array, "sum").wait(10 * WAIT)
    wanted = comm.size * (comm.size + 1) // 2
    assert array[0] == wanted and array[size + 2] == wanted and array.min() == array.max()
    array[:] = comm.rank
    comm.broadcast("large", array, 1).wait(10 * WAIT)
    assert array[0] == 1 and array[size + 2] == 1 and array.min() == array.max()
    print(f"{size + 3} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--groups", type=int, default=30)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(2 * arguments.seconds + 900, exit=True)
    with tutti.Communicator.create({"connect_timeout": 60, "stall_warning": 60}) as comm:
        seed = comm.broadcast_object("seed", arguments.seed or int(time.time()))
        print(f"seed {seed}", flush=True)
        many_tensors(comm)
        groups_at_once(comm, seed)
        many_groups(comm, arguments.groups)
        large(comm, arguments.bytes)
        mixed_calls(comm, arguments.seconds, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
