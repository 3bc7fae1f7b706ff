"""Runs the ranks of a peer as forked processes."""

import os
import signal
import sys
import tempfile


def run_ranks(count, deadline, run_rank):
    """Runs run_rank(rank, folder) in `count` processes that share a scratch folder. Each is ended
    after `deadline` seconds, and all are ended once one has failed. Returns 0 if none failed.
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
