"""How programs end: a rank that raises, Works that nobody waited for, a torch that is too old."""

import time
import unittest

from support import run_script

BEGIN = """
import datetime, sys, time
import torch
import torch.distributed as dist
import tutti.torch
dist.init_process_group("tutti", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
"""


class Endings(unittest.TestCase):
    def test_a_rank_that_raises_is_named_by_the_others_at_once(self):
        # The process of rank 1 ends after that of rank 0, but must still be named as the cause.
        begin = """
import atexit, os, time
if os.environ["TUTTI_RANK"] == "1":
    atexit.register(time.sleep, 1)
"""
        program = begin + BEGIN + """
dist.barrier()
if rank == 1:
    raise ArithmeticError("rank 1 cannot go on")
try:
    dist.all_reduce(torch.ones(3))
except tutti.PeerError as error:
    print(f"error names rank {error.rank}: {error}", flush=True)
    sys.exit(4)
"""
        began = time.monotonic()
        ran = run_script(program, ranks=2, timeout=120, check=False)
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertRegex(ran.stderr, r"tutti-run: rank 1 \(.*ended with code 1, the first of 2")
        self.assertIn("ArithmeticError: rank 1 cannot go on", ran.stdout + ran.stderr)
        self.assertIn("error names rank 1", ran.stdout + ran.stderr)
        because = "because of an error (ArithmeticError: rank 1 cannot go on)"
        self.assertIn(because, ran.stdout + ran.stderr)
        self.assertLess(time.monotonic() - began, 50)  # sooner than the group's timeout

    def test_a_rank_that_is_done_is_missed_by_what_needs_it_alone(self):
        for backend in ("shm", "tcp"):
            begin = f"""
import os
os.environ["TUTTI_BACKEND"] = "{backend}"
"""
            program = begin + BEGIN + """
dist.barrier()
if rank == 2:
    dist.destroy_process_group()
    sys.exit(0)
try:
    dist.all_reduce(torch.ones(3))
except tutti.PeerLeftError as error:
    assert error.rank == 2, error
else:
    raise AssertionError("a sum without rank 2")
for step in range(8):
    mine, theirs = torch.full((1000,), step + rank), torch.zeros(1000, dtype=torch.int64)
    if rank == 0:
        dist.send(mine, 1)
        dist.recv(theirs, 1)
    else:
        dist.recv(theirs, 0)
        dist.send(mine, 0)
    assert torch.equal(theirs, torch.full((1000,), step + 1 - rank)), theirs
print("went on", flush=True)
"""
            ran = run_script(program, ranks=3, timeout=120)
            self.assertEqual(ran.stdout.count("went on"), 2, ran.stdout + ran.stderr)

    def test_work_that_nobody_waited_for_ends_with_the_program(self):
        for destroys in ("", "dist.destroy_process_group()"):
            program = BEGIN + f"""
works = [dist.all_reduce(torch.ones(10_000), async_op=True) for _ in range(3)]
works[0].get_future()
if rank == 0:
    dist.irecv(torch.ones(3), 1)  # which nobody sends
{destroys}
"""
            run_script(program, ranks=2, timeout=120)

    def test_what_stands_before_init_or_on_an_old_torch_is_told(self):
        ran = run_script("import tutti.torch; tutti.torch.group_of()", check=False, timeout=120)
        self.assertRegex(ran.stderr, "(?i)process group has not been initialized")
        old = "import torch; torch.__version__ = '1.12.1'; import tutti.torch"
        ran = run_script(old, check=False, timeout=120)
        self.assertIn("tutti.torch needs torch 1.13 or newer, and this is 1.12.1", ran.stderr)
        self.assertEqual(ran.returncode, 1)


if __name__ == "__main__":
    unittest.main()
