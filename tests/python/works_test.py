"""Works, errors and arrays in one process, whose threads are the ranks."""

import ast
import asyncio
import gc
import inspect
import os
import pathlib
import signal
import sys
import threading
import unittest
import weakref

import numpy
from support import DEADLINE, TableStore, on_threads, run_script

import tutti


def create_alone():
    return tutti.Communicator.create(store=tutti.MemoryStore(), rank=0, size=1)


class Works(unittest.TestCase):
    def test_wait_with_a_timeout_leaves_the_operation_alone(self):
        def rank(comm):
            if comm.rank == 0:
                mine = numpy.ones(3)
                work = comm.allreduce("late", mine, "sum")
                with self.assertRaisesRegex(tutti.TimedOutError, "late"):
                    work.wait(0.05)
                self.assertFalse(work.done())
                with self.assertRaisesRegex(tutti.InvalidArgumentError, "not done"):
                    work.exception()
                comm.barrier("go").wait(DEADLINE)
                self.assertIs(work.wait(DEADLINE), mine)
                self.assertTrue(work.done())
                self.assertIsNone(work.exception())
                self.assertEqual(mine[0], 2)
            else:
                comm.barrier("go").wait(DEADLINE)
                comm.allreduce("late", numpy.ones(3), "sum").wait(DEADLINE)

        on_threads(2, rank)

    def test_an_arena_that_is_not_over_in_time_stays_in_its_step(self):
        def rank(comm):
            with comm.arena({"weight": ("f32", (3,))}, "sum") as arena:
                weight = numpy.asarray(arena["weight"])
                for step in range(2):
                    weight[:] = step + 1
                    if comm.rank == 0:
                        arena.ready("weight")
                        with self.assertRaises(tutti.TimedOutError):
                            arena.wait(0.05)
                    comm.barrier("go").wait(DEADLINE)
                    if comm.rank == 1:
                        arena.ready("weight")
                    arena.wait(DEADLINE)
                    self.assertEqual(weight.tolist(), [2 * step + 2] * 3)
                with self.assertRaisesRegex(tutti.InvalidArgumentError, "number of seconds"):
                    arena.wait(-1)

        on_threads(2, rank)

    def test_callbacks_run_once_before_or_after_the_end(self):
        def rank(comm):
            called, told = [], threading.Event()

            def tell(work):
                called.append((work.done(), threading.current_thread() is here))
                told.set()

            here = threading.current_thread()
            work = comm.allreduce("a", numpy.ones(3))
            work.add_done_callback(tell)
            work.wait(DEADLINE)
            self.assertTrue(told.wait(DEADLINE))
            work.add_done_callback(tell)  # called immediately in this thread, as the work is done
            self.assertEqual([done for done, _ in called], [True, True])
            self.assertTrue(called[1][1])
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "callable"):
                work.add_done_callback(7)

        on_threads(2, rank)

    def test_a_callback_that_raises_is_told_and_harms_nothing(self):
        told = []
        before, sys.unraisablehook = sys.unraisablehook, lambda hook: told.append(hook.exc_value)
        try:
            def rank(comm):
                over = threading.Event()

                def fail(_):
                    over.set()
                    raise KeyError("of the program")

                comm.barrier("b").add_done_callback(fail)
                self.assertTrue(over.wait(DEADLINE))
                comm.barrier("c").wait(DEADLINE)

            on_threads(2, rank)
        finally:
            sys.unraisablehook = before
        self.assertEqual([type(error) for error in told], [KeyError, KeyError])

    def test_waiting_inside_a_callback_is_refused(self):
        def rank(comm):
            errors, over = [], threading.Event()

            def wait(_):
                try:
                    other.wait()
                except tutti.Error as error:
                    errors.append(error)
                over.set()

            first = comm.barrier("first")
            other = comm.barrier("other")
            if comm.rank == 0:
                first.add_done_callback(wait)
                comm.barrier("go").wait(DEADLINE)
                self.assertTrue(over.wait(DEADLINE))
            else:
                comm.barrier("go").wait(DEADLINE)
            other.wait(DEADLINE)
            return errors

        # If the operation has ended already, wait() does not wait and raises nothing.
        for error in on_threads(2, rank)[0]:
            self.assertIsInstance(error, tutti.CallbackError)

    def test_await(self):
        async def several(comm):
            arrays = [numpy.full(4, comm.rank + i, "f4") for i in range(10)]
            works = [comm.allreduce(f"a{i}", each, "sum") for i, each in enumerate(arrays)]

            async def wait_for(work):
                return await work

            results = await asyncio.gather(*map(wait_for, works))
            for i, result in enumerate(results):
                self.assertIs(result, arrays[i])
                self.assertEqual(result[0], 1 + 2 * i)
            self.assertIs(await works[0], arrays[0])  # a second await
            size = 2 + comm.rank
            with self.assertRaises(tutti.MismatchError):
                await comm.allreduce("mismatch", numpy.zeros(size))

        on_threads(2, lambda comm: asyncio.run(several(comm)))

    def test_the_loop_goes_on_while_a_work_is_awaited(self):
        async def first(comm):
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    if ticks == 20:
                        comm.barrier("ticked")
                    await asyncio.sleep(0.001)

            task = asyncio.get_running_loop().create_task(tick())
            await comm.barrier("late")
            task.cancel()
            return ticks

        def rank(comm):
            if comm.rank == 0:
                return asyncio.run(first(comm))
            comm.barrier("ticked").wait(DEADLINE)
            comm.barrier("late").wait(DEADLINE)
            return 0

        self.assertGreaterEqual(on_threads(2, rank)[0], 20)

    def test_a_task_that_is_cancelled_leaves_the_operation_alone(self):
        async def first(comm):
            work = comm.barrier("late")

            async def wait_for():
                await work

            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(wait_for(), 0.02)
            comm.barrier("go")
            await work

        def rank(comm):
            if comm.rank == 0:
                asyncio.run(first(comm))
            else:
                comm.barrier("go").wait(DEADLINE)
                comm.barrier("late").wait(DEADLINE)

        on_threads(2, rank)

    def test_keyboard_interrupt_while_waiting(self):
        store = tutti.MemoryStore()
        ended = threading.Event()

        def other():
            with tutti.Communicator.create(store=store, rank=1, size=2) as comm:
                comm.barrier("here").wait(DEADLINE)
                os.kill(os.getpid(), signal.SIGINT)
                ended.wait(2 * DEADLINE)
                comm.barrier("late").wait(DEADLINE)

        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        with tutti.Communicator.create(store=store, rank=0, size=2) as comm:
            work = comm.barrier("late")
            with self.assertRaises(KeyboardInterrupt):
                comm.barrier("here").wait(DEADLINE)
                work.wait(DEADLINE)
            self.assertFalse(work.done())
            ended.set()
            work.wait(DEADLINE)  # the operation continued
        thread.join(DEADLINE)
        self.assertFalse(thread.is_alive())

    def test_keyboard_interrupt_while_the_ranks_meet(self):
        class Watched(TableStore):
            asked = threading.Event()

            def get(self, key):
                self.asked.set()
                return super().get(key)

        store = Watched()
        interrupt = threading.Thread(
            target=lambda: (store.asked.wait(DEADLINE), os.kill(os.getpid(), signal.SIGINT))
        )
        interrupt.start()
        with self.assertRaises(KeyboardInterrupt):
            tutti.Communicator.create({}, store, rank=0, size=2)
        interrupt.join()
        # The other rank connects to the interrupted one, which then leaves.
        with tutti.Communicator.create({}, store, rank=1, size=2) as comm:
            with self.assertRaises(tutti.PeerLeftError):
                comm.barrier().wait(DEADLINE)

    def test_a_work_that_ends_while_its_waiter_waits_for_the_interpreter(self):
        # The main thread of rank 0 waits in time slices. At the end of a slice it gets the GIL
        # late, and rank 1 has come by then.
        ran = run_script(
            """
import sys, threading, time
import numpy, tutti

def hold_the_interpreter():
    time.sleep(0.03)  # until the main thread waits
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        pass

sys.setswitchinterval(5)
with tutti.Communicator.create() as comm:
    comm.barrier("go").wait()
    if comm.rank == 0:
        threading.Thread(target=hold_the_interpreter).start()
    else:
        time.sleep(0.3)
    work = comm.allreduce("late", values := numpy.ones(3), "sum")
    work.wait()
    comm.barrier("done").wait()
    print(values.tolist())
""",
            ranks=2,
        )
        self.assertEqual(ran.stdout.count("[2.0, 2.0, 2.0]"), 2, ran.stdout + ran.stderr)

    def test_several_threads_wait_for_one_work(self):
        def rank(comm):
            mine = numpy.ones(1000)
            if comm.rank == 1:
                comm.barrier("all wait").wait(DEADLINE)
            work = comm.alltoall("a", mine.reshape(2, 500), output=(out := numpy.zeros((2, 500))))
            results = []
            waiters = [
                threading.Thread(target=lambda: results.append(work.wait(DEADLINE)), daemon=True)
                for _ in range(4)
            ]
            for waiter in waiters:
                waiter.start()
            if comm.rank == 0:
                comm.barrier("all wait").wait(DEADLINE)
            for waiter in waiters:
                waiter.join(DEADLINE)
            self.assertEqual(len(results), 4)
            self.assertTrue(all(result is out for result in results) and out.sum() == 1000)

        on_threads(2, rank)


