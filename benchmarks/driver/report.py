"""Writes the table, as text and as files."""

import json
import platform
from datetime import datetime, timezone
from pathlib import Path

from . import plot


def number(value):
    if value is None:
        return "-"
    if value == 0 or 0.01 <= abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bytes_text(size):
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def processor():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


def about(commit, mode, rounds, settings, seconds):
    probes = [sample["after"] for sample in rounds.state.samples]
    return {
        "commit": commit, "mode": mode, "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": f"{processor()}, Linux {platform.release()}",
        "rounds": rounds.rounds, "wanted_pairs": settings.pairs, "seconds": round(seconds),
        "probes": len(probes), "good_probes": sum(probe["good"] for probe in probes),
        "left_out": sorted(rounds.dropped),
    }


def sign(row):
    if row["value"] is None:
        return "none"
    return "target" if row["reaches_target"] else "floor" if row["holds"] else "**missed**"


def wanted(row):
    word = "at most" if row["better"] == "lower" else "at least"
    return f"{word} {row['target']:g} ({row['floor']:g})"


def value_text(row):
    if row["value"] is None:
        return "-"
    text = number(row["value"])
    if row["low"] != row["high"]:
        text += f" [{number(row['low'])}, {number(row['high'])}]"
    return text + ("" if row["windows"] == "good" else " *")


def point_text(point):
    return bytes_text(point["bytes"]) if "bytes" in point else ""


def remark(row):
    names = row.get("names") or {}
    words = [point_text(row.get("at") or {}), names.get("peer") or "", row["reason"]]
    return "; ".join(word for word in words if word)


def header(facts):
    words = f"{facts['mode']}: {facts['rounds']} rounds"
    if facts["rounds"] < facts["wanted_pairs"] or facts["mode"] == "quick":
        words += " (a full measurement has 21)"
    return (f"commit {facts['commit']}, {facts['date']}, {facts['machine']}; {words}; "
            f"{facts['good_probes']} of {facts['probes']} probes found the cores well placed")


def table(facts, rows):
    lines = [header(facts)]
    for row in rows:
        lines.append(f"{sign(row).strip('*'):7} {row['name']:32} {value_text(row):>24} "
                     f"{row['unit']:18} {wanted(row):22} {remark(row)}")
    held = sum(row["holds"] for row in rows)
    reached = sum(row["reaches_target"] for row in rows)
    lines.append(f"{held} of {len(rows)} floors hold, {reached} targets reached; times and all "
                 "sizes are in the results' JSON. *: not in good windows only")
    return "\n".join(lines)


def markdown(facts, rows):
    lines = ["# Benchmark results", "", header(facts) + ".", "",
             "Ratios are medians over rounds with their 95 % bootstrap bounds, at the worst size of "
             "a figure; `*`: not in good windows only. How they are taken: "
             "[docs/benchmarking.md](../../docs/benchmarking.md).", "",
             "| figure | value | unit | wanted (floor) | | ours | peer | limit | at, against |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        times = (number(row[name]) for name in ("ours", "peer", "limit"))
        lines.append(f"| {row['about']} (`{row['name']}`) | {value_text(row)} | {row['unit']} | "
                     f"{wanted(row)} | {sign(row)} | {' | '.join(times)} | {remark(row)} |")
    by_size = [row for row in rows if len(row.get("points", ())) > 1]
    if by_size:
        lines += ["", "## By size", "", "Times in us.", "",
                  "| figure | size | value | ours | peer | limit | against |",
                  "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in by_size:
        for point in row["points"]:
            lines.append(f"| `{row['name']}` | {point_text(point)} | {number(point['value'])} | "
                         f"{number(point['ours'])} | {number(point['peer'])} | "
                         f"{number(point['limit'])} | {point['names']['peer'] or ''} |")
    if facts["left_out"]:
        lines += ["", "Measured in the first rounds and left out afterwards, being nowhere near the "
                  "best peer: " + ", ".join(facts["left_out"]) + "."]
    return "\n".join(lines) + "\n"


def write(folder, mode, facts, rows, evaluation=None):
    """Writes the files. The plot is drawn only from a run of all commands."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{mode}.json").write_text(json.dumps({"about": facts, "figures": rows}, indent=1) +
                                         "\n")
    (folder / f"{mode}.md").write_text(markdown(facts, rows))
    if evaluation:
        (folder / f"{mode}.svg").write_text(plot.bandwidths(evaluation, facts))
    print(f"results: {folder}/{mode}.md, .json{', .svg' if evaluation else ''}")
