#!/usr/bin/env python3
"""Trains examples/mnist on two ranks in two network namespaces, joined by a link of 100 Mb/s, until
it recognizes 97 % of the test digits. Prints a table of the seconds that this took, as the median
of three runs. It must run as root.

    benchmarks/slow_link.py [--rate 100mbit] [--until 97] [--runs 3] [--build build/release]"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from driver.network import ADDRESSES, Network  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
METHODS = (
    ("synchronous, f32", ("--method", "synchronous")),
    ("synchronous, bf16", ("--method", "synchronous", "--wire", "bf16")),
    ("local SGD, H = 4", ("--method", "local-sgd", "--every", "4")),
    ("local SGD, H = 16", ("--method", "local-sgd", "--every", "16")),
    ("post-local, H = 16", ("--method", "post-local", "--every", "16")),
    ("DiLoCo, H = 16, AdamW inside", ("--method", "diloco", "--every", "16")),
    ("DiLoCo, H = 16, SGD inside", ("--method", "diloco", "--every", "16", "--optimizer", "sgd",
                                    "--momentum", "0")),
)
REACHED = re.compile(r"reached after (\d+) steps and ([0-9.]+) s")
ENDED = re.compile(r"test accuracy ([0-9.]+) %\s+after ([0-9.]+) s")


def train(options, network, words, seed, port):
    """Returns the seconds and steps to the goal, or None, and then the accuracy and seconds at the
    end."""
    ranks = []
    for rank, (name, address) in enumerate(zip(network.names, ADDRESSES)):
        environment = dict(os.environ, TUTTI_RANK=str(rank), TUTTI_SIZE="2",
                           TUTTI_STORE=f"tcp://{ADDRESSES[0]}:{port}", TUTTI_SERVE_STORE="1",
                           TUTTI_LOCAL_RANK="0", TUTTI_LOCAL_SIZE="1", TUTTI_INTERFACE=address,
                           TUTTI_BACKEND="tcp", TUTTI_SECRET=network.name)
        command = ["ip", "netns", "exec", name, options.build / "examples" / "mnist", "--quiet",
                   "--seed", seed, "--until", options.until, *words]
        ranks.append(subprocess.Popen(list(map(str, command)), env=environment, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        sys.exit("slow_link.py: " + "\n".join(texts))
    reached, ended = REACHED.search(texts[0]), ENDED.search(texts[0])
    return (float(reached[2]), int(reached[1])) if reached else None, ended[1], ended[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit", help="rate of the link each way, as tc writes it")
    parser.add_argument("--until", type=float, default=97)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    options = parser.parse_args()
    network = Network(f"tutti-slow-{os.getpid()}")
    if network.fault():
        sys.exit(f"slow_link.py: {network.fault()}")
    results = {name: [] for name, _ in METHODS}
    with network:
        network.shape(options.rate)
        for run in range(options.runs):  # in turn, so that all see the same machine
            for at, (name, words) in enumerate(METHODS):
                results[name].append(train(options, network, words, run + 1, 29600 + run * 16 + at))
                print(f"# run {run + 1}, {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    print(f"| method | seconds to {options.until:g} %, median of {options.runs} | steps | all runs |\n"
          "| --- | --- | --- | --- |")
    for name, runs in results.items():
        texts = "; ".join(f"{reached[0]:.1f} s" if reached else f"not reached: {accuracy} % in {seconds} s"
                          for reached, accuracy, seconds in runs)
        # A run that did not reach the goal counts as the slowest.
        middle = sorted((reached for reached, _, _ in runs),
                        key=lambda reached: reached[0] if reached else float("inf"))[len(runs) // 2]
        print(f"| {name} | {middle[0]:.1f} | {middle[1]} | {texts} |" if middle else
              f"| {name} | not reached | - | {texts} |")


if __name__ == "__main__":
    main()
