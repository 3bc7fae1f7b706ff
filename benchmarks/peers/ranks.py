"""Runs the ranks of a peer as forked processes."""

import os
import signal
import sys
import tempfile


def run_ranks(arguments, run_rank):
    """Runs run_rank(rank, arguments, folder) in `arguments.ranks` processes that share a scratch
    folder. Each has one core, which is its own if there are enough. Each is ended after
    `arguments.deadline` seconds, and all are ended once one has failed. Returns 0 if none failed,
    else an exit code. The ranks do not destroy their groups, because with Gloo that sometimes
    hangs. The processes end instead.
    """
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="peer_") as folder:
        children = []
        for rank in range(arguments.ranks):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(arguments.deadline)
                    os.sched_setaffinity(0, {cores[rank % len(cores)]})
                    run_rank(rank, arguments, folder)
                    code = 0
                except Exception as error:  # any error ends this rank, and its name is reported
                    print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        code = 0
        while children:
            child, status = os.wait()
            children.remove(child)
            if status != 0 and code == 0:
                code = 1
                for other in children:
                    os.kill(other, signal.SIGKILL)
    return code
