#!/usr/bin/env python3
"""Measures with PyTorch on this GPU what `./dev gpu-test fast` measures, with the same shapes,
types and optimizers. Each line is the median of three rounds.

    gpu.py [--compile] [--device cuda|cpu] [--small]

--compile: the two models through torch.compile. --small: shapes that a CPU does in seconds, to test this program."""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

ROUNDS = 3


class Block(nn.Module):
    """A bottleneck of ResNet v1.5: the stride is in the 3x3 convolution."""

    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity()
        if channels != out or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, images):
        return functional.relu(self.body(images) + self.shortcut(images))


def resnet(width, blocks, classes):
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Block(channels, width << stage, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def attend(query, key, value):
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value


class Decoder(nn.Module):
    """One layer of GPT-2."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, rows):
        batch, length, width = rows.shape
        parts = self.packed(self.first(rows)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        rows = rows + self.out(attend(query, key, value).transpose(1, 2).reshape(batch, length, width))
        return rows + self.down(functional.gelu(self.up(self.second(rows)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocabulary, length, width, heads, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Decoder(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        rows = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        return self.norm(self.layers(rows)) @ self.tokens.weight.t()


class Machine:
    def __init__(self, device):
        self.device = device

    def seconds(self, work, repeats):
        """Returns the time of one call: the median over the rounds of the mean of `repeats`
        calls."""
        for _ in range(3):
            work()
        rounds = []
        for _ in range(ROUNDS):
            self.wait()
            begin = time.perf_counter()
            for _ in range(repeats):
                work()
            self.wait()
            rounds.append((time.perf_counter() - begin) / repeats)
        return statistics.median(rounds)

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


def train(machine, model, optimizer, inputs, labels, compiled, repeats):
    run = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(machine.device, dtype=torch.bfloat16):
            outputs = run(inputs)
        functional.cross_entropy(outputs.float().flatten(0, -2), labels.flatten()).backward()
        optimizer.step()

    return machine.seconds(step, repeats)


def adamw(machine, parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1,
                             **({"fused": True} if machine.device == "cuda" else {}))


def measure_pieces(machine, small):
    count = 1 << (16 if small else 28)
    source = torch.randn(count, device=machine.device)
    target = torch.empty_like(source)
    seconds = machine.seconds(lambda: target.copy_(source), 10)
    print(f"copy: {8 * count / seconds * 1e-9:.1f} GB/s, read and written", flush=True)
    size = 128 if small else 8192
    a, b = (torch.randn(size, size, device=machine.device, dtype=torch.bfloat16) for _ in range(2))
    seconds = machine.seconds(lambda: a @ b, 10)
    print(f"product of {size} x {size} in bf16: {2 * size ** 3 / seconds * 1e-12:.4g} TFLOP/s", flush=True)
    count = 1 << (12 if small else 27)
    parameter = nn.Parameter(torch.randn(count, device=machine.device))
    parameter.grad = torch.randn_like(parameter)
    seconds = machine.seconds(adamw(machine, [parameter]).step, 10)
    print(f"AdamW of {count} parameters: {28 * count / seconds * 1e-9:.1f} GB/s of 28 bytes each", flush=True)


def measure_models(machine, small, compiled):
    how = "compiled" if compiled else "eager"
    batch, image, width, blocks, classes = (4, 32, 8, [1, 1], 4) if small else (64, 224, 64, [3, 4, 6, 3], 1000)
    model = resnet(width, blocks, classes).to(machine.device, memory_format=torch.channels_last)
    images = torch.randn(batch, 3, image, image, device=machine.device).to(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=machine.device)
    seconds = train(machine, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), images, labels,
                    compiled, 2 if small else 20)
    print(f"resnet in bf16, {how}, batch {batch}: {batch / seconds:.1f} images/s", flush=True)
    batch, length, shape = (2, 16, (256, 16, 64, 4, 2)) if small else (16, 1024, (50304, 1024, 768, 12, 12))
    model = Gpt2(*shape).to(machine.device)
    tokens = torch.randint(256, (batch, length), device=machine.device)
    seconds = train(machine, model, adamw(machine, model.parameters()), tokens, tokens.roll(-1, 1), compiled,
                    2 if small else 10)
    print(f"gpt2 in bf16, {how}, batch {batch} x {length}: {batch * length / seconds:.0f} tokens/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    machine = Machine(options.device)
    where = torch.cuda.get_device_name() if options.device == "cuda" else "the CPU"
    print(f"PyTorch {torch.__version__} on {where}", flush=True)
    if not options.compile:
        measure_pieces(machine, options.small)
    measure_models(machine, options.small, options.compile)


if __name__ == "__main__":
    main()
