"""How communicators begin and end: stores, forks, the interpreter's exit, a killed rank."""

import gc
import os
import re
import signal
import tempfile
import threading
import time
import unittest
import weakref

import numpy
from support import DEADLINE, TableStore, on_threads, run_script

import tutti


# Ranks are forks of one process, and the program has its own store in a file.
FILE_STORE = """
import fcntl, json, os, sys
import tutti

class FileStore(tutti.Store):
    def __init__(self, path):
        self.path = path

    def change(self, function):
        with open(self.path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            values = json.loads(file.read() or "{}")
            result = function(values)
            file.truncate(0)
            json.dump(values, file)
            return result

    def get(self, key):
        found = self.change(lambda values: values.get(key))
        return None if found is None else bytes.fromhex(found)

    def compare_set(self, key, expected, desired):
        def change(values):
            if values.get(key) == (None if expected is None else expected.hex()):
                values[key] = desired.hex()
            return bytes.fromhex(values.get(key, ""))
        return self.change(change)

    def add(self, key, amount):
        def change(values):
            value = int(bytes.fromhex(values.get(key, "30"))) + amount
            values[key] = str(value).encode().hex()
            return value
        return self.change(change)

path, size = sys.argv[1], 3
rank = 0
for other in range(1, size):
    if os.fork() == 0:
        rank = other
        break
"""


class FullStore(TableStore):
    def set(self, key, value):
        with self.lock:
            self.values[key] = value

    def delete(self, key):
        with self.lock:
            self.values.pop(key, None)

    def delete_prefix(self, prefix):
        with self.lock:
            for key in [key for key in self.values if key.startswith(prefix)]:
                del self.values[key]


def meet(store, size=3):
    results, failures = [None] * size, []

    def run(rank):
        try:
            with tutti.Communicator.create({}, store, rank=rank, size=size) as comm:
                results[rank] = comm.allreduce_value("v", float(rank), "sum")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)
    if failures:
        raise failures[0]
    return results


