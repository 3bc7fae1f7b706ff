#!/usr/bin/env python3
"""Fails for an error text of the library that no test source repeats.

A text is what the library hands to Error, or to a function that returns one. It counts as tested
where a string literal of a test holds twenty characters of it one after another, or, where the
words between two values are twelve to twenty characters, all of these. The list beside this file
names those that no test can provoke, each with its reason; what has got a test may not stay in it.
"""

import argparse
import pathlib
import re
import sys

FOLDERS = ("base", "tensor", "kernels", "collectives", "backends", "core", "adapters")
LEAST = 12
ENOUGH = 20
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<fence>\w*)\((?P<raw>.*?)\)(?P=fence)"'
    r'|"(?P<text>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "0": "\0"}


def literals(source):
    """(begin, end, text) of each string literal; those with nothing but white space between them
    are one."""
    found = []
    for match in TOKEN.finditer(source):
        text = match["raw"]
        if match["text"] is not None:
            text = re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), match["text"])
        if text is None:
            continue
        if found and source[found[-1][1]:match.start()].strip() == "":
            begin, _, before = found.pop()
            found.append((begin, match.end(), before + text))
        else:
            found.append((match.start(), match.end(), text))
    return found


def runs(text):
    """The words between the values that fmt fills in."""
    text = text.replace("{{", "\1").replace("}}", "\2")
    parts = re.split(r"\{[^{}]*\}|\n", text)
    return [part.replace("\1", "{").replace("\2", "}").strip() for part in parts]


def calls(source, names):
    """(begin, end) of the arguments of each call of one of `names`."""
    blank = TOKEN.sub(lambda m: " " * len(m[0]), source)
    for match in re.finditer(r"\b(?:%s)\s*[({]" % "|".join(sorted(names)), blank):
        depth = 0
        for at in range(match.end() - 1, len(blank)):
            depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(blank[at], 0)
            if depth == 0:
                yield match.end(), at
                break


def sources(root, suffixes):
    for path in sorted(root.rglob("*")):
        if path.suffix in suffixes:
            yield path, path.read_text()


def texts_of_the_library(root):
    """{(file, text)}: what calls of Error, and of functions that return one, say."""
    # The Python package's own texts are those of its exceptions: tests/python reads them.
    files = [one for folder in FOLDERS for one in sources(root / folder, {".h", ".cc"})
             if root / "adapters/python" not in one[0].parents]
    names = {"Error"}
    for _, source in files:
        names |= set(re.findall(r"\b(?:Error|NamedError)\s+(?:\w+::)?(\w+)\s*\((?!\))", source))
        names |= set(re.findall(r"\[\[noreturn\]\]\s+(?:static\s+)?void\s+(?:\w+::)?(\w+)\(",
                                source))
    texts = set()
    for path, source in files:
        all_literals = literals(source)
        for begin, end in calls(source, names):
            for at, _, text in all_literals:
                if begin <= at < end and max(map(len, runs(text))) >= LEAST:
                    texts.add((str(path.relative_to(root)), text))
    return texts


def parts(text):
    return {text[i:i + ENOUGH] for i in range(len(text) - ENOUGH + 1)}


def is_tested(text, spoken, spoken_parts):
    for run in runs(text):
        if len(run) < ENOUGH and len(run) >= LEAST and any(run in said for said in spoken):
            return True
        if any(said in run for said in spoken) or not parts(run).isdisjoint(spoken_parts):
            return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=pathlib.Path)
    root = parser.parse_args().root
    spoken = set()
    for path, source in sources(root / "tests", {".h", ".cc", ".c", ".sh", ".py"}):
        if path.parent.name != "errors":
            spoken.update(run for _, _, text in literals(source) for run in runs(text)
                          if len(run) >= LEAST)
    spoken_parts = set().union(*map(parts, spoken))
    reasons = {}
    for line in (root / "tests/errors/untested.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            file, text, reason = (part.strip() for part in line.split(" | "))
            reasons[file, text] = reason
    texts = texts_of_the_library(root)
    failures = []
    for file, text in sorted(texts):
        shown = text.replace("\n", "\\n").strip()
        listed = reasons.pop((file, shown), None)
        if is_tested(text, spoken, spoken_parts):
            if listed is not None:
                failures.append(f"{file}: a test has this text now; take it off the list: {shown}")
        elif listed is None:
            failures.append(f"{file}: no test matches: {shown}")
    failures += [f"{file}: is said no more; take it off the list: {text}" for file, text in reasons]
    print(*failures, sep="\n")
    print(f"{len(texts)} error texts, {len(failures)} failures")
    return 1 if failures or len(texts) < 200 else 0


if __name__ == "__main__":
    sys.exit(main())
