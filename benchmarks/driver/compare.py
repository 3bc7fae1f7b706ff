"""Checks whether a change made a ratio worse. Times on this kind of machine vary from run to run,
but ratios to a peer that was measured in the same seconds do not."""

import json
import sys
from pathlib import Path

TOLERANCE = 1.10


def load(path):
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, json.JSONDecodeError) as error:
        sys.exit(f"run.py: --compare {path}: {error}")
    rows = content["figures"] if isinstance(content, dict) else content
    return {row["name"]: row for row in rows}


def is_worse(old, new):
    """Returns whether the value is worse by more than the tolerance and the bounds do not
    overlap."""
    if old["value"] is None:
        return False
    if new["value"] is None:
        return True
    if new["better"] == "lower":
        return new["value"] > old["value"] * TOLERANCE and new["low"] > old["high"]
    return new["value"] * TOLERANCE < old["value"] and new["high"] < old["low"]


def check(old, rows):
    worse = [row for row in rows if row["name"] in old and is_worse(old[row["name"]], row)]
    for row in worse:
        before = old[row["name"]]
        now = "none: " + row["reason"] if row["value"] is None else f"{row['value']:.3g}"
        print(f"worse than before: {row['name']}: {before['value']:.3g} {row['unit']}, now {now}")
    if not worse:
        print("no ratio is worse than before")
    return 1 if worse else 0
