"""Every kind in every form: outputs, groups, declared names, blocking calls, receives from any
rank, raw bytes and allocated memory. Runs on the ranks that tutti-run started and compares with
numpy."""

import unittest

import numpy
from support import DEADLINE, RankTest

import tutti

ROOT = 0


def rows_of(rank, parts):
    """Returns two rows of three for each part, exact in f4."""
    return ((numpy.arange(6 * parts) + 5 * rank) % 11).astype("f4").reshape(-1, 3)


class Forms(RankTest):
    """Every kind as (named call, blocking call, input, expected output). The calls take a name, an
    array and an output; input and output are None where this rank has none."""

    def kinds(self):
        comm, size, rank = self.comm, self.size, self.rank
        is_root = rank == ROOT
        one = [rows_of(r, 1) for r in range(size)]
        whole = [rows_of(r, size) for r in range(size)]
        own = slice(2 * rank, 2 * rank + 2)
        joined, total = numpy.concatenate(one), numpy.sum(whole, axis=0)
        exchanged = numpy.concatenate([w[own] for w in whole])
        return {
            "allreduce": (
                lambda n, a, o: comm.allreduce(n, a, "sum", output=o),
                lambda n, a, o: comm.allreduce_blocking(n, a, "sum", output=o),
                one[rank],
                numpy.sum(one, axis=0),
            ),
            "reduce": (
                lambda n, a, o: comm.reduce(n, a, ROOT, output=o),
                lambda n, a, o: comm.reduce_blocking(n, a, ROOT, output=o),
                one[rank],
                numpy.sum(one, axis=0) if is_root else None,
            ),
            "allgather": (
                lambda n, a, o: comm.allgather(n, a, output=o),
                lambda n, a, o: comm.allgather_blocking(n, a, o),
                one[rank],
                joined,
            ),
            "gather": (
                lambda n, a, o: comm.gather(n, a, ROOT, output=o),
                lambda n, a, o: comm.gather_blocking(n, a, o, ROOT),
                one[rank],
                joined if is_root else None,
            ),
            "scatter": (
                lambda n, a, o: comm.scatter(n, a, ROOT, output=o),
                lambda n, a, o: comm.scatter_blocking(n, a, o, ROOT),
                whole[ROOT] if is_root else None,
                whole[ROOT][own],
            ),
            "reduce_scatter": (
                lambda n, a, o: comm.reduce_scatter(n, a, "sum", output=o),
                lambda n, a, o: comm.reduce_scatter_blocking(n, a, o, "sum"),
                whole[rank],
                total[own],
            ),
            "alltoall": (
                lambda n, a, o: comm.alltoall(n, a, output=o),
                lambda n, a, o: comm.alltoall_blocking(n, a, o),
                whole[rank],
                exchanged,
            ),
        }

    def check(self, kind, call, given, wanted, make=numpy.empty):
        """The result must be in the output, and the input must be unchanged."""
        output = None if wanted is None else make(wanted.shape, "f4")
        array = None
        if given is not None:
            array = make(given.shape, "f4")
            array[...] = given
        result = call(array, output)
        if isinstance(result, tutti.Work):
            result = result.wait(DEADLINE)
            self.assertTrue(result is output, kind)
        if wanted is not None:
            numpy.testing.assert_array_equal(output, wanted, kind)
        if given is not None:
            numpy.testing.assert_array_equal(array, given, kind)

    def test_named_and_blocking_into_outputs(self):
        for kind, (start, block, given, wanted) in self.kinds().items():
            self.check(kind, lambda a, o, k=kind, s=start: s(k, a, o), given, wanted)
            self.check(kind, lambda a, o, k=kind, b=block: b(k, a, o), given, wanted)
        mine = rows_of(self.rank, 1)
        output = numpy.zeros_like(mine)
        self.comm.broadcast("out", mine, ROOT, output=output).wait(DEADLINE)
        numpy.testing.assert_array_equal(output, rows_of(ROOT, 1))
        none = mine if self.rank == ROOT else None
        self.comm.broadcast("out", none, ROOT, output=output).wait(DEADLINE)

    def test_declared_names(self):
        for kind, (start, _, given, wanted) in self.kinds().items():
            if kind == "allreduce":
                continue  # works in place: see collectives_test.py
            like = given if given is not None else rows_of(ROOT, self.size)
            declared = self.comm.declare(kind, like)
            for _ in range(5):
                self.check(kind, lambda a, o, d=declared, s=start: s(d, a, o), given, wanted)
        declared = self.comm.declare("either", numpy.zeros(2))
        self.comm.barrier(self.comm.declare("all", numpy.zeros(1))).wait(DEADLINE)
        for call in (
            lambda: self.comm.allgather(declared, numpy.zeros(2)),
            lambda: self.comm.broadcast(declared, numpy.zeros(2), output=numpy.zeros(2)),
            lambda: self.comm.recv_any(declared, numpy.zeros(2)),
        ):
            with self.assertRaisesRegex(tutti.InvalidArgumentError, '^"either": a declared name is for'):
                call()

    def test_in_memory_of_the_library(self):
        memories = []

        def make(shape, dtype):
            count = int(numpy.prod(shape))
            memories.append(self.comm.allocate(4 * count))
            array = numpy.asarray(memories[-1]).view(dtype)
            self.assertFalse(array.any())
            return array.reshape(shape)

        for kind, (start, block, given, wanted) in self.kinds().items():
            self.check(kind, lambda a, o, k=kind, s=start: s(k, a, o), given, wanted, make)
            self.check(kind, lambda a, o, k=kind, b=block: b(k, a, o), given, wanted, make)
        self.assertEqual(memories[0].shape, (24,))
        with self.assertRaisesRegex(tutti.InvalidArgumentError, "-1 bytes of memory were asked for"):
            self.comm.allocate(-1)
        self.comm.barrier_blocking()

    def test_groups_into_outputs(self):
        kinds = self.kinds()
        calls = {
            "allreduce": lambda g, m, o: self.comm.grouped_allreduce(g, m, "sum", outputs=o),
            "allgather": lambda g, m, o: self.comm.grouped_allgather(g, m, outputs=o),
            "reduce_scatter": lambda g, m, o: self.comm.grouped_reduce_scatter(g, m, "sum", outputs=o),
        }
        for kind, call in calls.items():
            _, _, given, wanted = kinds[kind]
            for _ in range(4):
                outputs = [numpy.zeros_like(wanted) for _ in range(3)]
                members = {f"{kind} {i}": given.copy() for i in range(3)}
                result = call(f"group of {kind}", members, outputs).wait(DEADLINE)
                self.assertEqual(len(result), 3)
                for output in result:
                    numpy.testing.assert_array_equal(output, wanted)
                numpy.testing.assert_array_equal(members[f"{kind} 2"], given)
        with self.assertRaisesRegex(tutti.InvalidArgumentError, "one output for each array"):
            self.comm.grouped_allgather("short", {"a": numpy.zeros(1)}, outputs=[])

    def test_blocking_sends_and_receives(self):
        to, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        mine = numpy.full(1000, self.rank, "float32")
        got = numpy.zeros_like(mine)
        if self.size == 1:
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "cannot send to itself"):
                self.comm.send_blocking("x", mine, to)
            return
        for step in range(5):
            mine += step
            self.comm.sendrecv_blocking(
                f"from {self.rank}", mine, to, f"from {source}", got, source
            )
            numpy.testing.assert_array_equal(got, mine + (source - self.rank))
        if self.rank == 0:
            self.comm.send_blocking("one way", mine, 1)
        elif self.rank == 1:
            self.comm.recv_blocking("one way", got, 0)
            numpy.testing.assert_array_equal(got, mine - 1)
        with self.assertRaisesRegex(tutti.InvalidArgumentError, "share memory"):
            self.comm.sendrecv_blocking("x", mine, to, "y", mine, source)
        with self.assertRaisesRegex(ValueError, '^"y": the array'):
            self.comm.sendrecv_blocking("x", mine, to, "y", b"no room", source)
        self.comm.barrier_blocking()

    def test_receives_from_any_rank(self):
        if self.size == 1:
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "no other rank that could send"):
                self.comm.recv_any("news", numpy.zeros(1))
            return
        if self.rank != ROOT:
            self.comm.send("news", numpy.full(3, self.rank), ROOT).wait(DEADLINE)
        else:
            sources = set()
            for _ in range(self.size - 1):
                got = numpy.zeros(3, int)
                work = self.comm.recv_any("news", got)
                self.assertIs(work.wait(DEADLINE), got)
                self.assertEqual(got.tolist(), [work.source()] * 3)
                sources.add(work.source())
            self.assertEqual(sources, set(range(1, self.size)))
        with self.assertRaisesRegex(tutti.InvalidArgumentError, '^"news": rank -1 of .* does not exist'):
            self.comm.recv("news", numpy.zeros(3, int), -1)
        self.assertEqual(self.comm.barrier("over").source(), -1)

    def test_raw_bytes(self):
        # Complex numbers and structs can be moved, but not reduced.
        for dtype in ("c16", [("x", "f8"), ("id", "i4"), ("letter", "S3")]):
            mine = numpy.zeros(2, dtype)
            mine.view("u1")[:] = self.rank + 1
            output = numpy.zeros(2 * self.size, dtype)
            self.comm.allgather("raw", mine, output=output).wait(DEADLINE)
            for rank in range(self.size):
                self.assertTrue((output[2 * rank : 2 * rank + 2].view("u1") == rank + 1).all())
            self.comm.broadcast("raw start", mine, ROOT).wait(DEADLINE)
            self.assertTrue((mine.view("u1") == ROOT + 1).all())
            got = self.comm.allgather("raw into the library's", mine).wait(DEADLINE)
            self.assertEqual((got.dtype, got.shape), ("raw", (2 * self.size, mine.itemsize)))
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "op sum cannot be applied to raw"):
                self.comm.allreduce("raw", mine, "sum")
        bits = numpy.array([1 << self.rank, 3], "u4")
        self.comm.allreduce("odd", bits, "bxor").wait(DEADLINE)
        self.assertEqual(bits.tolist(), [(1 << self.size) - 1, 3 * (self.size % 2)])

    def test_an_output_of_the_wrong_size_is_an_error_on_every_rank(self):
        for kind, (start, _, given, wanted) in self.kinds().items():
            if kind in ("allreduce", "reduce", "gather"):
                continue
            last = self.rank == self.size - 1
            shape = (wanted.shape[0] + (1 if last else 0), 3)
            output = numpy.full(shape, -1, "f4")
            with self.assertRaisesRegex(tutti.MismatchError, f"rank {self.size - 1} gave an output"):
                start(f"long {kind}", given, output).wait(DEADLINE)
            self.assertTrue((output == -1).all(), kind)
        self.comm.barrier("goes on").wait(DEADLINE)


if __name__ == "__main__":
    unittest.main(verbosity=2)
