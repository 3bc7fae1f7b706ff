"""Plots bandwidth over size as SVG."""

from html import escape
from math import floor, log2, log10

from .evaluate import field_of
from .figures import MPI, pick

WIDTH, HEIGHT = 460, 330
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 34, 46
COLOURS = ("#0b6e4f", "#54a24b", "#3a5fcd", "#b279a2", "#e07b39", "#777777")

# A panel has a title and series. A series has a name, a pick (its fastest candidate counts at each
# size) and optionally the field of its time.
PANELS = (
    ("2 ranks, shared memory", (
        ("tutti, private memory", pick("shm2", way="blocking")),
        ("tutti, arena", pick("shm2", way="arena_blocking")),
        ("MPI, best", pick("shm2", MPI)),
        ("Gloo, best", pick("shm2", ("gloo",))),
        ("adding in mapped memory", pick("shm2", ("limit",))))),
    ("2 ranks, TCP on loopback", (
        ("tutti", pick("tcp_loopback", ("tutti",), "2")),
        ("Gloo as shipped", pick("tcp_loopback", ("gloo",), "2", ("shipped",))),
        ("Gloo with cubic", pick("tcp_loopback", ("gloo",), "2", ("cubic",))),
        ("plain sockets", pick("sockets.raw", ("tutti",), "loopback.2"), "extra.raw_us"))),
)


def size_label(size):
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor:
            return f"{size // factor}{unit}"
    return str(size)


def line_of(evaluation, selection, field="time_us"):
    """Returns (bytes, GB/s) of the fastest candidate at each size."""
    sizes = {row["bytes"] for key, command in evaluation.commands.items()
             if selection.takes_command(command)
             for sample in evaluation.by_command[key] for row in sample["rows"]}
    points = []
    for size in sorted(sizes):
        found = evaluation.candidates(selection, {"bytes": size}, lambda row: field_of(row, field))
        if found:
            fastest = min(series.median() for series in found)
            if fastest > 0:
                points.append((size, size / fastest / 1000))
    return points


def panel(title, lines, x_offset):
    points = [point for _, line in lines for point in line]
    parts = [f'<g transform="translate({x_offset},0)">',
             f'<text x="{WIDTH / 2}" y="18" text-anchor="middle" font-weight="bold">'
             f'{escape(title)}</text>']
    if not points:
        parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">'
                     'not measured</text></g>')
        return parts
    low_x, high_x = (log2(edge(size for size, _ in points)) for edge in (min, max))
    low_y, high_y = floor(log10(min(rate for _, rate in points))), log10(
        max(rate for _, rate in points)) + 0.1

    def x(size):
        return LEFT + (log2(size) - low_x) / max(1, high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def y(rate):
        share = (log10(rate) - low_y) / (high_y - low_y)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    for power in range(low_y, floor(high_y) + 1):
        at = y(10**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" '
                     'stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10**power:g}</text>')
    ticks = sorted({size for size, _ in points})
    for size in ticks[::max(1, len(ticks) // 7)]:
        parts.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                     f'{size_label(size)}</text>')
    for index, (name, line) in enumerate(lines):
        if not line:
            continue
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x(size):.1f},{y(rate):.1f}" for size, rate in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(size):.1f}" cy="{y(rate):.1f}" r="2.5" fill="{colour}">'
                  f'<title>{escape(name)}: {size_label(size)}, {rate:.3g} GB/s</title></circle>'
                  for size, rate in line]
        at = TOP + 8 + 15 * index
        parts.append(f'<line x1="{LEFT + 8}" x2="{LEFT + 26}" y1="{at}" y2="{at}" '
                     f'stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 32}" y="{at + 4}">{escape(name)}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">bytes</text>')
    parts.append(f'<text transform="translate(14,{HEIGHT / 2}) rotate(-90)" '
                 'text-anchor="middle">GB/s</text></g>')
    return parts


def bandwidths(evaluation, facts):
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(PANELS)}" '
             f'height="{HEIGHT + 22}" font-family="sans-serif" font-size="11">',
             '<rect width="100%" height="100%" fill="white"/>']
    for index, (title, selections) in enumerate(PANELS):
        lines = [(name, line_of(evaluation, *selection)) for name, *selection in selections]
        parts += panel(title, lines, index * WIDTH)
    words = f"allreduce, f32, in place; {facts['machine']}; commit {facts['commit']}"
    parts.append(f'<text x="8" y="{HEIGHT + 14}" fill="#777">{escape(words)}</text></svg>')
    return "\n".join(parts) + "\n"
