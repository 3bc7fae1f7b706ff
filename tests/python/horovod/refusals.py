"""If one rank's call is refused, all ranks get an error, and the next call works on all of them."""

import unittest

import torch
from operations import RankCase

import tutti.torch as hvd


class Refusals(RankCase):
    def assertHeard(self, call, good, bad, text):
        """Makes `call(good)` on all ranks except the last, which makes the refused `call(bad)`."""
        if self.rank == self.size - 1:
            with self.assertRaisesRegex(ValueError, text):
                call(bad)
        else:
            with self.assertRaisesRegex(hvd.HorovodInternalError, "sent barrier") as raised:
                call(good)
            self.assertIn(f"rank {self.size - 1}", str(raised.exception))
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), self.size)

    def test_splits_that_are_not_whole_numbers(self):
        rows = torch.arange(2.0 * self.size)
        good = [1] * self.size
        for bad in (
            [1.9, *good[1:]], [True] * self.size, torch.ones(self.size), torch.tensor(good) > 0,
            ["1"] * self.size, 7,
        ):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "whole number"):
                hvd.alltoall(rows, bad)
        for fine in (good, tuple(good), torch.tensor(good), torch.tensor(good, dtype=torch.int32)):
            self.assertEqual(hvd.alltoall(rows, fine)[1].tolist(), good)
        if self.size > 1:
            for _ in range(2):
                self.assertHeard(
                    lambda splits: hvd.alltoall(rows, splits), good, [1.9, *good[1:]], "whole number"
                )
            received = hvd.alltoall(rows, good)[1]
            self.assertEqual(received.tolist(), good)

    def test_every_kind_of_call(self):
        if self.size == 1:
            return
        one, two = torch.ones(self.size), torch.ones(2, 3).t()
        for call in (
            hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter,
            lambda t: hvd.broadcast(t, 0), lambda t: hvd.broadcast_(t, 0),
            lambda t: hvd.allreduce(t, name="by name"),
            lambda t: hvd.grouped_allreduce([t, one]), lambda t: hvd.grouped_allreduce([one, t]),
            lambda t: hvd.grouped_allreduce_(iter([one, t])),
            lambda t: hvd.grouped_allgather([one, t]),
            lambda t: hvd.grouped_reducescatter([one, t]),
        ):  # fmt: skip
            self.assertHeard(call, one, two, "contiguous")
            self.assertHeard(call, one, None, "expected a tensor")
        for good, bad in ((hvd.Sum, 9), (hvd.Sum, True), (hvd.Sum, 1.0)):
            self.assertHeard(lambda op: hvd.allreduce(one, op=op), good, bad, "op")
            self.assertHeard(lambda op: hvd.grouped_allreduce([one, one], op=op), good, bad, "op")
        for good, bad in ((0, 99), (0, 0.0), (0, False), (0, "0")):
            self.assertHeard(lambda root: hvd.broadcast(one, root), good, bad, "root_rank")
        sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,))
        self.assertHeard(
            lambda op: hvd.sparse_allreduce_async(sparse, None, op)(), hvd.Sum, hvd.Max, "Average"
        )
        self.assertHeard(lambda op: hvd.reducescatter(one, op=op), hvd.Sum, hvd.Max, "Average")
        self.assertHeard(hvd.allgather, one, torch.tensor(1.0), "no first dimension")

    def test_groups_may_be_generators(self):
        def both():
            yield torch.ones(self.size)
            yield torch.ones(self.size, 2)

        for call, rows in (
            (lambda t: hvd.grouped_allreduce(t, op=hvd.Sum), self.size),
            (lambda t: hvd.grouped_allreduce_(t, op=hvd.Sum), self.size),
            (hvd.grouped_allgather, self.size**2), (hvd.grouped_reducescatter, 1),
        ):  # fmt: skip
            self.assertEqual([len(one) for one in call(both())], [rows, rows])

    def test_numbers_outside_of_operations(self):
        for ranks in ([0.0], [True], ["0"], [0, 0]):
            with self.assertRaisesRegex(ValueError, "whole number|each once"):
                hvd.ProcessSet(ranks)
        self.assertEqual(hvd.ProcessSet(torch.arange(2)).ranks, [0, 1])
        with self.assertRaisesRegex(ValueError, "process_set_id must be a whole number"):
            hvd.process_set_by_id(0.0)
        parameter = torch.nn.Parameter(torch.ones(1))
        for how in ({"backward_passes_per_step": 1.5}, {"groups": 1.5}, {"groups": True}):
            with self.assertRaisesRegex(ValueError, "must be a whole number"):
                hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), **how)


if __name__ == "__main__":
    unittest.main()
