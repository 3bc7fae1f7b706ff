"""DistributedOptimizer, the broadcasts before training, and SyncBatchNorm on every rank, compared
with training on one rank with the joined batch."""

import unittest
import warnings

import torch
from operations import RankCase
from torch import nn

import tutti.torch as hvd

STEPS, BATCH = 30, 6


class Model(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.words = nn.Embedding(10, 8, sparse=sparse)
        self.hidden = nn.Linear(8 + 4, 16)
        self.branch = nn.Linear(16, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, words, numbers, branch=True):
        hidden = torch.tanh(self.hidden(torch.cat([self.words(words), numbers], 1)))
        if branch:
            hidden = hidden + self.branch(hidden)
        return self.out(hidden)


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randint(0, 10, (BATCH,), generator=generator),
        torch.randn(BATCH, 4, generator=generator),
        torch.randint(0, 3, (BATCH,), generator=generator),
    )


def loss_of(model, data, **how):
    return nn.functional.cross_entropy(model(*data[:2], **how), data[2])


def sgd(model, momentum=0.9):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def model_of(seed=7, **how):
    torch.manual_seed(seed)
    return Model(**how)


class Optimizer(RankCase):
    def one_rank(self, branch_of=lambda rank, step: True, passes=1, momentum=0.9, **how):
        """Returns the expected model: gradients are the mean over ranks of the sums over passes."""
        model = model_of(**how)
        optimizer = sgd(model, momentum)
        for step in range(STEPS):
            optimizer.zero_grad()
            for rank in range(self.size):
                for turn in range(passes):
                    data = batch(step * passes + turn, rank)
                    (loss_of(model, data, branch=branch_of(rank, step)) / self.size).backward()
            optimizer.step()
        return model

    def train(self, model, optimizer, branch_of=lambda rank, step: True, passes=1):
        for step in range(STEPS):
            optimizer.zero_grad()
            for turn in range(passes):
                data = batch(step * passes + turn, self.rank)
                loss_of(model, data, branch=branch_of(self.rank, step)).backward()
            optimizer.step()

    def compare(self, model, expected, tolerance=1e-4):
        for (name, got), wanted in zip(model.named_parameters(), expected.parameters()):
            difference = (got - wanted).abs().max().item()
            self.assertLessEqual(difference, tolerance, name)
            replicas = hvd.allgather(got.detach().reshape(1, -1))
            self.assertTrue(all(torch.equal(one, replicas[0]) for one in replicas), name)

    def test_it_trains_as_one_rank_does(self):
        ways = {
            "plain": {},
            "named": {"named": True},
            "fp16": {"compression": hvd.Compression.fp16, "tolerance": 2e-2},
            "predivided": {"gradient_predivide_factor": 2.0},
            "two groups": {"groups": 2},
            "num_groups": {"num_groups": 3},
            "groups of its own": {"lists": True},
        }
        expected = self.one_rank()
        for what, how in ways.items():
            with self.subTest(what):
                how = dict(how)
                tolerance = how.pop("tolerance", 1e-4)
                model = model_of(seed=7 + self.rank)
                hvd.broadcast_parameters(model.state_dict(), root_rank=0)
                if how.pop("named", False):
                    how["named_parameters"] = model.named_parameters()
                if how.pop("lists", False):
                    how["groups"] = [list(model.hidden.parameters()), [model.out.weight]]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    optimizer = hvd.DistributedOptimizer(sgd(model), **how)
                self.assertEqual(type(optimizer).__name__, "SGD")
                self.assertIsInstance(optimizer, torch.optim.SGD)
                self.train(model, optimizer)
                self.compare(model, expected, tolerance)

    def test_a_parameter_that_some_ranks_do_not_use(self):
        def branch_of(rank, step):
            return (rank + step) % 2 == 0

        for groups in (None, 2):
            model = model_of()
            optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), groups=groups)
            self.train(model, optimizer, branch_of)
            self.compare(model, self.one_rank(branch_of))

    def test_several_passes_are_added_up(self):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(sgd(model), backward_passes_per_step=2)
        self.train(model, optimizer, passes=2)
        self.compare(model, self.one_rank(passes=2))
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(1)
        loss_of(model, batch(0, self.rank)).backward()
        if self.size > 1:
            with self.assertRaisesRegex(AssertionError, "Gradients were computed more than"):
                loss_of(model, batch(0, self.rank)).backward()
        optimizer.synchronize()

    def test_sparse_gradients(self):
        expected = self.one_rank(momentum=0.0)
        for as_dense in (False, True):
            model = model_of(sparse=True)
            optimizer = hvd.DistributedOptimizer(
                sgd(model, 0.0), model.named_parameters(), sparse_as_dense=as_dense
            )
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, batch(step, self.rank)).backward()
                optimizer.step()
                model.words.weight.grad = None
            self.compare(model, expected)

    def test_clipping_between_synchronize_and_step(self):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
        loss_of(model, batch(0, self.rank)).backward()
        if self.size > 1:
            with self.assertRaisesRegex(AssertionError, "can cause a race condition"):
                optimizer.zero_grad()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
        loss_of(model, batch(1, self.rank)).backward()
        optimizer.synchronize()
        with self.assertWarnsRegex(UserWarning, "without optimizer.skip_synchronize"):
            optimizer.step()
        replicas = hvd.allgather_object(model.out.weight.detach().tolist())
        self.assertTrue(all(one == replicas[0] for one in replicas))

    def test_state_and_schedules_of_the_given_optimizer_live_on(self):
        model = model_of()
        plain = sgd(model)
        schedule = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
        loss_of(model, batch(0, 0)).backward()
        plain.step()
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        self.assertEqual(len(optimizer.state), len(list(model.parameters())))
        optimizer.zero_grad()
        loss_of(model, batch(0, self.rank)).backward()
        optimizer.step()
        schedule.step()
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.025)
        replicas = hvd.allgather_object(model.out.weight.detach().tolist())
        self.assertTrue(all(one == replicas[0] for one in replicas))

    def test_what_it_refuses(self):
        model = model_of()
        wraps = hvd.DistributedOptimizer
        pairs = list(model.named_parameters())
        for text, how in (
            ("sequence of tuples", {"named_parameters": list(model.parameters())}),
            ("must be unique", {"named_parameters": [pairs[0], pairs[0]]}),
            ("were not named: number 1", {"named_parameters": pairs[:1]}),
            ("not supported with op != Average",
             {"gradient_predivide_factor": 2.0, "op": hvd.Sum}),
            ("groups is -1", {"groups": -1}),
            ("in two groups", {"groups": [[pairs[0][1]], [pairs[0][1]]]}),
        ):  # fmt: skip
            with self.assertRaisesRegex(ValueError, text):
                wraps(sgd(model), **how)
        alone = hvd.ProcessSet([0])
        with self.assertRaisesRegex(ValueError, "is not known"):
            wraps(sgd(model), process_set=alone)
        alone.process_set_id = 5
        with self.assertRaisesRegex(ValueError, "Adasum runs on all ranks"):
            wraps(sgd(model), op=hvd.Adasum, process_set=alone)

    def test_a_process_set(self):
        if self.size < 3:
            return
        pair = hvd.add_process_set([0, 1])
        model = model_of()
        optimizer = hvd.DistributedOptimizer(sgd(model), process_set=pair)
        loss_of(model, batch(0, self.rank)).backward()
        optimizer.step()
        if self.rank < 2:
            replicas = hvd.allgather_object(model.out.weight.tolist(), process_set=pair)
            self.assertEqual(replicas[0], replicas[1])
        hvd.barrier()
        hvd.remove_process_set(pair)

    def test_adasum(self):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), op=hvd.Adasum,
            compression=hvd.Compression.none,
        )  # fmt: skip
        first = loss_of(model, batch(0, self.rank)).item()
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, batch(0, self.rank)).backward()
            optimizer.step()
        self.assertLess(hvd.allreduce(torch.tensor(loss_of(model, batch(0, self.rank)).item())), first)
        self.compare(model, model, 0.0)
        with self.assertRaisesRegex(AssertionError, "not supported when using Adasum"):
            with optimizer.skip_synchronize():
                pass
        optimizer.synchronize()
        optimizer.set_backward_passes_per_step(2)
        # Ranks with equal gradients get the result of one rank alone.
        alone, same = model_of(), model_of()
        plain, wrapped = sgd(alone), hvd.DistributedOptimizer(sgd(same), op=hvd.Adasum)
        for trained, stepped in ((alone, plain), (same, wrapped)):
            loss_of(trained, batch(0, 0)).backward()
            stepped.step()
        for got, wanted in zip(same.parameters(), alone.parameters()):
            self.assertTrue(torch.allclose(got, wanted, atol=1e-6))


