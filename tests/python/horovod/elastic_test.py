"""elastic.run: a rank is killed, and the others continue from the last commit."""

import os
import signal
import subprocess
import sys
import unittest

import torch

import tutti.torch as hvd

ROWS, BATCH, EPOCHS = 24, 2, 3


def train():
    """Runs on every rank. Rank 2 is killed in the middle of the second epoch."""
    hvd.init()
    first_size = hvd.size()
    dies = hvd.rank() == first_size - 1
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(torch.arange(ROWS), shuffle=True, seed=3)
    told = []
    state = hvd.elastic.TorchState(
        model, optimizer, sampler=sampler, epoch=0, seen=0
    )
    state.register_reset_callbacks([lambda: told.append(hvd.size())])

    @hvd.elastic.run
    def loop(state, epochs):
        while state.epoch < epochs:
            rows = list(state.sampler)
            for number in range(len(rows) // BATCH):
                state.optimizer.zero_grad()
                batch = torch.tensor(rows[number * BATCH : (number + 1) * BATCH]).float()[:, None]
                (state.model(batch) - 2 * batch / ROWS).pow(2).mean().backward()
                if dies and state.epoch == 1 and number == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                state.optimizer.step()
                state.seen += hvd.size() * BATCH
                state.sampler.record_batch(number, BATCH)
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
        return state.seen

    seen = loop(state, EPOCHS)
    assert told == [first_size - 1], told
    assert hvd.size() == first_size - 1
    assert seen >= EPOCHS * ROWS - BATCH * first_size, seen  # committed batches are not lost
    replicas = hvd.allgather_object([p.detach().tolist() for p in model.parameters()])
    assert replicas[0] == replicas[1], replicas
    momenta = hvd.allgather_object(str(optimizer.state_dict()))
    assert momenta[0] == momenta[1], momenta
    print(f"rank {hvd.rank()} of {hvd.size()} saw {seen}", flush=True)
    hvd.shutdown()


class Elastic(unittest.TestCase):
    def test_the_survivors_go_on(self):
        command = [sys.executable, "-m", "tutti.horovodrun", "-np", "3", "--min-np", "2"]
        ran = subprocess.run(
            [*command, sys.executable, __file__, "train"], capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        self.assertIn("rank 0 of 2 saw", ran.stdout, ran.stderr)
        self.assertIn("rank 1 of 2 saw", ran.stdout, ran.stderr)

    def test_a_mistake_does_not_come_again_and_again(self):
        hvd.init()
        state = hvd.elastic.ObjectState(step=0)
        calls = []

        @hvd.elastic.run
        def loop(state):
            calls.append(state.step)
            raise hvd.HorovodInternalError("shapes differ")

        with self.assertRaisesRegex(hvd.HorovodInternalError, "shapes differ"):
            loop(state)
        self.assertEqual(calls, [0])
        hvd.shutdown()

    def test_new_hosts_are_synchronized_with(self):
        hvd.init()
        state = hvd.elastic.ObjectState(step=0)
        told = []
        state.register_reset_callbacks([lambda: told.append(state.step)])

        @hvd.elastic.run
        def loop(state):
            state.step += 1
            if state.step == 1:
                raise hvd.HostsUpdatedInterrupt()
            return state.step

        self.assertEqual(loop(state), 2)
        self.assertEqual(told, [1])
        hvd.shutdown()

    def test_states_go_back_to_the_last_commit(self):
        hvd.init()
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        state = hvd.elastic.TorchState(model, optimizer, schedule=schedule, epoch=3, list=[1])
        before = model.weight.detach().clone()
        state.epoch, state.list = 4, [2]
        with torch.no_grad():
            model.weight.add_(1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        schedule.step()
        state.restore()
        self.assertEqual((state.epoch, state.list), (3, [1]))
        self.assertTrue(torch.equal(model.weight, before))
        self.assertEqual(schedule.last_epoch, 0)
        state.epoch = 5
        state.commit()
        state.epoch = 6
        state.restore()
        self.assertEqual(state.epoch, 5)
        state.sync()
        state.on_hosts_updated()
        with self.assertRaises(NotImplementedError):
            hvd.elastic.State().save()
        hvd.shutdown()

    def test_the_sampler_deals_what_is_left(self):
        hvd.init()
        for shuffle in (False, True):
            sampler = hvd.elastic.ElasticSampler(range(10), shuffle=shuffle, seed=1)
            self.assertEqual(sorted(sampler), list(range(10)))
            self.assertEqual(len(sampler), 10)
            first = sampler.get_indices(0, 4)
            sampler.record_batch(0, 4)
            kept = sampler.state_dict()
            sampler.reset()
            self.assertEqual(sorted([*sampler, *first]), list(range(10)))
            sampler.set_epoch(1)
            self.assertEqual(len(sampler), 10)
            sampler.load_state_dict(kept)
            self.assertEqual(len(sampler), 6)
        hvd.shutdown()


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else unittest.main()
