#!/usr/bin/env python3
"""Trains examples/mnist by every method and prints a table of accuracy and of bytes. It compares
the bytes that a rank sent per step with the method's formula (docs/training-methods.md).

    benchmarks/methods.py [--seeds 1,2,3] [--ranks 4] [--only NAME...] [--build build/release]"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = 750  # 6 epochs of 8,000 digits in batches of 64
PARAMETERS = 61706
TENSORS = 10

ACCURACY = re.compile(r"test accuracy ([0-9.]+) %")
BYTES = re.compile(r": (\d+) bytes sent per step")


def formula(name, every, ranks):
    """Returns the bytes that a rank sends per step, or None if the method has no formula."""
    reduced = 2 * (ranks - 1) / ranks  # bytes that a rank sends for each byte that is reduced
    whole = reduced * 4 * PARAMETERS
    rounds = STEPS // every / STEPS
    few = ranks - 1  # factor for small tensors, which each rank sends to all others
    tests = few * 24 * 5 / STEPS  # loss and test counts of all epochs but the last
    products = few * 8 * TENSORS * ranks * (ranks + 1) / 2
    half = STEPS // 2
    sent = {
        "local-sgd": whole * rounds,
        "local-sgd-averaged": 2 * whole * rounds,
        "local-sgd-zeroed": whole * rounds,
        "post-local": whole * (half + half // every) / STEPS,
        "slowmo": (whole + few * 16) * rounds,
        "diloco": whole * rounds,
        # There are two fragments. Every (every / 2) steps one is sent, 2 steps before it is due.
        "streaming-diloco": whole / 2 * ((STEPS + 2) // (every // 2)) / STEPS,
        "adasum": whole + products,
        "adasum-of-changes": (whole + products) * rounds,
        "growing-batch": None,  # depends on the passes that a step takes in the end
    }.get(name, whole)
    return None if sent is None else sent + tests


def train(options, words, seed):
    command = [options.build / "tools" / "tutti-run", "-np", str(options.ranks),
               options.build / "examples" / "mnist", "--quiet", "--seed", str(seed), *words]
    text = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True,
                          env=dict(os.environ, TUTTI_BACKEND=options.backend)).stdout
    return float(ACCURACY.search(text)[1]), int(BYTES.search(text)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="tcp", help="must count the bytes that it sends")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these methods")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    names = subprocess.run([str(options.build / "examples" / "mnist"), "--method", "list"],
                           check=True, capture_output=True, text=True).stdout.split()
    rows = [(name, 16, ()) for name in names]
    rows += [("local-sgd", 4, ()), ("local-sgd", 125, ()), ("diloco", 4, ()),
             ("diloco", 125, ())]
    rows += [(name, 16, ("--optimizer", "sgd", "--momentum", momentum))
             for name in ("diloco", "streaming-diloco") for momentum in ("0", "0.9")]
    if options.only:
        rows = [row for row in rows if row[0] in ("synchronous", *options.only)]

    print(f"| method | H | % of the test digits, seeds {options.seeds} | beside synchronous | "
          "bytes a step | formula |\n| --- | --- | --- | --- | --- | --- |")
    reference, wrong = None, 0
    for name, every, more in rows:
        results = [train(options, ["--method", name, "--every", str(every), *more], seed)
                   for seed in seeds]
        accuracies = [accuracy for accuracy, _ in results]
        mean = statistics.mean(accuracies)
        reference = mean if reference is None else reference
        sent, wanted = results[0][1], formula(name, every, options.ranks)
        # The tolerance covers negotiated steps, which send small gradients separately.
        if wanted is not None and abs(sent - wanted) > 0.005 * wanted:
            wrong += 1
        print(f"| {' '.join((name, *more))} | {every} | "
              f"{', '.join(f'{accuracy:.1f}' for accuracy in accuracies)} | {mean - reference:+.1f} | "
              f"{sent} | {'by its passes' if wanted is None else f'{wanted:.0f}'} |", flush=True)
    if wrong:
        sys.exit(f"methods.py: {wrong} rows sent other numbers of bytes than their formulas say")


if __name__ == "__main__":
    main()
