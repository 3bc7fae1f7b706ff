#!/usr/bin/env python3
"""Measures the library and its peers and writes one table of ratios, as docs/benchmarking.md
describes. Called by ./dev bench, which builds what it needs first."""

import argparse
import fcntl
import fnmatch
import json
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from driver import compare, report  # noqa: E402
from driver.command import Command, Process  # noqa: E402
from driver.evaluate import Evaluation  # noqa: E402
from driver.figures import all_figures  # noqa: E402
from driver.network import Network  # noqa: E402
from driver.programs import Programs, Scope  # noqa: E402
from driver.rounds import Rounds, State, build_id_of  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Settings:
    pairs: int
    most_rounds: int
    minutes: float
    wait_s: int


FULL = Settings(pairs=21, most_rounds=40, minutes=58, wait_s=600)
QUICK = Settings(pairs=3, most_rounds=5, minutes=4.5, wait_s=20)


def commit_of(root):
    def git(*words):
        return subprocess.run(("git", "-C", str(root)) + words, capture_output=True, text=True,
                              check=False).stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
    return commit + ("-changed" if git("status", "--porcelain", "--untracked-files=no") else "")


def claim(folder):
    """Returns a locked file. The lock ensures that only one run measures in this checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"run.py: another run measures in {folder}: wait until it is done")
    return file


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--quick", action="store_true",
                        help="end within 5 minutes: all figures, but fewer sizes and rounds")
    parser.add_argument("--only", metavar="PATTERN", action="append",
                        help="only figures of these names (shell patterns; may be repeated)")
    parser.add_argument("--json", metavar="FILE", help="write a JSON list with a row for each figure")
    parser.add_argument("--compare", metavar="OLD.json",
                        help="fail if a ratio is worse than in these earlier results")
    parser.add_argument("--list", action="store_true", help="print the names of the figures and exit")
    parser.add_argument("--rounds", type=int, help="stop after this many rounds")
    parser.add_argument("--minutes", type=float, help="start no round that would end after this time")
    parser.add_argument("--wait", type=int, metavar="SECONDS",
                        help="wait at most this long in all for good cores (default 600; quick 20)")
    parser.add_argument("--fresh", action="store_true",
                        help="forget what an interrupted run of this commit measured")
    parser.add_argument("--torch", metavar="PYTHON", default="",
                        help="the interpreter whose torch is measured (default: the first with one; "
                             "beside training build/torch/environment's and Debian's)")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release",
                        help="the build folder (default build/release)")
    parser.add_argument("--save", metavar="NAME",
                        help="with --only: also write the table, under this name")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results",
                        help="folder for table and plot (default benchmarks/results)")
    return parser.parse_args()


def choose(figures, patterns):
    if not patterns:
        return figures
    chosen = [figure for figure in figures
              if any(fnmatch.fnmatchcase(figure.name, pattern) for pattern in patterns)]
    if not chosen:
        sys.exit(f"run.py: no figure is called {' or '.join(patterns)}; --list names them")
    return chosen


def main():
    arguments = parse_arguments()
    scope = Scope(arguments.quick)
    figures = choose(all_figures(scope), arguments.only)
    if arguments.list:
        for figure in figures:
            print(f"{figure.name:32} {figure.about}: {figure.target:g} ({figure.floor:g}) "
                  f"{figure.shown_unit}")
        return 0
    old = compare.load(arguments.compare) if arguments.compare else None

    settings = QUICK if arguments.quick else FULL
    settings.most_rounds = arguments.rounds or settings.most_rounds
    settings.pairs = min(settings.pairs, settings.most_rounds)
    settings.minutes = arguments.minutes or settings.minutes
    if arguments.wait is not None:
        settings.wait_s = arguments.wait
    measured = ROOT / "build" / "bench"
    lock = claim(measured)  # noqa: F841: held until the end
    network = Network(f"tutti-{zlib.crc32(str(ROOT).encode()):08x}")
    programs = Programs(ROOT, arguments.build, scope, network, arguments.torch)
    for peer, reason in programs.missing.items():
        print(f"left out: {peer}: {reason}")
    commit = commit_of(ROOT)
    mode = "quick" if arguments.quick else "full"
    state = State(measured / commit / mode, build_id_of(arguments.build))
    if arguments.fresh:
        state.clear()
    elif state.samples:
        print(f"going on with {len(state.samples)} samples of {commit}; --fresh begins anew")

    probe = Command("probe", "limit", "probe", "",
                    (Process((str(arguments.build / "benchmarks" / "tutti-limits"), "probe")),),
                    timeout_s=20)
    rounds = Rounds(programs.commands, figures, state, network, probe, settings,
                    lambda text: print(text, flush=True))
    # Any signal that stops the run must also end the programs and remove the namespaces.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()
    rounds.run(begin + settings.minutes * 60)

    evaluation = Evaluation(rounds.commands, state.samples, settings.pairs)
    rows = [evaluation.row(figure) for figure in figures]
    about = report.about(commit, mode, rounds, settings, time.monotonic() - begin)
    if not arguments.only:
        report.write(arguments.results, mode, about, rows, evaluation)
    elif arguments.save:
        report.write(arguments.results, arguments.save, about, rows)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    print(report.table(about, rows))
    return compare.check(old, rows) if old else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("run.py: stopped; run it again to go on")
