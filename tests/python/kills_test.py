"""A rank is killed at a random moment: every survivor must raise an error that names it.

    kills_test.py [--torch] [--runs N] [--seed S]

Each run has three ranks under tutti-run, over shared memory or TCP. The victim dies during mixed
calls, or while the ranks are still connecting. Survivors must raise the error within 2 s of the
kill. Those that were connected continue without the victim.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 3
WITHIN = 2.0  # seconds
PATIENCE = 20.0  # seconds; a longer wait is a hang on any machine
IMPORTING = 90.0  # seconds; the import of torch takes longer on busy cores

BEGIN = """
import faulthandler, json, os, signal, sys, time
faulthandler.register(signal.SIGUSR1)
folder = sys.argv[1]
rank = int(os.environ["TUTTI_RANK"])

def tell(name, text):
    path = os.path.join(folder, f"{name}.{rank}")
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)

def hear(error):
    tell("heard", json.dumps({"at": at, "kind": type(error).__name__, "text": str(error),
                              "rank": getattr(error, "rank", None)}))

tell("pid", str(os.getpid()))
"""

NUMPY = BEGIN + """
import threading, numpy, tutti
comm = None
tell("joins", "")
try:
    comm = tutti.Communicator.create({"connect_timeout": 50})
    comm.barrier("all are here").wait()
    tell("ready", "")
    def callbacks():
        own = numpy.ones(1000)
        while True:
            comm.allreduce("of a thread", own).wait()
    threading.Thread(target=callbacks, daemon=True).start()
    small, large = numpy.ones(100), numpy.ones(200_000, "f4")
    for step in range(1_000_000):
        works = [comm.allreduce(f"gradient {i}", large[i * 40_000 : (i + 1) * 40_000]) for i in range(5)]
        works.append(comm.allgather("rows", small[: rank + step % 7]))
        works.append(comm.broadcast("weights", small, step % comm.size))
        comm.allreduce_value("loss", float(step))
        comm.allgather_object("note", {"step": step})
        for work in works:
            work.wait()
        if step % 10 == 0:
            comm.split(0).close()
except tutti.Error as error:
    at = time.monotonic()
    hear(error)
    if comm is not None:
        with comm.shrink(30) as left:
            tell("went_on", str(left.allreduce_value("v", 1.0, "sum")))
"""

TORCH = BEGIN + """
import torch, torch.distributed as dist, tutti.torch, tutti
tell("joins", "")
try:
    dist.init_process_group("tutti")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dist.barrier()
    tell("ready", "")
    for step in range(1_000_000):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        total = torch.ones(1)
        dist.all_reduce(total)
except Exception as error:
    at = time.monotonic()
    hear(error)
os._exit(0)  # at once: what comes after is not what is looked at
"""


def read(path):
    with open(path) as file:
        return file.read()


def await_files(folder, name, ranks, patience=PATIENCE):
    until = time.monotonic() + patience
    while True:
        found = [rank for rank in ranks if os.path.exists(os.path.join(folder, f"{name}.{rank}"))]
        if len(found) == len(ranks):
            return
        if time.monotonic() > until:
            raise AssertionError(f"{name}: only ranks {found} of {list(ranks)}")
        time.sleep(0.002)


def one_run(chance, program, with_torch):
    victim = chance.randrange(RANKS)
    backend = chance.choice(["shm", "tcp"])
    meeting = chance.random() < 0.25
    pause = chance.uniform(0, 0.4)
    what = f"rank {victim} over {backend}, {pause:.3f} s after " + (
        "it began" if meeting else "all had met"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TUTTI_BACKEND=backend, OMP_NUM_THREADS="1")
        with open(os.path.join(folder, "output"), "w") as output:
            launcher = subprocess.Popen(
                [os.environ["LAUNCHER"], "-np", str(RANKS), "--keep-going", sys.executable, "-c", program, folder],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            await_files(folder, "pid", [victim] if meeting else range(RANKS))
            if not meeting:
                await_files(folder, "joins", range(RANKS), IMPORTING)
                await_files(folder, "ready", range(RANKS))
            time.sleep(pause)
            pid = int(read(os.path.join(folder, f"pid.{victim}")))
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            survivors = [rank for rank in range(RANKS) if rank != victim]
            await_files(folder, "joins", survivors, IMPORTING)
            await_files(folder, "heard", survivors)
            latest = 0.0
            for rank in survivors:
                heard = json.loads(read(os.path.join(folder, f"heard.{rank}")))
                # A rank that was still importing at the time of the kill can detect it only later.
                began = os.stat(os.path.join(folder, f"joins.{rank}")).st_mtime
                late = heard["at"] - max(killed, began - time.time() + time.monotonic())
                latest = max(latest, late)
                named = heard["rank"] == victim or (with_torch and heard["rank"] is None)
                assert named and f"rank {victim}" in heard["text"], f"rank {rank} heard {heard}"
                assert late < WITHIN, f"rank {rank} heard {late:.3f} s later: {heard['text']}"
            if not meeting and not with_torch:
                await_files(folder, "went_on", survivors)
                for rank in survivors:
                    assert float(read(os.path.join(folder, f"went_on.{rank}"))) == RANKS - 1
            launcher.wait(PATIENCE)
            return what, latest
        except AssertionError as error:
            for name in os.listdir(folder):  # makes the ranks print their stacks
                if name.startswith("pid.") and launcher.poll() is None:
                    try:
                        os.kill(int(read(os.path.join(folder, name))), signal.SIGUSR1)
                    except ProcessLookupError:
                        pass
            time.sleep(0.5)
            raise AssertionError(f"{what}: {error}\n{read(os.path.join(folder, 'output'))}") from None
        finally:
            launcher.terminate()  # ends its ranks too
            launcher.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    times = []
    for run in range(arguments.runs):
        what, latest = one_run(chance, TORCH if arguments.torch else NUMPY, arguments.torch)
        times.append(latest)
        print(f"{run}: {what}: heard within {latest:.3f} s", flush=True)
    times.sort()
    print(
        f"{len(times)} runs: every survivor named the rank, within {times[-1]:.3f} s "
        f"(median {times[len(times) // 2]:.3f} s)"
    )


if __name__ == "__main__":
    main()