class Arrays(unittest.TestCase):
    def test_memory_of_a_pending_work_stays(self):
        def rank(comm):
            if comm.rank == 1:
                comm.barrier("go").wait(DEADLINE)
                comm.allreduce("held", numpy.ones(4), "sum").wait(DEADLINE)
                comm.allreduce("dropped", numpy.ones(4), "sum").wait(DEADLINE)
                comm.barrier("over").wait(DEADLINE)
                return
            held = bytearray(numpy.ones(4).tobytes())
            view = memoryview(held).cast("d")
            work = comm.allreduce("held", view, "sum")
            with self.assertRaises(BufferError):
                held.extend(b"more")

            class Watched(numpy.ndarray):
                pass

            dropped = numpy.ones(4).view(Watched)
            gone = weakref.ref(dropped)
            comm.allreduce("dropped", dropped, "sum")
            del dropped
            gc.collect()
            self.assertIsNotNone(gone())  # the operation keeps the array, without a Work
            comm.barrier("go").wait(DEADLINE)
            work.wait(DEADLINE)
            view.release()
            held.extend(b"more")
            self.assertEqual(numpy.frombuffer(held[:32], "f8")[3], 2)
            comm.barrier("over").wait(DEADLINE)
            # The thread that runs callbacks releases the array after the operation has ended.
            comm.close()
            self.assertIsNone(gone())

        on_threads(2, rank)

    def test_what_cannot_be_reduced_is_refused_in_one_line(self):
        wrong = {
            "not contiguous": numpy.zeros((4, 4))[:, ::2],
            r"strides are \[8,24\] bytes": numpy.zeros((2, 3)).T,
            r"strides are \[12\] bytes": numpy.zeros(4, [("a", "f8"), ("b", "f4")])["a"],
            "average cannot be applied to raw": numpy.zeros(2, complex),
            "average cannot be applied to raw.*": numpy.zeros(2, ">f8"),
            'format "O"': numpy.zeros(2, object),
            "9 dimensions": numpy.zeros((1,) * 9),
            "of type list": [1.0, 2.0],
            "of type NoneType|no array": None,
            "read-only": numpy.broadcast_to(numpy.zeros(1), (1,)),
            "read-only.*": b"bytes",
        }
        with create_alone() as comm:
            for text, value in wrong.items():
                with self.subTest(text=text):
                    with self.assertRaisesRegex(tutti.InvalidArgumentError, text) as caught:
                        comm.allreduce("named", value)
                    self.assertIn("named", str(caught.exception))
                    self.assertNotIn("\n", str(caught.exception))
            with self.assertRaisesRegex(tutti.MismatchError, "rank 0 gave an output of 2 rows"):
                comm.alltoall(
                    "small", numpy.zeros(3, "f4"), output=numpy.zeros(2, "f4")
                ).wait(DEADLINE)
            on_a_gpu = tutti.Memory(4096, (3,), "f32", device="cuda")
            on_the_cpu = numpy.zeros(3, "f4")
            for output, source, places in (
                (on_a_gpu, on_the_cpu, "cpu and the output on cuda:0"),
                (on_the_cpu, on_a_gpu, "cuda:0 and the output on cpu"),
            ):
                for call in (comm.alltoall, comm.gather, comm.scatter, comm.reduce_scatter):
                    with self.assertRaisesRegex(
                        tutti.InvalidArgumentError, f'^"gpu": the input lies on {places}; give both'
                    ):
                        call("gpu", source, output=output)
            two = [("k\0one", numpy.zeros(1)), ("k\0two", numpy.zeros(1))]
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "zero byte"):
                comm.grouped_allreduce("group", two)
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "at least one tensor"):
                comm.grouped_allreduce("group", [])
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "2 row counts.*1 ranks"):
                comm.alltoall("rows", numpy.zeros(3), [1, 2])
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "a whole number"):
                comm.alltoall("rows", numpy.zeros(3), [1.5])
            ones = numpy.ones(1, "f4")
            for bad in (True, 0.0, "0", numpy.bool_(False), 1 << 70):
                for call in (
                    lambda: comm.broadcast("bad", ones, bad),
                    lambda: comm.allreduce("bad", ones, priority=bad),
                    lambda: comm.grouped_allreduce("bad", {"one": ones}, priority=bad),
                    lambda: comm.alltoall("bad", ones, [bad]),
                    lambda: comm.broadcast_blocking("bad", ones, bad),
                    lambda: comm.sendrecv_blocking("bad", ones, bad, "bad", ones.copy(), 0),
                    lambda: comm.split(bad),
                    lambda: comm.allocate(bad),
                    lambda: tutti.Communicator.create({}, tutti.MemoryStore(), rank=0, size=bad),
                    lambda: tutti.Memory(0, (1,), "f32", index=bad),
                    lambda: tutti.Memory(0, (bad,), "f32"),
                ):
                    with self.assertRaisesRegex(tutti.InvalidArgumentError, "a whole number"):
                        call()
            comm.broadcast("good", ones, numpy.int32(0)).wait(DEADLINE)
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "not a dtype"):
                tutti.Memory(0, (1,), "f31")
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "extent of -1"):
                tutti.Memory(0, (-1,), "f32")
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "has no memory"):
                comm.allreduce("nowhere", tutti.Memory(0, (1,), "f32"))
            # A row-major array with one row or column is dense, whatever its strides are.
            comm.allreduce("row", numpy.zeros((4, 1)).T).wait(DEADLINE)
            comm.allgather("read only is enough", b"bytes").wait(DEADLINE)

    def test_what_a_tensor_exports(self):
        with create_alone() as comm:
            tensor = comm.allgather("t", numpy.arange(6, dtype="i2").reshape(2, 3)).wait(DEADLINE)
            self.assertEqual((tensor.shape, tensor.dtype, tensor.nbytes), ((2, 3), "i16", 12))
            self.assertEqual(len(tensor), 2)
            self.assertIn("i16[2,3]", repr(tensor))
            view = memoryview(tensor)
            self.assertEqual((view.format, view.shape, view.readonly), ("h", (2, 3), False))
            halves = numpy.arange(3, dtype="u2")
            memory = tutti.Memory(halves.ctypes.data, (3,), "bf16", owner=halves)
            tensor = comm.allgather("bf16", memory).wait(DEADLINE)
            self.assertEqual(tensor.dtype, "bf16")
            with self.assertRaisesRegex(BufferError, "bf16"):
                memoryview(tensor)
            self.assertEqual(tensor.tobytes(), halves.tobytes())
            number = comm.allgather("rows", numpy.arange(3)).wait(DEADLINE)
        self.assertEqual(numpy.asarray(number).tolist(), [0, 1, 2])  # usable after close()