class Stores(unittest.TestCase):
    def test_ranks_meet_in_a_store_of_the_program(self):
        for store in (TableStore(), FullStore()):
            with self.subTest(store=type(store).__name__):
                self.assertEqual(meet(store), [3.0] * 3)
                self.assertEqual(meet(store, 2), [1.0] * 2)  # other ranks use the store again

    def test_what_a_method_raises_is_in_the_error(self):
        class Broken(TableStore):
            def add(self, key, amount):
                raise ConnectionError("the database is down")

        with self.assertRaisesRegex(
            tutti.UnavailableError, "add.*ConnectionError: the database is down"
        ):
            tutti.Communicator.create({}, Broken(), rank=0, size=2)

        class Wrong(TableStore):
            def get(self, key):
                return 7

        with self.assertRaisesRegex(tutti.UnavailableError, "get.*TypeError"):
            tutti.Communicator.create({}, Wrong(), rank=0, size=2)
        with self.assertRaisesRegex(tutti.UnavailableError, "NotImplementedError"):
            tutti.Communicator.create({}, tutti.Store(), rank=0, size=2)

    def test_a_key_that_vanishes_while_it_is_changed(self):
        class Vanishing(TableStore):
            """Imitates another rank that deletes a key just after the first change of the key has
            read it."""

            def __init__(self):
                super().__init__()
                self.vanished = set()

            def compare_set(self, key, expected, desired):
                if expected is None or key in self.vanished:
                    return super().compare_set(key, expected, desired)
                self.vanished.add(key)
                with self.lock:
                    self.values.pop(key, None)
                return b""

        store = Vanishing()
        store.values["key"] = b"before"
        store.set("key", b"after")
        self.assertEqual(store.get("key"), b"after")
        self.assertEqual(meet(Vanishing()), [3.0] * 3)

    def test_a_store_that_changes_nothing_is_an_error(self):
        class Deaf(TableStore):
            def compare_set(self, key, expected, desired):
                return super().compare_set(key, expected, desired) if expected is None else b""

        store = Deaf()
        store.values["key"] = b"before"
        with self.assertRaisesRegex(RuntimeError, "left the value that it was to change 100 times"):
            store.set("key", b"value")
        with self.assertRaisesRegex(tutti.UnavailableError, "left the value.*100 times"):
            tutti.Communicator.create({"connect_timeout": 20}, Deaf(), rank=0, size=2)

    def test_a_store_lives_as_long_as_a_create_that_a_signal_interrupts(self):
        for error in (LookupError, KeyboardInterrupt):
            with self.subTest(error=error.__name__):
                self.interrupt(error)

    def interrupt(self, error):
        class Watched(TableStore):
            def __init__(self):
                super().__init__()
                self.asked = threading.Event()

            def get(self, key):
                self.asked.set()
                return super().get(key)

        def stop(number, frame):
            raise error("by a handler of the program's")

        store = Watched()
        asked, alive = store.asked, weakref.ref(store)
        before = signal.signal(signal.SIGUSR1, stop)
        try:
            ask = threading.Thread(
                target=lambda: (asked.wait(DEADLINE), os.kill(os.getpid(), signal.SIGUSR1))
            )
            ask.start()
            with self.assertRaisesRegex(error, "by a handler"):
                tutti.Communicator.create({"connect_timeout": 5}, store, rank=0, size=2)
        finally:
            ask.join()
            signal.signal(signal.SIGUSR1, before)
        del store
        gc.collect()
        end = time.monotonic() + DEADLINE
        while alive() is not None and time.monotonic() < end:
            time.sleep(0.01)
        self.assertIsNone(alive())

    def test_ranks_as_processes_meet_in_a_store_of_the_program(self):
        program = FILE_STORE + """
with tutti.Communicator.create({}, FileStore(path), rank=rank, size=size) as comm:
    assert comm.backend == "shm", comm.backend
    assert comm.allreduce_value("v", float(rank), "sum") == 3
if rank == 0:
    for _ in range(1, size):
        assert os.wait()[1] == 0
    print("met")
"""
        with tempfile.TemporaryDirectory() as folder:
            ran = run_script(program, arguments=[os.path.join(folder, "store")])
        self.assertEqual(ran.stdout, "met\n")

    def test_a_loss_is_heard_though_a_store_of_the_program_answers_nobody(self):
        program = FILE_STORE + """
import signal, threading, time
class Silent(FileStore):
    speaks = threading.Event()
    speaks.set()

    def change(self, function):
        self.speaks.wait()
        return super().change(function)

comm = tutti.Communicator.create({}, Silent(path), rank=rank, size=size)
comm.barrier().wait(30)
Silent.speaks.clear()
if rank == 2:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    comm.allreduce_value("v", 1.0)
    raise AssertionError("nobody was lost")
except tutti.PeerLostError as error:
    assert error.rank == 2, error
comm.close()
assert time.monotonic() - begin < 2.5, time.monotonic() - begin
Silent.speaks.set()
if rank == 0:
    codes = sorted(os.wait()[1] for _ in range(1, size))
    assert codes == [0, signal.SIGKILL], codes
    print("heard")
"""
        with tempfile.TemporaryDirectory() as folder:
            ran = run_script(program, arguments=[os.path.join(folder, "store")])
        self.assertEqual(ran.stdout, "heard\n")


