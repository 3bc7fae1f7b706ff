"""DistributedOptimizer with a closure that computes the gradients, and with parameters that change
after wrapping. Training on every rank is compared with one rank that has the joined batch."""

import copy
import gc
import pickle
import unittest
import weakref

import torch
from operations import RankCase
from optimizer import batch, loss_of, model_of, sgd
from torch import nn

import tutti.torch as hvd


def problem(rank):
    generator = torch.Generator().manual_seed(rank + 1)
    inputs = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    return inputs, (inputs.sum(1, keepdim=True) + 0.1 * rank).sin()


def small():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), lr=0.5, line_search_fn="strong_wolfe")


class Alike(RankCase):
    def assertAlike(self, model, expected, tolerance=1e-4):
        for (name, got), wanted in zip(model.named_parameters(), expected.parameters()):
            self.assertLessEqual((got - wanted).abs().max().item(), tolerance, name)
            replicas = hvd.allgather(got.detach().reshape(1, -1))
            self.assertTrue(all(torch.equal(one, replicas[0]) for one in replicas), name)


class Closures(Alike):
    def joined(self, make, steps):
        """Trains on one rank with the mean of all ranks' losses."""
        model, losses = small(), []
        optimizer = make(model)

        def closure():
            optimizer.zero_grad()
            loss = sum(
                nn.functional.mse_loss(model(inputs), targets)
                for inputs, targets in map(problem, range(self.size))
            ) / self.size
            loss.backward()
            return loss

        for _ in range(steps):
            losses.append(optimizer.step(closure).item())
        return model, losses

    def test_step_takes_the_gradients_and_the_loss_of_all_ranks(self):
        inputs, targets = problem(self.rank)
        for make in (lambda model: torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5), lbfgs):
            expected, expected_losses = self.joined(make, 5)
            model = small()
            optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters())

            def closure():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                return loss

            losses = [optimizer.step(closure).item() for _ in range(5)]
            self.assertAlike(model, expected, 1e-8)
            for got, wanted in zip(losses, expected_losses):
                self.assertAlmostEqual(got, wanted)

    def test_what_a_closure_may_give_and_do(self):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Sum)
        losses = {"number": float(self.rank), "nothing": None}

        def closure():
            optimizer.zero_grad()
            loss_of(model, batch(0, self.rank)).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return losses[what]

        for what, expected in (("number", float(sum(range(self.size)))), ("nothing", None)):
            self.assertEqual(optimizer.step(closure), expected)
            with optimizer.skip_synchronize():
                self.assertEqual(optimizer.step(closure), expected)
        self.assertAlike(model, model)
        if self.size > 1:
            with self.assertRaisesRegex(AssertionError, r"must call optimizer.synchronize\(\)"):
                with optimizer.skip_synchronize():
                    optimizer.step(lambda: loss_of(model, batch(0, self.rank)).backward())
            optimizer.synchronize()

    def test_by_adasum_a_closure_is_each_ranks_own(self):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(sgd(model), op=hvd.Adasum)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, batch(0, self.rank))
            loss.backward()
            return loss

        optimizer.step(closure)
        self.assertAlike(model, model)