class Types(unittest.TestCase):
    """Every name in tutti/__init__.pyi exists with these parameters."""

    def setUp(self):
        file = pathlib.Path(tutti.__file__).with_name("__init__.pyi")
        self.said = ast.parse(file.read_text())

    def test_every_public_name(self):
        said = {node.name for node in self.said.body if isinstance(node, ast.ClassDef)}
        self.assertEqual(said, set(tutti.__all__))

    def test_every_member_and_parameter(self):
        described = set()
        for kind in self.said.body:
            if not isinstance(kind, ast.ClassDef) or kind.name in ("Tensor", "Statistics"):
                continue
            there = getattr(tutti, kind.name)
            for node in kind.body:
                if isinstance(node, ast.FunctionDef):
                    self.assertTrue(hasattr(there, node.name), (kind.name, node.name))
                    described.add((kind.name, node.name))
                    function = getattr(there, node.name)
                    if kind.name not in ("Communicator", "Arena", "Store"):
                        continue
                    wanted = [each.arg for each in node.args.args + node.args.kwonlyargs]
                    got = list(inspect.signature(function).parameters)
                    self.assertEqual(got, wanted, (kind.name, node.name))
        for name in ("Communicator", "Arena", "Store"):
            for member, value in vars(getattr(tutti, name)).items():
                if callable(value) and not member.startswith("_"):
                    self.assertIn((name, member), described)


