"""Horovod's operations on every rank, compared with torch's results for all ranks' inputs."""

import functools
import operator
import unittest
import warnings

import torch

import tutti.torch as hvd

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def numbers(rank, shape, dtype=torch.float32, seed=0):
    """Returns small whole numbers, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


class RankCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    @classmethod
    def tearDownClass(cls):
        hvd.barrier()
        hvd.shutdown()

    def everyone(self, shape, dtype=torch.float32, seed=0):
        return [numbers(rank, shape, dtype, seed) for rank in range(self.size)]

    def assertSame(self, got, expected):
        self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape))
        self.assertTrue(torch.equal(got, expected), f"rank {self.rank}: {got} is not {expected}")


class Allreduce(RankCase):
    def test_sums_and_averages_of_every_dtype(self):
        for dtype in INTEGERS + FLOATS:
            for shape in ((17,), (2, 3, 5), (), (0, 4)):
                own = numbers(self.rank, shape, dtype)
                total = functools.reduce(operator.add, self.everyone(shape, dtype))
                self.assertSame(hvd.allreduce(own, op=hvd.Sum), total)
                self.assertSame(own, numbers(self.rank, shape, dtype))  # the input is unchanged
                if dtype in INTEGERS:
                    mean = torch.div(total, self.size, rounding_mode="trunc")
                    self.assertSame(hvd.allreduce(own), mean)
                elif self.size in (1, 2, 4):
                    self.assertSame(hvd.allreduce(own), total / self.size)

    def test_negative_integers_are_cut_off_towards_zero(self):
        own = torch.tensor([-1 if self.rank == 0 else 0, -5])
        mean = hvd.allreduce(own)
        self.assertEqual(mean.tolist(), [0 if self.size > 1 else -1, -5])

    def test_other_operators(self):
        own, all_ranks = numbers(self.rank, (9,)), self.everyone((9,))
        self.assertSame(hvd.allreduce(own, op=hvd.Min), functools.reduce(torch.minimum, all_ranks))
        self.assertSame(hvd.allreduce(own, op=hvd.Max), functools.reduce(torch.maximum, all_ranks))
        self.assertSame(hvd.allreduce(own, op=hvd.Product), functools.reduce(operator.mul, all_ranks))

    def test_factors(self):
        own, total = numbers(self.rank, (6,)), sum(self.everyone((6,)))
        got = hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        self.assertSame(got, 2 * total)
        got = hvd.allreduce(own, prescale_factor=2.0, postscale_factor=self.size)
        self.assertTrue(torch.allclose(got, 2 * total))

    def test_in_place_and_asynchronous_under_names_in_any_order(self):
        tensors = {f"t{i}": numbers(self.rank, (50 + i,), seed=i) for i in range(20)}
        names = list(tensors) if self.rank % 2 == 0 else list(reversed(tensors))
        handles = {n: hvd.allreduce_async_(tensors[n], name=n, op=hvd.Sum) for n in names}
        for i, name in enumerate(tensors):
            result = hvd.synchronize(handles[name])
            self.assertIs(result, tensors[name])
            self.assertSame(result, sum(self.everyone((50 + i,), seed=i)))

    def test_a_handle_is_an_int_for_one_use(self):
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
        self.assertIsInstance(handle, int)
        self.assertIn(hvd.poll(handle), (True, False))
        self.assertSame(hvd.synchronize(handle), torch.full((3,), float(self.size)))
        self.assertIsNone(hvd.synchronize(handle))
        with self.assertRaises(ValueError):
            hvd.poll(handle)

    def test_average_is_the_older_word(self):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = hvd.allreduce(torch.ones(2), average=False)
        self.assertSame(got, torch.full((2,), float(self.size)))
        self.assertIn("deprecated", str(told[0].message))
        with self.assertRaisesRegex(ValueError, "op and average"):
            hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)
        with self.assertRaisesRegex(ValueError, "expected Average"):
            hvd.allreduce(torch.ones(2), op=9)

    def test_compression(self):
        own = numbers(self.rank, (30,))
        got = hvd.allreduce(own, compression=hvd.Compression.fp16, op=hvd.Sum)
        self.assertSame(got, sum(self.everyone((30,))))
        whole = torch.arange(5)
        got = hvd.allreduce(whole, compression=hvd.Compression.fp16, op=hvd.Sum)
        self.assertSame(got, whole * self.size)

    def test_groups(self):
        shapes = [(3,), (4, 5), ()]
        own = [numbers(self.rank, shape) for shape in shapes]
        for call, in_place in ((hvd.grouped_allreduce, False), (hvd.grouped_allreduce_, True)):
            results = call(own, op=hvd.Sum)
            for given, got, shape in zip(own, results, shapes):
                self.assertSame(got, sum(self.everyone(shape)))
                self.assertEqual(got is given, in_place)
        handle = hvd.grouped_allreduce_async([torch.full((2,), 3), torch.tensor([1])])
        self.assertEqual([t.tolist() for t in hvd.synchronize(handle)], [[3, 3], [1]])
        self.assertEqual(hvd.grouped_allreduce([]), [])

    def test_adasum(self):
        # Orthogonal vectors are added up, equal ones are averaged.
        own = torch.zeros(self.size)
        own[self.rank] = 2.0
        got = hvd.allreduce(own, op=hvd.Adasum)
        self.assertSame(got, torch.full((self.size,), 2.0))
        got = hvd.allreduce(torch.full((4,), 3.0), op=hvd.Adasum)
        self.assertTrue(torch.allclose(got, torch.full((4,), 3.0)))
        several = hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], op=hvd.Adasum)
        self.assertTrue(all(torch.allclose(one, torch.ones(len(one))) for one in several))
        with self.assertRaisesRegex(ValueError, "Adasum of torch.int64"):
            hvd.allreduce(torch.arange(3), op=hvd.Adasum)

    def test_sparse(self):
        indices = torch.tensor([[self.rank, self.rank + 1]])
        tensor = torch.sparse_coo_tensor(indices, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (self.size + 1, 2))
        total = sum(
            torch.sparse_coo_tensor(
                torch.tensor([[r, r + 1]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (self.size + 1, 2)
            ).to_dense()
            for r in range(self.size)
        )
        waits = hvd.sparse_allreduce_async(tensor, name="sparse", op=hvd.Sum)
        self.assertSame(waits().to_dense(), total)
        waits = hvd.sparse_allreduce_async(tensor, name=None, op=hvd.Average)
        self.assertTrue(torch.allclose(waits().to_dense(), total / self.size))
        with self.assertRaisesRegex(ValueError, "must be Average or Sum"):
            hvd.sparse_allreduce_async(tensor, name=None, op=hvd.Max)


class Moves(RankCase):
    def test_allgather_of_uneven_rows(self):
        for dtype in [*INTEGERS, *FLOATS, torch.bool, torch.complex64]:
            parts = [numbers(r, (r + 1, 3), dtype) for r in range(self.size)]
            self.assertSame(hvd.allgather(parts[self.rank]), torch.cat(parts))
        nothing = hvd.allgather(torch.empty(0, 3))
        self.assertSame(nothing, torch.empty(0, 3))
        handle = hvd.allgather_async(torch.tensor([self.rank]), name="ranks")
        self.assertEqual(hvd.synchronize(handle).tolist(), list(range(self.size)))
        several = hvd.grouped_allgather(
            [torch.tensor([self.rank]), torch.full((self.rank + 1, 2), True)]
        )
        self.assertEqual(several[0].tolist(), list(range(self.size)))
        self.assertEqual(several[1].shape[0], sum(range(self.size + 1)))

    def test_broadcast(self):
        for root in range(self.size):
            for dtype in (torch.float32, torch.bool, torch.complex64, torch.int64):
                own = numbers(self.rank, (2, 3), dtype)
                self.assertSame(hvd.broadcast(own, root), numbers(root, (2, 3), dtype))
                self.assertSame(own, numbers(self.rank, (2, 3), dtype))
                self.assertIs(hvd.broadcast_(own, root), own)
                self.assertSame(own, numbers(root, (2, 3), dtype))
        scalar = torch.tensor(float(self.rank))
        handle = hvd.broadcast_async_(scalar, self.size - 1, name="scalar")
        self.assertEqual(hvd.synchronize(handle).item(), float(self.size - 1))
        handle = hvd.broadcast_async(torch.tensor([self.rank]), 0)
        self.assertEqual(hvd.synchronize(handle).item(), 0)

    def test_alltoall(self):
        own = torch.arange(self.size * 2) + 100 * self.rank
        expected = [torch.arange(2) + 2 * self.rank + 100 * r for r in range(self.size)]
        self.assertSame(hvd.alltoall(own), torch.cat(expected))
        splits = torch.arange(1, self.size + 1, dtype=torch.int32)  # rank r gets r + 1 rows of each
        rows = torch.full((int(splits.sum()), 2), float(self.rank))
        got, received = hvd.alltoall(rows, splits)
        self.assertEqual(received.tolist(), [self.rank + 1] * self.size)
        self.assertSame(
            got, torch.arange(float(self.size)).repeat_interleave(self.rank + 1)[:, None].repeat(1, 2)
        )
        got, received = hvd.synchronize(hvd.alltoall_async(own))
        self.assertEqual(received.tolist(), [2] * self.size)
        # Rows beyond the splits are not sent.
        got, _ = hvd.alltoall(own, [1] * self.size)
        self.assertEqual(got.shape[0], self.size)
        with self.assertRaisesRegex(ValueError, "splits .* rows"):
            hvd.alltoall(own, [3] * self.size)
        if self.size > 1:
            with self.assertRaisesRegex(ValueError, "give splits"):
                hvd.alltoall(torch.ones(self.size + 1))

    def test_reducescatter(self):
        rows = 2 * self.size + 1  # the extra row goes to rank 0
        own = numbers(self.rank, (rows, 3))
        total = sum(self.everyone((rows, 3)))
        counts = [2 + (r == 0) for r in range(self.size)]
        begin = sum(counts[: self.rank])
        mine = total[begin : begin + counts[self.rank]]
        self.assertSame(hvd.reducescatter(own, op=hvd.Sum), mine)
        self.assertTrue(torch.allclose(hvd.reducescatter(own), mine / self.size))
        got = hvd.reducescatter(own, compression=hvd.Compression.fp16, op=hvd.Sum)
        self.assertSame(got, mine)
        got = hvd.synchronize(hvd.reducescatter_async(own, op=hvd.Sum, prescale_factor=2.0))
        self.assertSame(got, 2 * mine)
        several = hvd.grouped_reducescatter([own, own.long()], op=hvd.Sum)
        self.assertSame(several[0], mine)
        self.assertSame(several[1], mine.long())
        few = hvd.reducescatter(torch.ones(1, 2), op=hvd.Sum)  # fewer rows than ranks
        self.assertEqual(few.shape[0], int(self.rank == 0))
        with self.assertRaisesRegex(ValueError, "Average or Sum"):
            hvd.reducescatter(own, op=hvd.Max)

    def test_objects(self):
        thing = {"rank": self.rank, "list": [1, "two"]}
        self.assertEqual(hvd.broadcast_object(thing, self.size - 1)["rank"], self.size - 1)
        self.assertEqual(hvd.broadcast_object(thing, name="thing")["rank"], 0)
        self.assertEqual(
            hvd.allgather_object(thing), [{"rank": r, "list": [1, "two"]} for r in range(self.size)]
        )

    def test_an_object_that_cannot_be_pickled(self):
        thing = (number for number in range(3)) if self.rank == self.size - 1 else 1
        for call in (
            lambda: hvd.broadcast_object(thing, self.size - 1),
            lambda: hvd.allgather_object(thing),
        ):
            with self.assertRaisesRegex(
                hvd.HorovodInternalError, f"rank {self.size - 1} could not hand in its part"
            ):
                call()
            self.assertEqual(hvd.broadcast_object(self.rank, 0), 0)

    def test_what_is_refused_before_it_travels(self):
        transposed = torch.ones(2, 3).t()
        for call in (
            hvd.allreduce_async, hvd.allgather_async, lambda t: hvd.broadcast_async(t, 0),
            hvd.alltoall_async, hvd.reducescatter_async,
        ):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "contiguous"):
                call(transposed)
        with self.assertRaisesRegex(ValueError, "can be moved but not reduced"):
            hvd.allreduce(torch.ones(3, dtype=torch.complex64))
        with self.assertRaisesRegex(ValueError, "no first dimension"):
            hvd.allgather(torch.tensor(1.0))
        with self.assertRaisesRegex(ValueError, "root_rank 99"):
            hvd.broadcast(torch.ones(1), 99)

    def test_a_name_that_is_pending(self):
        if self.size == 1:
            return
        if self.rank == 0:  # no other rank has made this call yet
            first = hvd.allreduce_async(torch.ones(9), name="twice", op=hvd.Sum)
            with self.assertRaisesRegex(ValueError, "allreduce.twice"):
                hvd.allreduce_async(torch.ones(9), name="twice", op=hvd.Sum)
            hvd.barrier()
        else:
            hvd.barrier()
            first = hvd.allreduce_async(torch.ones(9), name="twice", op=hvd.Sum)
        self.assertEqual(hvd.synchronize(first)[0].item(), self.size)

    def test_ranks_that_differ_hear_of_it_and_go_on(self):
        if self.size == 1:
            return
        handle = hvd.allreduce_async(torch.ones(3 + self.rank), name="differs")
        with self.assertRaises(hvd.HorovodInternalError) as raised:
            hvd.synchronize(handle)
        self.assertNotIn("\n", str(raised.exception))
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), self.size)


class Gradients(RankCase):
    def test_of_allreduce(self):
        for op, expected in ((hvd.Sum, self.size * 3.0), (hvd.Average, 3.0)):
            tensor = torch.ones(4, requires_grad=True)
            hvd.allreduce(tensor, op=op).backward(torch.full((4,), 3.0))
            self.assertTrue(torch.allclose(tensor.grad, torch.full((4,), expected)))
        first, second = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
        one, two = hvd.grouped_allreduce([first, second], op=hvd.Sum)
        (one.sum() + 2 * two.sum()).backward()
        self.assertSame(first.grad, torch.full((2,), float(self.size)))
        self.assertSame(second.grad, torch.full((3,), 2.0 * self.size))

    def test_of_allgather(self):
        tensor = torch.ones(self.rank + 1, 2, requires_grad=True)
        gathered = hvd.allgather(tensor, name="gathered")
        weights = torch.arange(float(gathered.shape[0]))[:, None].repeat(1, 2)
        (gathered * weights).sum().backward()
        begin = sum(range(self.rank + 1))
        self.assertTrue(torch.allclose(tensor.grad, weights[begin : begin + self.rank + 1]))

    def test_of_broadcast(self):
        tensor = torch.ones(3, requires_grad=True)
        hvd.broadcast(tensor, 0).backward(torch.full((3,), 5.0))
        self.assertTrue(torch.allclose(tensor.grad, torch.full((3,), 5.0 if self.rank == 0 else 0.0)))

    def test_of_alltoall(self):
        tensor = torch.ones(2 * self.size, requires_grad=True)
        out, _ = hvd.alltoall(tensor, [1] * self.size)
        out.backward(torch.full((self.size,), float(self.rank)))
        expected = torch.cat([torch.arange(float(self.size)), torch.zeros(self.size)])
        self.assertSame(tensor.grad, expected)

    def test_of_reducescatter(self):
        for op, factor in ((hvd.Sum, self.size), (hvd.Average, 1)):
            tensor = torch.ones(self.size, 2, requires_grad=True)
            out = hvd.reducescatter(tensor, op=op)
            out.backward(torch.full_like(out, float(self.rank)))
            expected = torch.arange(float(self.size))[:, None].repeat(1, 2) * factor
            self.assertSame(tensor.grad, expected)


class Sets(RankCase):
    def test_two_sets(self):
        if self.size == 1:
            return
        even = hvd.add_process_set(list(range(0, self.size, 2)))
        odd = hvd.add_process_set(hvd.ProcessSet(range(1, self.size, 2)))
        self.assertNotEqual(odd.process_set_id, even.process_set_id)
        mine, other = (even, odd) if self.rank % 2 == 0 else (odd, even)
        with self.assertRaisesRegex(ValueError, "not a member"):
            hvd.allreduce(torch.ones(1), process_set=other)
        self.assertFalse(other.included())
        self.assertIsNone(other.rank())
        self.assertEqual(other.size(), len(other.ranks))  # also known outside of the set
        self.assertTrue(mine.included())
        self.assertEqual(mine.rank(), self.rank // 2)
        self.assertEqual(mine.size(), len(mine.ranks))
        got = hvd.allreduce(torch.tensor([float(self.rank)]), op=hvd.Sum, process_set=mine)
        self.assertEqual(got.item(), float(sum(mine.ranks)))
        got = hvd.broadcast(torch.tensor([self.rank]), mine.ranks[-1], process_set=mine)
        self.assertEqual(got.item(), mine.ranks[-1])  # roots are ranks of the world
        self.assertEqual(hvd.allgather_object(self.rank, process_set=mine), mine.ranks)
        hvd.barrier(mine)
        with self.assertRaisesRegex(ValueError, "are process set"):
            hvd.add_process_set(list(range(0, self.size, 2)))
        self.assertTrue(hvd.remove_process_set(even))
        self.assertIsNone(even.process_set_id)
        with self.assertRaisesRegex(ValueError, "is not known"):
            even.included()
        self.assertFalse(hvd.remove_process_set(hvd.global_process_set))
        hvd.barrier()

    def test_the_global_one(self):
        everybody = hvd.global_process_set
        self.assertEqual(everybody.ranks, list(range(self.size)))
        self.assertEqual((everybody.size(), everybody.rank()), (self.size, self.rank))
        for ranks in ([], [99], [0, 0]):
            with self.assertRaises(ValueError):
                hvd.add_process_set(ranks)
        with self.assertRaises(ValueError):
            hvd.ProcessSet(7)

    def test_known_from_the_start_and_a_smaller_world(self):
        hvd.barrier()
        hvd.shutdown()
        first = hvd.ProcessSet([0])
        hvd.init(process_sets=[first])
        self.assertEqual(first.process_set_id, 1 if self.size > 1 else 0)
        hvd.shutdown()
        self.assertIsNone(first.process_set_id)
        if self.size > 1:
            if self.rank == 0:
                with self.assertRaisesRegex(ValueError, "is not in comm"):
                    hvd.init(comm=list(range(1, self.size)))
            else:
                hvd.init(comm=list(range(1, self.size)))
                self.assertEqual((hvd.rank(), hvd.size()), (self.rank - 1, self.size - 1))
                hvd.shutdown()
        hvd.init()


class Join(RankCase):
    def test_averages_divide_by_all_ranks(self):
        for _ in range(2):
            for turn in range(self.rank + 1):  # rank r has r + 1 steps
                got = hvd.allreduce(torch.full((3,), 2.0), name=f"turn {turn}")
                there = self.size - turn
                self.assertTrue(torch.allclose(got, torch.full((3,), 2.0 * there / self.size)))
            self.assertEqual(hvd.join(), self.size - 1)
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), self.size)

    def test_places(self):
        self.assertEqual(hvd.local_size(), self.size)
        self.assertEqual(hvd.local_rank(), self.rank)
        self.assertEqual((hvd.cross_rank(), hvd.cross_size()), (0, 1))
        self.assertTrue(hvd.is_homogeneous())


if __name__ == "__main__":
    unittest.main()