class Changes(Alike):
    def train(self, change, groups=None, named=True, **how):
        """Calls `change(model, optimizer, step)` before each step."""
        pairs = {}
        for what in ("one rank", "all"):
            model = model_of()
            start = [*model.hidden.parameters(), *model.out.parameters()]
            optimizer = torch.optim.SGD(start, lr=0.05, momentum=0.9, weight_decay=0.01)
            if what == "all":
                # A generator can be read only once.
                names = model.named_parameters() if named else None
                optimizer = hvd.DistributedOptimizer(optimizer, names, groups=groups, **how)
            for step in range(8):
                change(model, optimizer, step)
                optimizer.zero_grad()
                ranks = range(self.size) if what == "one rank" else [self.rank]
                for rank in ranks:
                    (loss_of(model, batch(step, rank)) / len(ranks)).backward()
                optimizer.step()
            pairs[what] = model
        self.assertAlike(pairs["all"], pairs["one rank"])

    def test_groups_of_parameters_that_come_later(self):
        def add(model, optimizer, step):
            if step == 3:
                optimizer.add_param_group({"params": list(model.words.parameters()), "lr": 0.1})
            if step == 5:
                optimizer.param_groups[0]["params"] += model.branch.parameters()

        for how in ({}, {"groups": 2}, {"named": False}, {"op": hvd.Average, "groups": 1}):
            with self.subTest(how):
                self.train(add, **how)

    def test_parameters_that_are_frozen_and_thawed(self):
        def freeze(model, optimizer, step):
            if step in (2, 6):
                for parameter in model.hidden.parameters():
                    parameter.requires_grad_(step == 6)
                    parameter.grad = None

        for groups in (None, 2):
            with self.subTest(groups):
                self.train(freeze, groups)

    def test_a_model_that_is_frozen_when_it_is_wrapped(self):
        model, alone = model_of(), model_of()
        for one in (model, alone):
            one.hidden.requires_grad_(False)
        wrapped, plain = hvd.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(alone)
        for step in range(4):
            if step == 2:
                for one in (model, alone):
                    one.hidden.requires_grad_(True)
            for optimizer in (wrapped, plain):
                optimizer.zero_grad()
            loss_of(model, batch(step, self.rank)).backward()
            for rank in range(self.size):
                (loss_of(alone, batch(step, rank)) / self.size).backward()
            wrapped.step(), plain.step()
        self.assertAlike(model, alone)

    def test_a_model_that_is_cast(self):
        def cast(model, optimizer, step):
            if step == 2:
                model.double()
                for state in optimizer.state.values():
                    state["momentum_buffer"] = state["momentum_buffer"].double()

        model, alone = model_of(), model_of()
        wrapped, plain = hvd.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(alone)
        for step in range(4):
            cast(model, wrapped, step), cast(alone, plain, step)
            for optimizer in (wrapped, plain):
                optimizer.zero_grad()
            data = [batch(step, rank) for rank in range(self.size)]
            if step >= 2:
                data = [(words, numbers.double(), targets) for words, numbers, targets in data]
            loss_of(model, data[self.rank]).backward()
            if self.size > 1 and step == 3:  # the hooks must be those of the new nodes
                self.assertEqual(len(wrapped._begun), len(list(model.parameters())))
            for one in data:
                (loss_of(alone, one) / self.size).backward()
            wrapped.step(), plain.step()
        self.assertAlike(model, alone)

    def test_sparse_gradients_are_sparse_again_before_the_step(self):
        for groups in (None, 1):
            model, alone = nn.Embedding(10, 3, sparse=True), nn.Embedding(10, 3, sparse=True)
            for one in (model, alone):
                nn.init.ones_(one.weight)
            wrapped = hvd.DistributedOptimizer(
                torch.optim.SparseAdam(list(model.parameters())), model.named_parameters(),
                sparse_as_dense=True, groups=groups,
            )  # fmt: skip
            plain = torch.optim.SparseAdam(list(alone.parameters()))
            for step in range(3):
                wrapped.zero_grad(), plain.zero_grad()
                if step < 2 or self.rank == 0:  # only rank 0 uses the model in the last step
                    model(torch.tensor([self.rank, 5])).square().sum().backward()
                for rank in range(self.size if step < 2 else 1):
                    (alone(torch.tensor([rank, 5])).square().sum() / self.size).backward()
                wrapped.step(), plain.step()
            self.assertAlike(model, alone)


class Several(Alike):
    def test_two_optimizers_whose_parameters_have_the_same_names(self):
        models = [model_of(seed) for seed in (1, 2)]
        alone = [model_of(seed) for seed in (1, 2)]
        wrapped = [hvd.DistributedOptimizer(sgd(m), m.named_parameters()) for m in models]
        plain = [sgd(m) for m in alone]
        for step in range(3):
            for optimizer in wrapped + plain:
                optimizer.zero_grad()
            sum(loss_of(m, batch(step, self.rank)) for m in models).backward()  # both are in flight
            for rank in range(self.size):
                (sum(loss_of(m, batch(step, rank)) for m in alone) / self.size).backward()
            for optimizer in wrapped[:: -1 if step else 1] + plain:
                optimizer.step()
        for model, one in zip(models, alone):
            self.assertAlike(model, one)

    def test_one_that_is_gone_leaves_no_hook(self):
        model = model_of()
        gc.disable()
        self.addCleanup(gc.enable)
        first = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
        gone = weakref.ref(first)
        del first
        self.assertIsNone(gone())
        second = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
        loss_of(model, batch(0, self.rank)).backward()
        second.step()
        self.assertAlike(model, model)

    def test_a_copy_would_step_alone(self):
        model = model_of()
        for op in (hvd.Average, hvd.Adasum):
            optimizer = hvd.DistributedOptimizer(sgd(model), op=op)
            for call in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "can be neither copied nor pickled"):
                    call(optimizer)


if __name__ == "__main__":
    unittest.main()