class Errors(unittest.TestCase):
    def test_a_class_for_each_code(self):
        kinds = [
            kind
            for kind in vars(tutti).values()
            if isinstance(kind, type) and issubclass(kind, tutti.Error) and kind.code > 0
        ]
        self.assertEqual(sorted(kind.code for kind in kinds), list(range(1, 17)))
        self.assertTrue(issubclass(tutti.InvalidArgumentError, ValueError))
        self.assertTrue(issubclass(tutti.TimedOutError, TimeoutError))
        self.assertTrue(issubclass(tutti.OutOfMemoryError, MemoryError))
        for kind in kinds:
            self.assertEqual(str(kind("one line")), "one line")

    def test_a_mismatch_is_the_same_everywhere_and_harms_nothing(self):
        def rank(comm):
            size = 2 + (comm.rank == 2)
            with self.assertRaises(tutti.MismatchError) as caught:
                comm.allreduce("w", numpy.zeros(size, "f4")).wait(DEADLINE)
            error = caught.exception
            self.assertEqual((error.code, error.rank, error.tensor), (2, 2, "w"))
            mine = numpy.ones(2)
            comm.allreduce("w", mine, "sum").wait(DEADLINE)
            self.assertEqual(mine[0], 3)
            return str(error)

        texts = on_threads(3, rank)
        self.assertEqual(texts, [texts[0]] * 3)
        self.assertIn("f32[3]", texts[0])

    def test_one_name_twice(self):
        def rank(comm):
            if comm.rank == 0:
                work = comm.barrier("x")
                with self.assertRaisesRegex(tutti.DuplicateNameError, "x"):
                    comm.barrier("x")
                comm.barrier("asked").wait(DEADLINE)
                work.wait(DEADLINE)
            else:
                comm.barrier("asked").wait(DEADLINE)
                comm.barrier("x").wait(DEADLINE)

        on_threads(2, rank)

    def test_wrong_words(self):
        with create_alone() as comm:
            mine = numpy.zeros(1)
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "unknown op 'mean'.*average"):
                comm.allreduce("a", mine, "mean")
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "unknown wire type 'f8'"):
                comm.allreduce("a", mine, wire="f8")
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "must be a str"):
                comm.allreduce(7, mine)
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "does not exist"):
                comm.broadcast("a", mine, 3)
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "may_be_left_out"):
                comm.arena({"a": ("f32", (1,))}, may_be_left_out=["b"])
        with self.assertRaisesRegex(tutti.InvalidArgumentError, "TUTTI_FUSION_BYTES"):
            tutti.Communicator.create({"fusion_bytes": "64MBB"})
        with self.assertRaisesRegex(tutti.InvalidArgumentError, "rank and size"):
            tutti.Communicator.create(store=tutti.MemoryStore())
        with self.assertRaisesRegex(tutti.InvalidArgumentError, "only with a store"):
            tutti.Communicator.create(rank=0, size=1)
        with self.assertRaisesRegex(tutti.InvalidArgumentError, "not a tutti.Store"):
            tutti.Communicator.create(store={}, rank=0, size=1)
        for kind in (tutti.Work, tutti.Tensor, tutti.Declared):
            with self.assertRaisesRegex(tutti.InvalidArgumentError, "made by"):
                kind()

    def test_use_after_close(self):
        comm = create_alone()
        declared = comm.declare("d", numpy.zeros(1))
        comm.close()
        comm.close()
        comm.abort()
        self.assertTrue(comm.closed)
        for call in (
            lambda: comm.allreduce("a", numpy.zeros(1)),
            lambda: comm.allreduce(declared, numpy.zeros(1)),
            lambda: comm.allreduce_value("v", 1.0),
            lambda: comm.barrier_blocking(),
            lambda: comm.split(0),
        ):
            with self.assertRaises(tutti.ClosedError):
                call()
        self.assertEqual((comm.rank, comm.size), (0, 1))

    def test_closing_ends_a_wait_in_another_thread(self):
        def rank(comm):
            if comm.rank == 1:
                with self.assertRaises(tutti.PeerLeftError) as caught:
                    comm.barrier("never there").wait(DEADLINE)
                self.assertEqual(caught.exception.rank, 0)
                return
            work = comm.barrier("never here")
            threading.Timer(0.05, comm.close).start()
            with self.assertRaises(tutti.ClosedError):
                work.wait(DEADLINE)

        on_threads(2, rank)

    def test_handles_outlive_their_communicator(self):
        comm = create_alone()
        work = comm.allgather("a", numpy.arange(3))
        arena = comm.arena({"w": ("f32", (5,))})
        weight = arena["w"]
        del comm, arena
        gc.collect()
        tensor = work.wait(DEADLINE)
        del work
        gc.collect()
        self.assertEqual(numpy.asarray(tensor).tolist(), [0, 1, 2])
        numpy.asarray(weight)[:] = 1


if __name__ == "__main__":
    unittest.main(verbosity=2)
