"""Runs torch's own tests of process groups, which every torch carries, over one backend:

    suite.py run --backend tutti --results FILE     continues after the results in FILE; fails if a
                                                    test failed that is not in known_failures.csv
    suite.py table OURS THEIRS                      the result of each test, in Markdown

The tests are those of torch.testing._internal.distributed.distributed_test, in the torch that runs
this script. They know gloo, and some check whether they run over it. A test therefore first runs as
for gloo, with the backend's groups in place of gloo's. If it fails, it runs once more under the
backend's own name. Ranks are forked, because a new interpreter for each would take an hour.
"""

import argparse
import collections
import csv
import importlib.metadata
import json
import logging
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest

TIMEOUT = 90  # seconds, per test


def module_of(backend, ranks, folder):
    """Returns torch's module of tests, set up as for gloo but with groups of the backend."""
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(ranks),
        TEMP_DIR=folder,
        INIT_METHOD=f"file://{folder}/meeting",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(TIMEOUT),
        OMP_NUM_THREADS="1",
    )
    for name in ("test_dir", "init_dir"):  # torch's own driver makes these folders
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    from torch.distributed import distributed_c10d
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    for name in common_distributed.TIMEOUT_OVERRIDE:
        common_distributed.TIMEOUT_OVERRIDE[name] = 2 * TIMEOUT
    if backend != "gloo":
        import tutti.torch

        assert tutti.torch
        for feature in ("ddp", "subgroup", "plugin"):
            common_distributed.DistTestCases.backend_feature[feature] |= {backend}
        make = distributed_c10d._new_process_group_helper

        def make_with(size, rank, ranks, wanted, *rest, **more):
            return make(size, rank, ranks, backend if wanted == "gloo" else wanted, *rest, **more)

        distributed_c10d._new_process_group_helper = make_with
    return distributed_test


def outcome_of(suite, name, module, backend):
    outcomes = []
    for shown in dict.fromkeys(("gloo", backend)):
        module.BACKEND = os.environ["BACKEND"] = shown
        outcome = Outcome()
        suite(name).run(outcome)
        outcomes.append(outcome)
        if outcome.word != "failed":
            return outcome
    return outcomes[0]


def suite_of(module):
    import torch

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


class Outcome(unittest.TestResult):
    """The result of one test."""

    def __init__(self):
        super().__init__()
        self.word, self.reason = "passed", ""

    def addSkip(self, test, reason):
        self.word, self.reason = "skipped", reason

    def addError(self, test, error):
        self.word = "failed"
        self.reason = last_line(self._exc_info_to_string(error, test))

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addError(test, error)


def last_line(text):
    """Returns the error line of the first rank that failed, or the last line if there is none."""
    errors = re.findall(r"^(?:[\w.]*(?:Error|Exception|Failure)): .*$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line.strip()]
    chosen = [line for line in errors if not line.startswith("RuntimeError: Process ")] or lines[-1:]
    return chosen[0].strip()[:300]


def torchs_version():
    import torch

    return torch.__version__


def run(settings):
    results = pathlib.Path(settings.results)
    results.parent.mkdir(parents=True, exist_ok=True)
    done = {row["test"] for row in read(results)} if results.exists() else set()
    with tempfile.TemporaryDirectory(prefix="torch_suite_") as folder:
        module = module_of(settings.backend, settings.ranks, folder)
        suite = suite_of(module)
        logging.disable(logging.CRITICAL)
        names = unittest.TestLoader().getTestCaseNames(suite)
        chosen = [name for name in names if re.search(settings.only, name)]
        if settings.names:
            wanted = pathlib.Path(settings.names).read_text().split()
            if missing := sorted(set(wanted) - set(names)):
                print(f"suite.py: torch {torchs_version()} has no {', '.join(missing)}")
                return 1
            chosen = [name for name in chosen if name in wanted]
        print(f"torch {torchs_version()}, {settings.backend}, {settings.ranks} ranks: "
              f"{len(chosen)} tests, {len(done & set(chosen))} done already", flush=True)  # fmt: skip
        counts = collections.Counter()
        with results.open("a") as file:
            for name in chosen:
                if name in done:
                    continue
                begin = time.monotonic()
                outcome = outcome_of(suite, name, module, settings.backend)
                row = {
                    "test": name,
                    "outcome": outcome.word,
                    "reason": outcome.reason,
                    "seconds": round(time.monotonic() - begin, 1),
                    "torch": torchs_version(),
                    "backend": settings.backend,
                    "ranks": settings.ranks,
                }
                file.write(json.dumps(row) + "\n")
                file.flush()
                counts[outcome.word] += 1
                if outcome.word != "passed" or settings.verbose:
                    print(f"{outcome.word:8} {name} {outcome.reason}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    failed = [row["test"] for row in read(results) if row["outcome"] == "failed"]
    known = known_failures()
    unknown = [name for name in failed if name not in known]
    for name in unknown:
        print(f"suite.py: {name} fails, and known_failures.csv does not say why")
    return 1 if unknown or not read(results) else 0


def known_failures():
    """Returns the known reason for each failing test, by name, for the torch that runs this
    script."""
    ours = torchs_version().split(".")
    with (pathlib.Path(__file__).parent / "known_failures.csv").open(newline="") as file:
        return {
            row["test"]: row["why"]
            for row in csv.DictReader(file)
            if ours[: len(row["torch"].split("."))] == row["torch"].split(".")
        }


def read(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines() if line]


def table(settings):
    """Prints counts, and a line for each test with different outcomes."""
    ours, theirs = ({row["test"]: row for row in read(path)} for path in settings.results)
    print("| torch | ranks | backend | passed | failed | skipped |")
    print("|---|---|---|---|---|---|")
    for rows in (ours, theirs):
        count = collections.Counter(row["outcome"] for row in rows.values())
        of = next(iter(rows.values()))
        print(f"| {of['torch']} | {of['ranks']} | {of['backend']} | {count['passed']} | "
              f"{count['failed']} | {count['skipped']} |")  # fmt: skip
    print("\n| test | ours | theirs | why |\n|---|---|---|---|")
    for name in sorted(ours.keys() | theirs.keys()):
        words = [rows.get(name, {}).get("outcome", "not run") for rows in (ours, theirs)]
        if words[0] != words[1]:
            reason = ours.get(name, {}).get("reason") or theirs.get(name, {}).get("reason", "")
            print(f"| {name} | {words[0]} | {words[1]} | {reason} |")
    print("\n| skipped by both | tests |\n|---|---|")
    reasons = collections.Counter(
        row["reason"] for row in ours.values() if row["outcome"] == "skipped"
    )
    for reason, count in reasons.most_common():
        print(f"| {reason} | {count} |")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("--backend", default="tutti")
    one.add_argument("--ranks", type=int, default=4)
    one.add_argument("--results", required=True)
    one.add_argument("--only", default="", help="tests of this regular expression")
    one.add_argument("--names", help="a file of tests, each of which torch must have")
    one.add_argument("--verbose", action="store_true")
    both = commands.add_parser("table")
    both.add_argument("results", nargs=2, metavar="FILE")
    settings = parser.parse_args()
    if settings.command == "table":
        return table(settings)
    try:
        importlib.metadata.version("expecttest")
    except importlib.metadata.PackageNotFoundError:
        print("suite.py: Skipped\ntorch's tests need expecttest (pip install expecttest)")
        return 0
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
