"""Single pieces of the backend in one process: its store, its Futures, its addresses."""

import datetime
import pickle
import socket
import sys
import threading
import unittest
from unittest import mock

import torch
import torch.distributed as dist

import tutti
import tutti.torch
from tutti.torch import _collectives, _memory, _rendezvous, _store, _work

DEADLINE = 60.0


class Pending:
    """An operation that ends when the test calls end()."""

    def __init__(self, name="step/weight"):
        self.name = name
        self.callbacks = []
        self.is_done = False

    def done(self):
        return self.is_done

    def exception(self):
        return None

    def wait(self, timeout=None):
        if not self.is_done:
            raise tutti.TimedOutError(f"{self.name} was not over")

    def add_done_callback(self, callback):
        self.callbacks.append(callback)

    def end(self):
        self.is_done = True
        for callback in self.callbacks:
            callback(self)


class Futures(unittest.TestCase):
    def test_a_future_ends_with_the_timeout_of_its_group(self):
        pending = Pending()
        work = _work.Work((pending,), ["value"], 0.05)
        with self.assertRaisesRegex(RuntimeError, '"step/weight" was not over within 0.05 s') as caught:
            work.get_future().wait()
        self.assertIn("TimedOutError", repr(caught.exception) + str(caught.exception))
        pending.end()  # too late: the Future has failed and must not end twice
        self.assertTrue(work.wait())

    def test_a_long_timeout_does_not_hold_up_a_short_one(self):
        later = _work.Work((Pending("long"),), [], 3600.0)
        later.get_future()
        soon = _work.Work((Pending("short"),), [], 0.05)
        with self.assertRaisesRegex(RuntimeError, '"short" was not over'):
            soon.get_future().wait()

    def test_what_ends_in_time_is_not_watched_any_more(self):
        pending = Pending()
        work = _work.Work((pending,), ["value"], 3600.0)
        future = work.get_future()
        pending.end()
        self.assertEqual(future.wait(), ["value"])
        self.assertNotIn(work, _work._deadlines._ends)


class OnAGpu(torch.Tensor):
    """Looks like a GPU tensor to the backend."""

    is_cuda = property(lambda self: True)


class Outputs(unittest.TestCase):
    def test_on_a_gpu_the_result_is_copied_from_the_librarys_memory(self):
        class Library(Pending):
            def output(self):
                return torch.arange(6.0)

        target = torch.zeros(2, 3).as_subclass(OnAGpu)
        work, given, finished = Library(), [], []

        def start(into):
            given.append(into)
            return work

        group = mock.Mock(_work=lambda work, outputs, finish: _work.Work((work,), outputs, 1, finish))
        call = _collectives.Collectives._into
        call_work = call(group, target, "its place", start, [target], lambda: finished.append(1))
        self.assertEqual(given, [None])
        work.end()
        call_work.wait()
        self.assertEqual(target.tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(finished, [1])

    def test_what_travelled_as_bytes_keeps_its_dtype(self):
        values = torch.tensor([1 + 2j, 3j])
        target = torch.zeros(2, dtype=values.dtype)
        _memory.fetch(torch.view_as_real(values).view(-1).view(torch.uint8), target)
        self.assertTrue(torch.equal(target, values))


class KeptWorks(unittest.TestCase):
    def test_threads_make_and_end_them_at_once(self):
        failures = []

        def churn():
            try:
                for _ in range(3_000):
                    work = _work.Work((), [], 1.0)
                    _work._keep(work)
                    work.wait()
            except BaseException as error:
                failures.append(error)

        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(1e-6)
        with mock.patch.object(_work, "_MOST_KEPT", 0):
            threads = [threading.Thread(target=churn) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE)
        self.assertEqual(failures, [])


class Stores(unittest.TestCase):
    def test_a_key_that_goes_while_it_is_read_is_not_waited_for(self):
        torchs = dist.HashStore()
        torchs.set_timeout(datetime.timedelta(seconds=1))
        other = _store.TorchStore(torchs)
        other.set("key", b"value")

        class Racing:
            def __getattr__(self, name):
                return getattr(torchs, name)

            def add(self, key, amount):
                now = torchs.add(key, amount)
                other.delete("key")
                return now

        self.assertIsNone(_store.TorchStore(Racing()).get("key"))

    def test_what_is_deleted_can_be_set_and_counted_again(self):
        store = _store.TorchStore(dist.HashStore())
        store.set("key", b"value")
        store.delete("key")
        self.assertIsNone(store.get("key"))
        self.assertEqual(store.add("key", 3), 3)
        self.assertEqual(store.get("key"), b"3")
        store.set("key", b"0")
        self.assertEqual(store.get("key"), b"0")

    def test_a_rank_that_failed_to_join_does_not_shift_the_others(self):
        torchs = dist.HashStore()
        settings = {"backend": "tcp"}
        sizes = {}

        def fail(rank):
            with self.assertRaises(tutti.Error):
                _store.connect(torchs, "again", rank, 2, 0.2, settings)[0].close()

        def join(rank):
            comm, _ = _store.connect(torchs, "again", rank, 2, DEADLINE, settings)
            sizes[rank] = comm.size
            comm.close()

        fail(0)
        first = threading.Thread(target=join, args=(0,), daemon=True)
        first.start()
        fail(1)
        join(1)
        first.join(DEADLINE)
        self.assertEqual(sizes, {0: 2, 1: 2})


class Addresses(unittest.TestCase):
    def own(self, by_name, way_out, store=""):
        with mock.patch.object(socket, "gethostbyname_ex", return_value=("here", [], by_name)):
            with mock.patch.object(_rendezvous, "_address_towards", return_value=way_out):
                with mock.patch.dict("os.environ", {"TUTTI_STORE": store}):
                    return _rendezvous._own_address()

    def test_debians_name_of_this_host_is_not_told_to_others(self):
        self.assertEqual(self.own(["127.0.1.1"], ["10.1.2.3"]), "10.1.2.3")
        self.assertEqual(self.own(["127.0.1.1", "10.1.2.4"], []), "10.1.2.4")

    def test_an_address_that_nobody_reaches_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "knows no address by which other hosts reach it"):
            self.own(["127.0.1.1"], [])


class Groups(unittest.TestCase):
    def test_one_that_closes_while_it_is_being_joined_leaves_nothing_open(self):
        dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
        group = tutti.torch.group_of()
        made = []

        def connect(*arguments):
            group.abort()
            made.append(_store.connect(*arguments))
            return made[0]

        with mock.patch("tutti.torch._group.connect", connect):
            with self.assertRaisesRegex(tutti.ClosedError, "is closed"):
                group.named_communicator()
        self.assertTrue(made[0][0].closed)
        with self.assertRaises(tutti.ClosedError):
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()

    def test_a_wrapped_model_is_read_where_there_is_no_group(self):
        dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
        wrapped = tutti.torch.DistributedDataParallel(torch.nn.Linear(2, 1))
        kept = pickle.dumps((wrapped, tutti.torch.HookState(wrapped.module)))
        dist.destroy_process_group()
        wrapped, state = pickle.loads(kept)
        self.assertIsNone(state.group)
        with torch.no_grad():
            self.assertEqual(wrapped.eval()(torch.ones(3, 2)).shape, (3, 1))
        with self.assertRaisesRegex((RuntimeError, ValueError), "init"):
            wrapped(torch.ones(3, 2))
        dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
        wrapped(torch.ones(3, 2)).sum().backward()
        self.assertEqual(wrapped.module.bias.grad.item(), 3)
        self.assertEqual(state.own("it"), "model 1/it")
        dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
