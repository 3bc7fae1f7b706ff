#!/usr/bin/env python3
"""DistributedDataParallel of torch over Gloo, on a set of ready-made gradients: the time of a
backward pass with communication less that of the same pass without."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from statistics import median


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", required=True, help="CSV: index,name,numel,shape")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="of each kind")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--variant", default="shipped")
    parser.add_argument("--deadline", type=int, default=120, help="seconds")
    return parser.parse_args()


def read_counts(path):
    with open(path, encoding="ascii") as file:
        lines = file.read().splitlines()
    if lines[0] != "index,name,numel,shape":
        sys.exit(f"{path}: its first line is not index,name,numel,shape")
    return [int(line.split(",")[2]) for line in lines[1:]]


def bind_to_core(rank):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def run_rank(rank, arguments, folder):
    bind_to_core(rank)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    ranks = arguments.ranks
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=ranks)
    counts = read_counts(arguments.set)

    def pattern(count, of_rank):
        period = 8191
        once = ((torch.arange(period) * 7 + of_rank * 5) % 16 + 1).float()
        return once.repeat(-(-count // period))[:count].clone()

    class Ready(torch.autograd.Function):
        """Its backward hands over a gradient that is there already."""

        @staticmethod
        def forward(context, chain, parameter, gradient):
            context.gradient = gradient
            return chain.clone()

        @staticmethod
        def backward(context, chain):
            return chain, context.gradient, None

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(
                torch.nn.Parameter(torch.zeros(count)) for count in counts)
            self.gradients = [pattern(count, rank) for count in counts]

        def forward(self, chain):
            for weight, gradient in zip(self.weights, self.gradients):
                chain = Ready.apply(chain, weight, gradient)
            return chain

    model = Model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    start = torch.zeros(1, requires_grad=True)

    def clear():
        for weight in model.weights:
            if weight.grad is not None:
                weight.grad.zero_()

    def timed(communicate):
        dist.barrier()
        begin = time.perf_counter()
        if communicate:
            wrapped(start).sum().backward()
        else:
            with wrapped.no_sync():
                wrapped(start).sum().backward()
        mine = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        clear()  # gradients accumulate into the buckets; they must not grow
        return mine.item() * 1e6

    for _ in range(arguments.warmup):
        timed(True), timed(False)
    steps, alone = [], []
    for _ in range(arguments.steps):
        steps.append(timed(True))
        alone.append(timed(False))

    wrapped(start).sum().backward()
    wrong = torch.zeros(1, dtype=torch.int64)
    for weight, count in zip(model.weights, counts):
        mean = sum(pattern(count, other) for other in range(ranks)) / ranks
        wrong += (weight.grad != mean).sum()
    dist.all_reduce(wrong)

    if rank == 0:
        for way, times, less in (("ddp_step", steps, 0), ("ddp_backward", alone, 0),
                                 ("ddp", steps, median(alone))):
            print(json.dumps({
                "program": "torch", "case": "gradients", "way": way, "in_place": True,
                "set": os.path.splitext(os.path.basename(arguments.set))[0],
                "bytes": 4 * sum(counts), "dtype": "f32", "op": "average", "ranks": ranks,
                "transport": "tcp", "time_us": median(times) - less, "min_us": min(times) - less,
                "max_us": max(times) - less, "repetitions": len(times), "iterations": 1,
                "wrong": wrong.item(), "extra": {"variant": arguments.variant}}), flush=True)
    # No group is destroyed: with Gloo that hangs now and then. The process ends instead.


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="peer_ddp_") as folder:
        children = []
        for rank in range(arguments.ranks):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(arguments.deadline)
                    run_rank(rank, arguments, folder)
                    code = 0
                except Exception as error:  # whatever it is, this rank ends with its name
                    print(f"rank {rank}: {error}", file=sys.stderr)
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


if __name__ == "__main__":
    sys.exit(main())
