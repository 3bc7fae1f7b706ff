"""Ranks of a benchmark's peer, which are processes that this one forks."""

import os
import signal
import sys
import tempfile


def run_ranks(count, deadline, run_rank):
    """Runs run_rank(rank, folder) in `count` processes that share a scratch folder; each is ended
    after `deadline` seconds, and all are once one has failed. Returns the exit code: 0 if none did.
    """
    with tempfile.TemporaryDirectory(prefix="peer_") as folder:
        children = []
        for rank in range(count):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(deadline)
                    run_rank(rank, folder)
                    code = 0
                except Exception as error:  # whatever it is, this rank ends with its name
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
