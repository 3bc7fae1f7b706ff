#!/usr/bin/env python3
"""Measures a training step of torch's FSDP2 over Gloo, on a GPT-2 with the shape of examples/gpt2.
Every block is sharded by itself, the optimizer is AdamW, and gradients are clipped. It needs a
torch that has fully_shard (2.6 or later)."""

import argparse
import json
import sys
import time
from statistics import median

from ranks import run_ranks


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="sequences of all ranks together")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--deadline", type=int, default=300, help="seconds")
    return parser.parse_args()


def run_rank(rank, arguments, folder):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=arguments.ranks)
    width, heads, length = arguments.width, arguments.heads, arguments.length

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
            query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(arguments.vocabulary, width)
            self.places = nn.Parameter(torch.zeros(length, width))
            self.blocks = nn.ModuleList(Block() for _ in range(arguments.layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, text):
            x = self.tokens(text) + self.places
            for block in self.blocks:
                x = block(x)
            return functional.linear(self.norm(x), self.tokens.weight)

    model = Gpt2()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    mesh = init_device_mesh("cpu", (arguments.ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    text = torch.randint(arguments.vocabulary, (arguments.batch // arguments.ranks, length + 1))

    times = []
    for step in range(arguments.steps + 3):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        logits = model(text[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mine = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        if step >= 3:
            times.append(mine.item() * 1e6)
    if rank == 0:
        print(json.dumps({
            "program": "torch", "case": "fsdp", "way": "fsdp", "bytes": 4 * parameters,
            "dtype": "f32", "ranks": arguments.ranks, "transport": "tcp",
            "time_us": median(times), "min_us": min(times), "max_us": max(times),
            "repetitions": len(times), "iterations": 1, "wrong": 0,
            "extra": {"torch": torch.__version__}}), flush=True)


if __name__ == "__main__":
    sys.exit(run_ranks(parse_arguments(), run_rank))
