"""Trains a small transformer on a text with sharded parameters, gradients and optimizer state.
torch's fully_shard (FSDP2, torch 2.7 or newer) shards them over the ranks:

    tutti-run -np 2 python3 examples/fsdp2_text.py
    torchrun --nproc_per_node 2 examples/fsdp2_text.py

Every Debian system has the default text. The global batch is the same for any number of ranks that
divides it. On one rank nothing is sharded.
"""

import argparse
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import tutti.torch  # noqa: F401  registers the backend

CONTEXT = 64
WIDTH = 96
HEADS = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_hidden = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.questions = nn.Linear(WIDTH, 3 * WIDTH)
        self.answers = nn.Linear(WIDTH, WIDTH)
        self.hidden = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        heads = self.questions(self.before_attention(x)).unflatten(2, (3, HEADS, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.answers(seen.transpose(1, 2).flatten(2))
        return x + self.hidden(self.before_hidden(x))


class Transformer(nn.Module):
    """Predicts the next character from up to CONTEXT characters before it."""

    def __init__(self, characters, layers=2):
        super().__init__()
        self.meaning = nn.Embedding(characters, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, characters)

    def forward(self, text):
        x = self.meaning(text) + self.place(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def read(path):
    """Returns the number of each character, and how many different characters there are."""
    content = pathlib.Path(path).read_bytes()
    number = {byte: index for index, byte in enumerate(sorted(set(content)))}
    return torch.tensor([number[byte] for byte in content]), len(number)


def batch_of(text, step, count):
    """Returns `count` sequences and their next characters, the same ones on every rank."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - CONTEXT, (count,), generator=generator)
    places = starts[:, None] + torch.arange(CONTEXT + 1)
    return text[places[:, :-1]], text[places[:, 1:]]


def shard(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(parameter):
    """Returns the whole parameter, with the elements of all ranks."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--save", metavar="FILE", help="rank 0 writes the trained parameters there")
    parser.add_argument("--backend", default="tutti")
    settings = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(settings.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    if settings.batch % size != 0:
        parser.error(f"{size} ranks cannot share a batch of {settings.batch} equally")
    text, characters = read(settings.text)
    torch.manual_seed(1)
    model = Transformer(characters)
    if size > 1:
        shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=0.9)
    for step in range(settings.steps):
        inputs, targets = batch_of(text, step, settings.batch)
        guesses = model(inputs[rank::size])
        loss = nn.functional.cross_entropy(guesses.flatten(0, 1), targets[rank::size].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if step == 0:
            first = mean.item()
        if rank == 0 and (step % 25 == 24 or step + 1 == settings.steps):
            print(f"step {step + 1}: loss {mean.item():.4f}", flush=True)
    if settings.save:
        trained = {name: whole(parameter).detach() for name, parameter in model.named_parameters()}
        if rank == 0:
            torch.save(trained, settings.save)
    dist.destroy_process_group()
    return 0 if mean.item() < first else 1


if __name__ == "__main__":
    sys.exit(main())
