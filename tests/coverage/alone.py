#!/usr/bin/env python3
"""Shows the lines of the library that only one test covers: alone.py BUILD [REGEX].

BUILD has been built with TUTTI_COVERAGE. Each daily test program runs by itself (with REGEX: each
case of the programs whose name matches). The table lists the lines that each group covers, and
those that only this group covers, fewest first. A group that covers no line alone is a candidate
for removal. It may repeat other tests, or check more about the same lines. Only lines where a basic
block begins count.

Results stay in BUILD/coverage; a run that was stopped continues from there.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def cases_of(build):
    """Yields (name, program) of the daily cases."""
    shown = subprocess.run(
        ["ctest", "--test-dir", build, "-LE", "^full$", "--show-only=json-v1"],
        check=True, capture_output=True, text=True)
    for test in json.loads(shown.stdout)["tests"]:
        if "command" in test:
            program = pathlib.Path(test["command"][0]).name
            # Scripts that an interpreter runs are groups of their own.
            yield test["name"], program if program.endswith("_test") else test["name"]


def run(build, names, log):
    """Runs these cases, whether they pass or not; their coverage is in the log."""
    pattern = "^(" + "|".join(re.escape(name) for name in names) + ")$"
    environment = dict(os.environ, TUTTI_COVERAGE_LOG=str(log))
    subprocess.run(["ctest", "--test-dir", build, "-j", "3", "-R", pattern],
                   env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


def blocks_of(log):
    blocks = set()
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, offset = line.strip().rpartition(" ")
            if re.fullmatch("[0-9a-f]+", offset):
                blocks.add((name, int(offset, 16)))
    return blocks


def lines_of(blocks):
    """Maps each block to "file:line" of this project's sources."""
    by_object = collections.defaultdict(list)
    for name, offset in blocks:
        if os.path.exists(name):  # the installed copy of a test is gone
            by_object[name].append(offset)
    places = {}
    for name, offsets in by_object.items():
        # A block is identified by the return address of its call, so the call is before that
        # address.
        asked = "\n".join(f"{offset - 1:#x}" for offset in offsets)
        told = subprocess.run(["addr2line", "-e", name], input=asked, check=True,
                              capture_output=True, text=True).stdout.splitlines()
        for offset, line in zip(offsets, told):
            path = re.sub(r" \(discriminator \d+\)", "", line)
            file, _, number = path.rpartition(":")
            file = os.path.normpath(file)
            # Headers are reached through links below the build.
            file = re.sub(r"^.*/build/[^/]+/include/tutti/", f"{REPOSITORY}/", file)
            if file.startswith(f"{REPOSITORY}/") and "/tests/" not in file and number.isdigit():
                places[name, offset] = f"{file[len(str(REPOSITORY)) + 1:]}:{number}"
    return places


def main():
    build = sys.argv[1]
    wanted = re.compile(sys.argv[2]) if len(sys.argv) > 2 else None
    groups = collections.defaultdict(list)
    for name, program in cases_of(build):
        if wanted is None or wanted.search(program):
            groups[name if wanted else program].append(name)
    state = pathlib.Path(build, "coverage").resolve()
    state.mkdir(exist_ok=True)
    covered = {}
    for group, names in groups.items():
        kept = state / (re.sub(r"[^\w.-]", "_", group) + (".case" if wanted else ".program"))
        if not kept.exists():
            log = kept.with_suffix(".log")
            log.unlink(missing_ok=True)
            log.touch()
            run(build, names, log)
            kept.write_text("\n".join(f"{name} {offset:x}" for name, offset in sorted(blocks_of(log))))
            log.unlink()
        covered[group] = blocks_of(kept)
    places = lines_of(set().union(*covered.values()))
    lines = {group: {places[block] for block in blocks if block in places}
             for group, blocks in covered.items()}
    times = collections.Counter(line for those in lines.values() for line in those)
    print(f"{'only here':>9} {'lines':>7} {'cases':>6}  test")
    for group in sorted(lines, key=lambda group: sum(times[line] == 1 for line in lines[group])):
        alone = sum(times[line] == 1 for line in lines[group])
        print(f"{alone:9} {len(lines[group]):7} {len(groups[group]):6}  {group}")
    print(f"{len(times)} lines are covered by {sum(map(len, groups.values()))} cases")


if __name__ == "__main__":
    main()
