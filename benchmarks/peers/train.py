#!/usr/bin/env python3
"""Measures PyTorch's own training step, written as in its tutorials: ResNet-50 (v1.5) with SGD, or
a GPT-2 of 124M parameters with AdamW. Each rank has one core. Several ranks use
DistributedDataParallel over Gloo, each with batch norm of its own. Shapes, batches and kinds of
step are those of examples/resnet_synthetic.cc and gpt2.cc."""

import argparse
import json
import math
import sys
import time
from statistics import median

from ranks import run_ranks


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("resnet50", "gpt2"), required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4, help="images or sequences per rank")
    parser.add_argument("--length", type=int, default=512, help="tokens per sequence")
    parser.add_argument("--steps", type=int, default=3, help="number of timed steps")
    parser.add_argument("--warmup", type=int, default=1, help="number of steps before the timed ones")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--variant", default="shipped")
    parser.add_argument("--deadline", type=int, default=280, help="seconds")
    return parser.parse_args()


def resnet50(torch):
    nn = torch.nn

    def unit(inputs, outputs, kernel, stride=1):
        return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
                nn.BatchNorm2d(outputs)]

    class Bottleneck(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.body = nn.Sequential(
                *unit(inputs, width, 1), nn.ReLU(inplace=True),
                *unit(width, width, 3, stride), nn.ReLU(inplace=True), *unit(width, 4 * width, 1))
            fits = inputs == 4 * width and stride == 1
            self.shortcut = nn.Sequential(*([] if fits else unit(inputs, 4 * width, 1, stride)))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.body(x) + self.shortcut(x))

    layers = unit(3, 64, 7, 2) + [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, 64 << stage, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def gpt2(torch, length, vocabulary=50304, width=768, heads=12, depth=12):
    nn, functional = torch.nn, torch.nn.functional
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)

    def attend(query, key, value):
        if hasattr(functional, "scaled_dot_product_attention"):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch = x.shape[0]
            parts = self.qkv(self.norm1(x)).split(width, 2)
            query, key, value = (part.view(batch, length, heads, -1).transpose(1, 2) for part in parts)
            seen = attend(query, key, value).transpose(1, 2).reshape(batch, length, width)
            x = x + self.out(seen)
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places(torch.arange(length))
            return self.norm(self.blocks(x)) @ self.tokens.weight.t()

    return Model()


def run_rank(rank, arguments, folder):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    batch, length = arguments.batch, arguments.length
    if arguments.model == "resnet50":
        model = resnet50(torch)
        inputs, classes = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
        if arguments.channels_last:
            model = model.to(memory_format=torch.channels_last)
            inputs = inputs.contiguous(memory_format=torch.channels_last)
    else:
        model = gpt2(torch, length)
        inputs = torch.randint(256, (batch, length))
        classes = torch.randint(256, (batch * length,))
    if arguments.ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                             world_size=arguments.ranks)
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if arguments.model == "resnet50":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        options = {"lr": 3e-4, "weight_decay": 0.1}
        try:
            optimizer = torch.optim.AdamW(model.parameters(), fused=True, **options)
        except (TypeError, RuntimeError):  # an old torch has no fused AdamW on the CPU
            optimizer = torch.optim.AdamW(model.parameters(), **options)
    criterion = torch.nn.CrossEntropyLoss()
    times, losses = [], []
    for _ in range(arguments.warmup + arguments.steps):
        if arguments.ranks > 1:
            torch.distributed.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = criterion(model(inputs).flatten(0, -2), classes)
        loss.backward()
        if arguments.model == "gpt2":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append((time.perf_counter() - begin) * 1e6)
        losses.append(loss.item())
    times = times[arguments.warmup:]
    if rank == 0:
        samples = arguments.ranks * batch * (1 if arguments.model == "resnet50" else length)
        print(json.dumps({
            "program": "torch", "case": "training", "way": arguments.model, "in_place": True,
            "set": "", "bytes": 0, "dtype": "f32", "op": "average", "ranks": arguments.ranks,
            "transport": "tcp" if arguments.ranks > 1 else "", "time_us": median(times),
            "min_us": min(times), "max_us": max(times), "repetitions": len(times), "iterations": 1,
            "wrong": int(not all(map(math.isfinite, losses))),
            "extra": {"variant": arguments.variant, "torch": torch.__version__,
                      "per_second": samples / median(times) * 1e6}}), flush=True)


if __name__ == "__main__":
    sys.exit(run_ranks(parse_arguments(), run_rank))
