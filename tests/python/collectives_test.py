"""Every collective and dtype on the ranks that tutti-run started, compared with numpy."""

import array
import unittest

import numpy
from support import DEADLINE, RankTest

import tutti

DTYPES = ("f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
NUMPY_OPS = {
    "sum": numpy.add,
    "min": numpy.minimum,
    "max": numpy.maximum,
    "product": numpy.multiply,
    "band": numpy.bitwise_and,
    "bor": numpy.bitwise_or,
    "bxor": numpy.bitwise_xor,
}


def part(rank, dtype, shape=(2, 3)):
    """Returns a rank's input: small numbers, exact in every dtype."""
    count = int(numpy.prod(shape))
    values = (numpy.arange(count) + rank) % 3
    return values.reshape(shape).astype(dtype)


def does(dtype, op):
    """Returns whether an operation is defined for a dtype."""
    kind = numpy.dtype(dtype).kind
    if kind == "f":
        return op in ("sum", "average", "min", "max", "product")
    if kind == "b":
        return op in ("band", "bor", "bxor")
    return True


def _only_on_rank(rank):
    if _only_on_rank.rank != rank:
        raise LookupError("not here")
    return rank


class Collectives(RankTest):
    def parts(self, dtype, shape=(2, 3)):
        return [part(rank, dtype, shape) for rank in range(self.size)]

    def check_equal(self, got, wanted):
        numpy.testing.assert_array_equal(numpy.asarray(got), wanted)

    def test_allreduce_of_every_dtype_and_op(self):
        for dtype in DTYPES:
            for op, function in NUMPY_OPS.items():
                if not does(dtype, op):
                    continue
                with self.subTest(dtype=dtype, op=op):
                    mine = part(self.rank, dtype)
                    wanted = function.reduce(self.parts(dtype)).astype(dtype)
                    work = self.comm.allreduce(f"{dtype} {op}", mine, op)
                    self.assertIs(work.wait(DEADLINE), mine)
                    self.check_equal(mine, wanted)

    def test_average_and_options(self):
        mine = part(self.rank, "f8")
        mean = numpy.mean(self.parts("f8"), axis=0)
        self.comm.allreduce("mean", mine).wait(DEADLINE)
        numpy.testing.assert_allclose(mine, mean)

        mine, output = part(self.rank, "f4"), numpy.empty((2, 3), "f4")
        work = self.comm.allreduce(
            "scaled", mine, "sum", output=output, prescale=2, postscale=0.5, wire="bf16", priority=3
        )
        self.assertIs(work.wait(DEADLINE), output)
        self.check_equal(output, numpy.sum(self.parts("f4"), axis=0))
        self.check_equal(mine, part(self.rank, "f4"))

    def test_averages_at_the_limits_of_their_types(self):
        # The sum overflows the type, the average does not.
        for dtype in DTYPES[2:-1]:
            most = 32768 if dtype == "f2" else numpy.iinfo(dtype).max
            wanted = numpy.full(5000, most, dtype)
            for call in ("named", "blocking"):
                with self.subTest(dtype=dtype, call=call):
                    mine = wanted.copy()
                    if call == "named":
                        self.comm.allreduce(f"limit of {dtype}", mine).wait(DEADLINE)
                    else:
                        self.comm.allreduce_blocking(f"limit of {dtype}", mine)
                    self.check_equal(mine, wanted)
        mine = numpy.full(5000, 32768, "f4")
        self.comm.allreduce("limit on the wire", mine, wire="f16").wait(DEADLINE)
        self.check_equal(mine, numpy.full(5000, 32768, "f4"))

    def test_bf16_by_address(self):
        # bf16 is the upper half of f32.
        floats = numpy.full(5, self.rank + 1, "f4")
        halves = (floats.view("u4") >> 16).astype("u2")
        memory = tutti.Memory(halves.ctypes.data, halves.shape, "bf16", owner=halves)
        self.comm.allreduce("bf16", memory, "sum").wait(DEADLINE)
        back = (halves.astype("u4") << 16).view("f4")
        self.check_equal(back, numpy.full(5, self.size * (self.size + 1) / 2))

    def test_group(self):
        arrays = {f"member {i}": part(self.rank, "f4", (i + 1,)) for i in range(5)}
        result = self.comm.grouped_allreduce("group", arrays, "sum").wait(DEADLINE)
        self.assertEqual(len(result), 5)
        for i, mine in enumerate(arrays.values()):
            self.assertIs(result[i], mine)
            self.check_equal(mine, numpy.sum(self.parts("f4", (i + 1,)), axis=0))
        pairs = [("a", part(self.rank, "i4")), ("b", part(self.rank, "u1", (3, 1)))]
        gathered = self.comm.grouped_allgather("gathers", pairs).wait(DEADLINE)
        self.check_equal(gathered[1], numpy.concatenate(self.parts("u1", (3, 1))))
        rows = [("a", part(self.rank, "f8", (self.size, 2)))]
        (own,) = self.comm.grouped_reduce_scatter("scatters", rows, "sum").wait(DEADLINE)
        wanted = numpy.sum(self.parts("f8", (self.size, 2)), axis=0)
        self.check_equal(own, wanted[self.rank : self.rank + 1])

    def test_allgather_of_every_dtype(self):
        for dtype in DTYPES:
            with self.subTest(dtype=dtype):
                mine = part(self.rank, dtype, (self.rank + 1, 2))
                parts = [part(rank, dtype, (rank + 1, 2)) for rank in range(self.size)]
                work = self.comm.allgather(f"gather {dtype}", mine)
                got = numpy.asarray(work.wait(DEADLINE))
                self.assertEqual(got.dtype, numpy.dtype(dtype))
                self.check_equal(got, numpy.concatenate(parts))
                self.assertEqual(work.received_counts(), tuple(range(1, self.size + 1)))

    def test_allgather_into_an_output(self):
        output = numpy.empty((2 * self.size, 3), "i8")
        work = self.comm.allgather("into", part(self.rank, "i8"), output=output)
        self.assertIs(work.wait(DEADLINE), output)
        self.check_equal(output, numpy.concatenate(self.parts("i8")))

    def test_broadcast_and_reduce(self):
        for root in range(self.size):
            mine = part(self.rank, "f4")
            self.comm.broadcast(f"broadcast {root}", mine, root).wait(DEADLINE)
            self.check_equal(mine, part(root, "f4"))
            mine = part(self.rank, "i8")
            result = self.comm.reduce(f"reduce {root}", mine, root).wait(DEADLINE)
            if self.rank == root:
                self.assertIs(result, mine)
                self.check_equal(mine, numpy.sum(self.parts("i8"), axis=0))
            else:
                self.assertIsNone(result)
                self.check_equal(mine, part(self.rank, "i8"))
        output = numpy.zeros((2, 3), "f8")
        self.comm.reduce("reduce out", part(self.rank, "f8"), 0, "max", output=output).wait()
        if self.rank == 0:
            self.check_equal(output, numpy.max(self.parts("f8"), axis=0))

    def test_gather_and_scatter(self):
        last = self.size - 1
        got = self.comm.gather("gather", part(self.rank, "f4"), last).wait(DEADLINE)
        if self.rank == last:
            self.check_equal(got, numpy.concatenate(self.parts("f4")))
        else:
            self.assertIsNone(got)

        rows = [rank + 1 for rank in range(self.size)]
        whole = numpy.arange(2 * sum(rows), dtype="i4").reshape(-1, 2)
        dealt = whole if self.rank == last else None
        got = self.comm.scatter("scatter", dealt, last, rows).wait(DEADLINE)
        begin = sum(rows[: self.rank])
        self.check_equal(got, whole[begin : begin + rows[self.rank]])

        whole, output = numpy.arange(3.0 * self.size), numpy.empty(3)
        work = self.comm.scatter("scatter into", whole, output=output)
        self.assertIs(work.wait(DEADLINE), output)
        self.check_equal(output, whole[3 * self.rank : 3 * self.rank + 3])

    def test_reduce_scatter_and_alltoall(self):
        shape = (2 * self.size, 2)
        wanted = numpy.sum(self.parts("f8", shape), axis=0)[2 * self.rank : 2 * self.rank + 2]
        got = self.comm.reduce_scatter("rs", part(self.rank, "f8", shape), "sum").wait(DEADLINE)
        self.check_equal(got, wanted)
        output = numpy.empty((2, 2))
        mine = part(self.rank, "f8", shape)
        self.comm.reduce_scatter("rs into", mine, "sum", output=output).wait(DEADLINE)
        self.check_equal(output, wanted)
        rows = [2 * self.size] + [0] * (self.size - 1)
        got = self.comm.reduce_scatter("rs rows", mine, "sum", rows).wait(DEADLINE)
        self.assertEqual(got.shape, (rows[self.rank], 2))

        # Row i of rank r is [r, i] and goes to rank i.
        rows = numpy.array([[self.rank, i] for i in range(self.size)], "i4")
        work = self.comm.alltoall("a2a", rows)
        self.check_equal(work.wait(DEADLINE), [[r, self.rank] for r in range(self.size)])
        self.assertEqual(work.received_counts(), (1,) * self.size)
        output = bytearray(8 * self.size)
        self.comm.alltoall("a2a into", rows.view("u1"), output=output).wait(DEADLINE)
        self.assertEqual(numpy.frombuffer(output, "i4")[-1], self.rank)
        splits = [self.size] + [0] * (self.size - 1)
        got = self.comm.alltoall("a2a splits", rows, splits).wait(DEADLINE)
        self.assertEqual(len(got), self.size * self.size if self.rank == 0 else 0)

    def test_sparse(self):
        indices = numpy.array([self.rank, 7], "i8")
        values = numpy.full((2, 4), self.rank, "f4")
        got = self.comm.sparse_allreduce("sparse", indices, values).wait(DEADLINE)
        self.check_equal(got[0], sum(([rank, 7] for rank in range(self.size)), []))
        self.check_equal(numpy.asarray(got[1])[-1], numpy.full(4, (self.size - 1) / self.size, "f4"))

    def test_pairs_of_ranks(self):
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        if right == self.rank:
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "itself"):
                self.comm.send("ring", numpy.zeros(1), right)
            return
        got = numpy.zeros(3, "i4")
        received = self.comm.recv(f"from {left}", got, left)
        sent = self.comm.send(f"from {self.rank}", numpy.full(3, self.rank, "i4"), right)
        self.assertIs(received.wait(DEADLINE), got)
        self.assertIsNone(sent.wait(DEADLINE))
        self.check_equal(got, numpy.full(3, left))

    def test_blocking(self):
        self.assertEqual(
            self.comm.allreduce_value("loss", float(self.rank)), (self.size - 1) / 2
        )
        mine = part(self.rank, "i4")
        self.comm.allreduce_blocking("counts", mine, "sum")
        self.check_equal(mine, numpy.sum(self.parts("i4"), axis=0))
        mine = part(self.rank, "f4")
        self.comm.broadcast_blocking("start", mine, self.size - 1)
        self.check_equal(mine, part(self.size - 1, "f4"))
        self.comm.barrier_blocking()
        self.assertIsNone(self.comm.barrier().wait(DEADLINE))

    def test_declared(self):
        declared = self.comm.declare("weight", numpy.zeros(4, "f4"))
        self.assertEqual(declared.name, "weight")
        for step in range(6):
            mine = numpy.full(4, self.rank + step, "f4")
            self.comm.allreduce(declared, mine).wait(DEADLINE)
            self.check_equal(mine, numpy.full(4, step + (self.size - 1) / 2, "f4"))

    def test_arena(self):
        shapes = {"weight": ("f32", (1000,)), "bias": ("f64", ()), "branch": ("f32", (2, 2))}
        with self.comm.arena(shapes, may_be_left_out=["branch"]) as arena:
            self.assertEqual(arena.names, ("weight", "bias", "branch"))
            weight, bias = (numpy.asarray(arena[name]) for name in ("weight", "bias"))
            for step in range(4):
                weight[:], bias[...] = self.rank + step, self.rank
                arena.ready("bias")
                arena.ready("weight")
                with self.assertRaisesRegex(tutti.InvalidArgumentError, "branch"):
                    arena.wait()
                arena.leave_out("branch")
                arena.wait()
                self.assertEqual(weight[999], step + (self.size - 1) / 2)
                self.assertEqual(bias, (self.size - 1) / 2)
                self.assertFalse(arena.used("branch"))
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "weight"):
                arena.ready("wieght")
        with self.assertRaises(tutti.ClosedError):
            arena.wait()
        self.assertEqual(weight.shape, (1000,))  # shape and memory are kept
        weight[:] = 1

    def test_objects(self):
        value = {"rank": self.rank, "text": "x" * (100 * self.rank)}
        everyone = [{"rank": rank, "text": "x" * (100 * rank)} for rank in range(self.size)]
        root = self.size - 1
        self.assertEqual(self.comm.broadcast_object("b", value, root), everyone[root])
        self.assertEqual(self.comm.allgather_object("a", value), everyone)
        got = self.comm.gather_object("g", value, root)
        self.assertEqual(got, everyone if self.rank == root else None)
        given = list(range(self.size)) if self.rank == root else None
        self.assertEqual(self.comm.scatter_object("s", given, root), self.rank)
        self.assertEqual(self.comm.broadcast_bytes("e", b"", 0), b"")
        self.assertEqual(
            self.comm.allgather_bytes("bytes", bytes(self.rank)),
            [bytes(rank) for rank in range(self.size)],
        )

    def test_an_object_that_cannot_be_handed_in(self):
        """Every rank gets the error immediately, with the name of its own call, and the next call
        works."""
        root = self.size - 1
        bad = (number for number in range(3))
        mine = bad if self.rank == root else self.rank
        fitting = [self.rank] * self.size if self.rank == root else None
        calls = {
            "broadcast": lambda: self.comm.broadcast_object("bad", mine, root),
            "allgather": lambda: self.comm.allgather_object("bad", mine),
            "gather": lambda: self.comm.gather_object("bad", mine, 0),
            "scatter": lambda: self.comm.scatter_object("bad", [mine] * self.size, root),
            "few": lambda: self.comm.scatter_object("bad", [1] * (self.size + 1), root),
            "none": lambda: self.comm.scatter_object("bad", None, root),
            "bytes": lambda: self.comm.broadcast_bytes("bad", None, root),
            "no bytes": lambda: self.comm.broadcast_bytes("bad", 1.5, root),
        }
        causes = {
            "few": f"{self.size + 1} objects were given for {self.size} ranks",
            "none": f"no objects were given for {self.size} ranks",
            "bytes": "it is the root of a broadcast and has no bytes",
            "no bytes": "TypeError: cannot convert 'float' object to bytearray",
        }
        for kind, call in calls.items():
            with self.subTest(kind):
                text = (
                    f'"bad": rank {root} could not hand in its part, so no rank gets any: '
                    f"{causes.get(kind, 'TypeError: cannot pickle')}"
                )
                with self.assertRaises(tutti.InvalidArgumentError) as caught:
                    call()
                self.assertTrue(str(caught.exception).startswith(text), str(caught.exception))
                self.assertEqual((caught.exception.rank, caught.exception.tensor), (root, "bad"))
                self.assertEqual(caught.exception.__cause__ is None, self.rank != root)
                self.assertEqual(self.comm.scatter_object("bad", fitting, root), root)

    def test_an_object_that_cannot_be_unpickled(self):
        """Only the rank itself gets the error. The others have the object, and the next call
        works."""

        class Local:
            def __reduce__(self):
                return (_only_on_rank, (0,))

        _only_on_rank.rank = self.rank
        calls = {
            "broadcast": lambda: self.comm.broadcast_object("odd", Local(), self.size - 1),
            "allgather": lambda: self.comm.allgather_object("odd", Local())[0],
            "scatter": lambda: self.comm.scatter_object("odd", [Local()] * self.size),
        }
        for kind, call in calls.items():
            with self.subTest(kind):
                is_own = kind == "broadcast" and self.rank == self.size - 1
                if self.rank == 0 or is_own:
                    call()
                else:
                    with self.assertRaisesRegex(
                        tutti.InvalidArgumentError,
                        f'"odd": rank {self.rank} cannot unpickle the object of rank . '
                        r"\(LookupError: not here\); what it is made of must be importable",
                    ):
                        call()
                self.assertEqual(self.comm.allgather_object("odd", 1), [1] * self.size)

    def test_no_elements(self):
        empty = numpy.empty((0, 3), "f4")
        self.comm.allreduce("no elements", empty).wait(DEADLINE)
        got = self.comm.allgather("no rows", empty).wait(DEADLINE)
        self.assertEqual(got.shape, (0, 3))
        self.assertEqual(numpy.asarray(got).shape, (0, 3))
        self.assertEqual(got.tobytes(), b"")
        some = part(self.rank, "i8", (self.rank, 2))
        got = self.comm.allgather("some rows", some).wait(DEADLINE)
        self.assertEqual(got.shape, (sum(range(self.size)), 2))
        self.comm.broadcast("nothing", bytearray(), 0).wait(DEADLINE)

    def test_other_buffers(self):
        numbers = array.array("d", [self.rank, 2.0])
        self.comm.allreduce("array.array", numbers, "sum").wait(DEADLINE)
        self.assertEqual(numbers[1], 2.0 * self.size)
        view = memoryview(bytearray(b"\x01\x02"))
        self.comm.allreduce("memoryview", view, "max").wait(DEADLINE)
        self.assertEqual(bytes(view), b"\x01\x02")
        scalar = numpy.array(3.0)
        self.comm.allreduce("scalar", scalar, "sum").wait(DEADLINE)
        self.assertEqual(scalar, 3.0 * self.size)

    def test_dlpack_both_ways(self):
        class OnlyDlpack:
            def __init__(self, values):
                self.values = values

            def __dlpack__(self, **keywords):
                return self.values.__dlpack__(**keywords)

            def __dlpack_device__(self):
                return self.values.__dlpack_device__()

        values = part(self.rank, "f4")
        self.comm.allreduce("dlpack", OnlyDlpack(values), "sum").wait(DEADLINE)
        self.check_equal(values, numpy.sum(self.parts("f4"), axis=0))
        got = self.comm.allgather("to dlpack", OnlyDlpack(part(self.rank, "i2"))).wait(DEADLINE)
        self.assertEqual(got.__dlpack_device__(), (1, 0))
        self.check_equal(numpy.from_dlpack(got), numpy.concatenate(self.parts("i2")))
        got.__dlpack__()  # a capsule that nobody consumes

    def test_split_and_join(self):
        half = self.comm.split(self.rank % 2, -self.rank)
        with half:
            self.assertEqual(half.size, (self.size + 1 - self.rank % 2) // 2)
            self.assertEqual(half.allreduce_value("max", float(self.rank), "max") % 2, self.rank % 2)
        self.assertTrue(half.closed)
        none = self.comm.split(-1 if self.rank == 0 else 0)
        self.assertEqual(none is None, self.rank == 0)
        # Rank 0 takes one step less: the mean is over the remaining ranks.
        if self.rank != 0:
            mine = numpy.full(2, 3.0)
            self.comm.allreduce("uneven", mine).wait(DEADLINE)
            self.check_equal(mine, [3.0, 3.0])
        self.assertIn(self.comm.join().wait(DEADLINE), range(self.size))

    def test_what_it_is(self):
        self.assertEqual(self.comm.hosts, 1)
        self.assertEqual((self.comm.local_rank, self.comm.local_size), (self.rank, self.size))
        self.assertIn(self.comm.backend, ("memory", "shm", "tcp"))
        self.comm.allreduce("counted", numpy.zeros(3)).wait(DEADLINE)
        statistics = self.comm.statistics()
        self.assertGreaterEqual(statistics.operations, 1)
        self.assertEqual(len(dict(statistics)), 15)
        self.assertIn(f"rank {self.rank} of {self.size}", repr(self.comm))


if __name__ == "__main__":
    unittest.main(verbosity=2)
