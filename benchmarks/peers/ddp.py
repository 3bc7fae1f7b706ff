#!/usr/bin/env python3
"""Measures DistributedDataParallel on a set of ready-made gradients, in several ways. The result is
the time of a backward pass with communication minus that of the module alone. Steps of all ways
take turns."""

import argparse
import collections
import json
import os
import random
import sys
import time
from statistics import median

from ranks import run_ranks

# The ways are:
# gloo, tutti: torch's DistributedDataParallel over that backend.
# nothing: the same over a group that exchanges nothing; it shows torch's own time.
# hook: torch's wrapper over tutti with tutti.torch.ddp_hook.
# own: tutti.torch.DistributedDataParallel.
# idle: torch's wrapper with a hook that exchanges nothing.
WAYS = ("gloo", "tutti", "hook", "own", "nothing", "idle")
# The exposed exchange of a way of torch is the time of its pass minus that of the way named here,
# turn by turn. With a thousand small tensors torch's own bookkeeping takes many times as long as
# the exchange. Tutti's own wrapper has other bookkeeping, so all of its time counts.
LESS = {"gloo": "nothing", "tutti": "nothing", "hook": "idle"}


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", required=True, help="CSV: index,name,numel,shape")
    parser.add_argument("--way", default="gloo",
                        help=f"one or more of {','.join(WAYS)}, separated by commas")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="number of steps of each way")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--fresh-gradients", action="store_true",
                        help="zero_grad(set_to_none=True), so every step has new ones; without, they "
                             "are set to zero where they lie")
    parser.add_argument("--calls", type=int, default=0,
                        help="also time this many blocking all_reduce calls of 4 bytes")
    parser.add_argument("--variant", default="shipped")
    parser.add_argument("--deadline", type=int, default=120, help="seconds")
    arguments = parser.parse_args()
    arguments.way = arguments.way.split(",")
    if not set(arguments.way) <= set(WAYS):
        parser.error(f"--way knows {', '.join(WAYS)}")
    return arguments


def read_counts(path):
    with open(path, encoding="ascii") as file:
        lines = file.read().splitlines()
    if lines[0] != "index,name,numel,shape":
        sys.exit(f"{path}: its first line is not index,name,numel,shape")
    return [int(line.split(",")[2]) for line in lines[1:]]


def make_idle_backend():
    """Registers the backend `nothing`, whose reductions complete immediately and change nothing."""
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    # This follows tutti.torch. From torch 2.14 on a Python class can be a Backend; before, it must
    # be a whole ProcessGroup. Old versions do not keep the Python half of a Work.
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    base = c10d.Backend if version >= (2, 14) else c10d.ProcessGroup
    kept = collections.deque(maxlen=100)

    class Over(c10d.Work):
        def __init__(self, outputs):
            super().__init__()
            kept.append(self)
            self.future = torch.futures.Future()
            self.future.set_result(outputs)

        def wait(self, timeout=None):
            return True

        def get_future(self):
            return self.future

        getFuture = get_future

    class Nothing(base):
        def __init__(self, rank, size):
            super().__init__(rank, size)
            self.numbers = rank, size

        def rank(self):
            return self.numbers[0]

        def size(self):
            return self.numbers[1]

        def name(self):
            return "nothing"

        getBackendName = _get_backend_name = name

        def allreduce(self, tensors, options=None):
            return Over(tensors)

        broadcast = allreduce

        def allgather(self, outputs, inputs, options=None):
            for output in outputs[0]:
                output.copy_(inputs[0])
            return Over(outputs)

        def _set_sequence_number_for_group(self):
            pass

    def create(options, settings=None):
        # Only C++ refers to the group, and C++ does not keep the group's Python half. So this list
        # keeps it.
        create.made.append(Nothing(options.group_rank, options.group_size))
        return create.made[-1]

    create.made = []
    devices = {"devices": ["cpu"]} if version >= (2, 0) else {}
    dist.Backend.register_backend("nothing", create, extended_api=True, **devices)


def idle_hook(torch, bucket):
    over = torch.futures.Future()
    over.set_result(bucket.buffer())
    return over


def exchange_of(times, way):
    """Returns the median exposed time of a way's exchange in microseconds, or None if the way has
    no such time."""
    idle = LESS.get(way)
    if not {way, idle} <= set(times):
        return None
    return median(took - less for took, less in zip(times[way], times[idle]))