class Ends(unittest.TestCase):
    def test_a_fork_is_refused_and_may_make_its_own(self):
        program = """
import os, numpy, tutti
comm = tutti.Communicator.create(store=tutti.MemoryStore(), rank=0, size=1)
work = comm.allreduce("a", numpy.zeros(3))
child = os.fork()
if child == 0:
    for call in (lambda: comm.allreduce("b", numpy.zeros(3)), lambda: comm.allreduce_value("v", 1.0),
                 lambda: comm.split(0)):
        try:
            call()
        except tutti.ClosedError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("a fork was served")
    comm.close()
    own = tutti.Communicator.create(store=tutti.MemoryStore(), rank=0, size=1)
    assert own.allreduce_value("v", 2.0) == 2.0
    del comm, work
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
work.wait(30)
assert comm.allreduce_value("v", 1.0) == 1.0
print("both")
"""
        self.assertEqual(run_script(program).stdout, "both\n")

    def test_exit_with_work_pending(self):
        program = """
import threading, numpy, tutti
store = tutti.MemoryStore()
comms = [None, None]
def make(rank):
    comms[rank] = tutti.Communicator.create(store=store, rank=rank, size=2)
threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
kept = comms[0].allreduce("kept", numpy.zeros(1000))
comms[0].allreduce("dropped", numpy.zeros(1000))
kept.add_done_callback(lambda work: print("never"))
def wait():
    try:
        comms[1].barrier("alone").wait()
    except (tutti.ClosedError, tutti.PeerLeftError):  # whichever communicator is closed first
        pass
waiting = threading.Thread(target=wait, daemon=True)
waiting.start()
print("ends", flush=True)
"""
        ran = run_script(program)
        self.assertEqual((ran.stdout, ran.stderr), ("ends\n", ""))

    def test_exit_tells_the_other_ranks_goodbye(self):
        program = """
import sys, tutti
comm = tutti.Communicator.create()
comm.barrier().wait(30)
if comm.rank == 1:
    sys.exit(0)
try:
    comm.barrier("alone").wait(30)
except tutti.PeerLeftError as error:
    assert error.rank == 1, error
    print("left")
"""
        self.assertIn("left", run_script(program, ranks=2).stdout)

    def test_an_exception_ends_the_ranks_with_it(self):
        # The process of rank 1 ends after that of rank 0, but must still be named as the cause.
        program = """
import atexit, os, time
if os.environ["TUTTI_RANK"] == "1":
    atexit.register(time.sleep, 1)
import tutti
comm = tutti.Communicator.create()
comm.barrier().wait(30)
if comm.rank == 1:
    raise ValueError("of the\\n program")
comm.barrier("alone").wait(30)
"""
        ran = run_script(program, ranks=2, check=False)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("ValueError: of the\n", ran.stderr)
        self.assertRegex(
            ran.stderr,
            r"PeerLeftError: .*rank 1 .*closed its Communicator because of an error "
            r"\(ValueError: of the  program\), so nothing that needs all ranks",
        )
        self.assertRegex(ran.stderr, r"tutti-run: rank 1 \(.*ended with code 1, the first of 2")

    def test_why_a_rank_closed_is_told_to_the_others(self):
        def leave(comm, reason):
            if reason is None:
                comm.close()
            elif isinstance(reason, (str, NoText)):
                comm.close(reason)
            else:
                try:
                    with comm:
                        raise reason
                except BaseException as error:  # catches SystemExit too
                    assert error is reason

        class NoWords(Exception):
            def __str__(self):
                raise TypeError("of __str__")

        class NoText:
            def __str__(self):
                raise TypeError("of __str__")

        reasons = {
            "KeyError: 'weight'": KeyError("weight"),
            "a text \udce4": "a \0text \udce4",
            "SystemExit: 3": SystemExit(3),
            "NoWords: <exception str() failed>": NoWords(),
            "NoText": NoText(),
            "KeyboardInterrupt": KeyboardInterrupt(),
        }
        nothing = [None, "", SystemExit(), SystemExit(0), GeneratorExit()]
        for expected, reason in [*reasons.items(), *((None, each) for each in nothing)]:
            heard = []

            def run(comm, reason=reason, heard=heard):
                if comm.rank == 1:
                    leave(comm, reason)
                else:
                    with self.assertRaises(tutti.PeerLeftError) as raised:
                        comm.barrier("alone").wait(DEADLINE)
                    heard.append(str(raised.exception))

            on_threads(2, run)
            if expected is None:
                self.assertIn("closed its Communicator, so nothing", heard[0])
            else:
                expected = expected.replace("\udce4", "?").replace("a text", "a  text")
                self.assertRegex(heard[0], rf"because of an error \(.*{re.escape(expected)}\), so")

    def test_a_killed_rank_is_named_and_the_survivors_go_on(self):
        program = """
import os, signal, numpy, tutti
comm = tutti.Communicator.create()
comm.barrier().wait(30)
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
array = numpy.ones(100000)
try:
    for step in range(1000000):
        comm.allreduce("gradient", array).wait(30)
    raise AssertionError("nobody was lost")
except tutti.PeerLostError as error:
    assert error.rank == 1 and "rank 1" in str(error), error
try:
    comm.allreduce("later", array)
    raise AssertionError("a broken communicator served")
except tutti.PeerLostError as error:
    assert error.rank == 1, error
with comm.shrink(30) as left:
    assert left.size == 2
    assert left.allreduce_value("v", 1.0, "sum") == 2
print("went on", flush=True)
"""
        launched = run_script(program, ranks=3, check=False)
        self.assertEqual(
            (launched.stdout + launched.stderr).count("went on"), 2,
            launched.stdout + launched.stderr,
        )

    def test_the_launcher_is_found(self):
        import tutti.run

        self.assertTrue(os.access(tutti.run.find() or "", os.X_OK))