class States(RankCase):
    def test_parameters(self):
        model = model_of(seed=self.rank)
        root = self.size - 1
        hvd.broadcast_parameters(model.state_dict(), root)
        wanted = model_of(seed=root)
        self.assertTrue(
            all(torch.equal(a, b) for a, b in zip(model.parameters(), wanted.parameters()))
        )
        tensors = [torch.full((2,), float(self.rank)), torch.tensor(self.rank)]
        hvd.broadcast_parameters(tensors, 0)
        hvd.broadcast_parameters([("a", tensors[0])], 0)
        self.assertEqual((tensors[0].tolist(), tensors[1].item()), ([0.0, 0.0], 0))
        transposed = torch.full((2, 3), float(self.rank)).t()
        hvd.broadcast_parameters([transposed], root)
        self.assertTrue(torch.equal(transposed, torch.full((3, 2), float(root))))
        with self.assertRaisesRegex(ValueError, "takes a dict or a list, not generator"):
            hvd.broadcast_parameters(model.parameters(), 0)

    def test_optimizers(self):
        kinds = (
            lambda p: torch.optim.SGD(p, lr=0.1 * (self.rank + 1), momentum=0.9),
            lambda p: torch.optim.Adam(p, lr=0.1 * (self.rank + 1), amsgrad=True),
            lambda p: torch.optim.RMSprop(p, lr=0.1 * (self.rank + 1), centered=True),
            lambda p: torch.optim.Adagrad(p, lr=0.1 * (self.rank + 1)),
        )
        for make in kinds:
            for wrapped in (False, True):
                model = model_of()
                optimizer = make(model.parameters())
                if self.rank == 0:  # only the root has a state
                    loss_of(model, batch(0, 0)).backward()
                    optimizer.step()
                if wrapped:
                    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
                hvd.broadcast_optimizer_state(optimizer, 0)
                states = hvd.allgather_object(optimizer.state_dict())
                self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)
                self.assertEqual(str(states[self.rank]), str(states[0]))
                self.assertGreater(len(states[0]["state"]), 0)
        with self.assertRaisesRegex(ValueError, "L-BFGS"):
            hvd.broadcast_optimizer_state(torch.optim.LBFGS(model_of().parameters()), 0)