class Case:
    """The measurement of one rank. Its models share the weights, which never change, and the
    gradients that their backward passes return."""

    def __init__(self, rank, arguments, folder):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.arguments, self.ranks = rank, arguments, arguments.ranks
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                world_size=self.ranks)
        self.counts = read_counts(arguments.set)
        self.gradients = [self.pattern(count, rank) for count in self.counts]
        self.weights = [torch.zeros(count) for count in self.counts]
        self.start = torch.zeros(1, requires_grad=True)
        self.groups = {"gloo": dist.group.WORLD}
        self.alone = self.model()
        self.wrapped = {way: self.wrap(way) for way in arguments.way}

    def pattern(self, count, of_rank):
        period = 8191
        once = ((self.torch.arange(period) * 7 + of_rank * 5) % 16 + 1).float()
        return once.repeat(-(-count // period))[:count].clone()

    def model(self):
        torch, gradients = self.torch, self.gradients

        class Ready(torch.autograd.Function):
            """A function whose backward returns a gradient that exists already."""

            @staticmethod
            def forward(context, chain, parameter, gradient):
                context.gradient = gradient
                return chain.clone()

            @staticmethod
            def backward(context, chain):
                return chain, context.gradient, None

        class Model(torch.nn.Module):
            def __init__(self, weights):
                super().__init__()
                self.weights = torch.nn.ParameterList(
                    torch.nn.Parameter(weight) for weight in weights)

            def forward(self, chain):
                for weight, gradient in zip(self.weights, gradients):
                    chain = Ready.apply(chain, weight, gradient)
                return chain

        return Model(self.weights)

    def wrap(self, way):
        if way == "nothing":
            make_idle_backend()
            self.groups[way] = self.dist.new_group(backend="nothing")
        elif way == "idle":
            self.groups[way] = self.dist.group.WORLD
        elif way != "gloo":
            import tutti.torch

            self.groups[way] = self.dist.new_group(backend="tutti")
        group = self.groups[way]
        if way == "own":
            return tutti.torch.DistributedDataParallel(self.model(), process_group=group)
        wrapped = self.torch.nn.parallel.DistributedDataParallel(
            self.model(), process_group=group, gradient_as_bucket_view=True)
        if way == "hook":
            tutti.torch.register_ddp_hook(wrapped)
        elif way == "idle":
            wrapped.register_comm_hook(self.torch, idle_hook)
        return wrapped

    def slowest(self, seconds):
        mine = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(mine, op=self.dist.ReduceOp.MAX)
        return mine.item() * 1e6

    def step(self, module):
        """Returns the time of a pass on the slowest rank, in microseconds. Then it clears the
        gradients, because backward adds to them."""
        self.dist.barrier()
        begin = time.perf_counter()
        module(self.start).sum().backward()
        seconds = time.perf_counter() - begin
        for weight in module.parameters():
            if self.arguments.fresh_gradients:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()
        return self.slowest(seconds)

    def steps(self):
        """Returns the times of the module alone and of each way, in another order in each turn,
        because a way changes the caches for the next one."""
        modules = {"alone": self.alone, **self.wrapped}
        times = {name: [] for name in modules}
        for turn in range(self.arguments.warmup + self.arguments.steps):
            for name in random.Random(turn).sample(list(modules), len(modules)):
                took = self.step(modules[name])
                if turn >= self.arguments.warmup:
                    times[name].append(took)
        return times

    def wrong(self, module):
        module(self.start).sum().backward()
        count = self.torch.zeros(1, dtype=self.torch.int64)
        for weight, numel in zip(module.parameters(), self.counts):
            mean = sum(self.pattern(numel, other) for other in range(self.ranks)) / self.ranks
            count += (weight.grad != mean).sum()
        self.dist.all_reduce(count)
        return count.item()

    def calls(self, way):
        """Returns the time of each blocking all_reduce of 4 bytes, in microseconds."""
        tensor, times = self.torch.zeros(1), []
        group = self.groups[way]
        for _ in range(self.arguments.calls):
            begin = time.perf_counter()
            self.dist.all_reduce(tensor, group=group)
            times.append((time.perf_counter() - begin) * 1e6)
        return times

    def row(self, case, way, times, less, bytes_, wrong, **extra):
        print(json.dumps({
            "program": "torch", "case": case, "way": way, "in_place": True,
            "set": os.path.splitext(os.path.basename(self.arguments.set))[0],
            "bytes": bytes_, "dtype": "f32", "op": "average", "ranks": self.ranks,
            "transport": "tcp" if way.startswith(("gloo", "ddp")) else "shm",
            "time_us": median(times) - less, "min_us": min(times) - less,
            "max_us": max(times) - less, "repetitions": len(times), "iterations": 1, "wrong": wrong,
            "extra": {"variant": self.arguments.variant, "torch": self.torch.__version__, **extra}}),
            flush=True)

    def measure(self):
        times = self.steps()
        wrong = {way: 0 if way in ("nothing", "idle") else self.wrong(module)
                 for way, module in self.wrapped.items()}
        asked = [way for way in self.wrapped if self.arguments.calls and way not in ("nothing", "idle")]
        calls = {way: self.calls(way) for way in asked}
        if self.rank != 0:
            return
        alone, bytes_ = median(times["alone"]), 4 * sum(self.counts)
        gloos = median(times["gloo"]) - alone if "gloo" in times else None
        gloos_exchange = exchange_of(times, "gloo")
        self.row("gradients", "alone", times["alone"], 0, bytes_, 0)
        for way, module_wrong in wrong.items():
            extra = {}
            if gloos:
                extra["of_gloo"] = (median(times[way]) - alone) / gloos
            exchange = exchange_of(times, way)
            if exchange is not None:
                extra["exchange_us"] = exchange
                if gloos_exchange:
                    extra["exchange_of_gloo"] = exchange / gloos_exchange
            name = "ddp" if way == "gloo" else way
            self.row("gradients", name, times[way], alone, bytes_, module_wrong, **extra)
        for way, took in calls.items():
            self.row("call", "gloo" if way == "gloo" else way, took, 0, 4, 0)


def run_rank(rank, arguments, folder):
    Case(rank, arguments, folder).measure()


if __name__ == "__main__":
    sys.exit(run_ranks(parse_arguments(), run_rank))
