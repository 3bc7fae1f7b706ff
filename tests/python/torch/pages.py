"""Runs the Python blocks of a page one after another, as one program."""

import importlib.util
import pathlib
import re

import torch
import torch.distributed as dist

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = ("python.md", "pytorch.md")


def blocks(page):
    """Yields (first line, text) of each block marked as Python. Blocks that need JAX are left out
    if it is missing."""
    text = (ROOT / "docs" / page).read_text()
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if "tutti.jax" in match[1] and importlib.util.find_spec("jax") is None:
            continue
        yield text.count("\n", 0, match.start()) + 2, match[1]


def show(page):
    names = {"torch": torch}
    found = list(blocks(page))
    assert found, f"{page} shows no Python"
    for line, text in found:
        names["model"] = torch.nn.Linear(3, 2)
        if dist.is_initialized():
            names["ddp"] = torch.nn.parallel.DistributedDataParallel(names["model"])
        # Keeps the line numbers of the page, for error messages.
        exec(compile("\n" * (line - 1) + text, f"docs/{page}", "exec"), names)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    for page in PAGES:
        show(page)
        print(f"passed: {page}", flush=True)