class Installed(unittest.TestCase):
    def test_a_python_that_is_too_old(self):
        program = """
import sys
sys.version_info = (3, 9, 2, "final", 0)
try:
    import tutti
except ImportError as error:
    print(error)
"""
        said = run_script(program).stdout
        self.assertIn("tutti needs Python 3.11 or later (this is 3.9); run the program with", said)
        self.assertEqual(said.count("\n"), 1)

    def test_another_distribution_of_the_name_in_the_same_place(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.dirname(tutti.__file__), os.path.join(folder, "tutti"))
            program = "import sys; sys.path.insert(0, sys.argv[1]); import tutti"
            for ours in ("tutti_collectives-0.1.0.dist-info", "tuttifrutti-1.0.dist-info"):
                os.mkdir(os.path.join(folder, ours))
            self.assertEqual(run_script(program, arguments=[folder]).stderr, "")
            for other in ("tutti-3.2.dist-info", "tutti.egg-info"):
                os.mkdir(os.path.join(folder, other))
                said = run_script(program, arguments=[folder]).stderr
                stem = os.path.splitext(other)[0]
                self.assertIn(f"distribution of the name tutti is installed in {folder} ({stem})", said)
                self.assertEqual(said.count("\n"), 1)
                os.rmdir(os.path.join(folder, other))


class Many(unittest.TestCase):
    def test_ten_thousand_tensors(self):
        def rank(comm):
            arrays = [numpy.full(3, comm.rank, "f4") for _ in range(10000)]
            works = [comm.allreduce(f"t{i}", array, "sum") for i, array in enumerate(arrays)]
            for work in works:
                work.wait(2 * DEADLINE)
            self.assertTrue(all(array[2] == 1 for array in arrays))
            # Nobody keeps the Works of these calls.
            for i, array in enumerate(arrays):
                comm.allreduce(f"t{i}", array, "max")
            comm.barrier().wait(2 * DEADLINE)

        on_threads(2, rank)

    def test_descriptors_and_threads_stay_flat(self):
        def count():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        def rank(comm):
            with comm.split(0) as part:
                part.allreduce("a", numpy.ones(10)).wait(DEADLINE)

        for _ in range(3):
            on_threads(2, rank)
        before = count()
        for _ in range(20):
            on_threads(2, rank)
        after = count()
        self.assertLessEqual(after[0], before[0] + 2)
        self.assertLessEqual(after[1], before[1] + 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