class BatchNorm(RankCase):
    def test_it_is_batch_norm_of_the_joined_batch(self):
        for shape in ((4, 3), (2, 3, 5, 5)):
            generator = torch.Generator().manual_seed(3)
            everyone = 10 + torch.randn(self.size, *shape, generator=generator)
            weights = torch.randn(self.size, *shape, generator=generator)
            ours = hvd.SyncBatchNorm(3)
            theirs = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(3)
            own = everyone[self.rank].clone().requires_grad_()
            whole = everyone.reshape(-1, *shape[1:]).clone().requires_grad_()
            for _ in range(2):
                got, expected = ours(own), theirs(whole)
            rows = slice(self.rank * shape[0], (self.rank + 1) * shape[0])
            self.assertTrue(torch.allclose(got, expected[rows], atol=1e-5))
            self.assertTrue(torch.allclose(ours.running_mean, theirs.running_mean, atol=1e-5))
            self.assertTrue(torch.allclose(ours.running_var, theirs.running_var, atol=1e-5))
            (got * weights[self.rank]).sum().backward()
            (expected * weights.reshape(-1, *shape[1:])).sum().backward()
            self.assertTrue(torch.allclose(own.grad, whole.grad[rows], atol=1e-4))
            ours.eval(), theirs.eval()
            self.assertTrue(torch.allclose(ours(own), theirs(whole)[rows], atol=1e-5))
        ours.train()
        with self.assertRaisesRegex(ValueError, "at least 2D"):
            ours(torch.ones(3))
        if self.size > 1:
            momentless = hvd.SyncBatchNorm(3, momentum=None)
            momentless(own.detach())
            self.assertEqual(momentless.num_batches_tracked.item(), 1)
            with self.assertRaisesRegex(ValueError, "more than 1 value per channel"):
                hvd.SyncBatchNorm(3)(torch.ones(1 if self.rank == 0 else 0, 3))


if __name__ == "__main__":
    unittest.main()
