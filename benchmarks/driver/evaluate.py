"""Computes figures from samples."""

from collections import defaultdict
from statistics import median

from . import stats
from .figures import BESIDE, FAULTS, SHARE, SLOWDOWN, SPEEDUP, VALUE

GOOD_PAIRS_FULL = 21


def field_of(row, name):
    """Returns a field of a row, or None if the row lacks it. "extra.x" is field x in `extra`."""
    for part in name.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def matches(row, fields):
    for name, wanted in fields:
        value = field_of(row, name)
        if value not in wanted if isinstance(wanted, tuple) else value != wanted:
            return False
    return True


class Series:
    """The values of one candidate at one point, keyed by round."""

    def __init__(self, name):
        self.name = name
        self.values, self.good, self.wrong, self.rows = {}, {}, 0, []

    def median(self):
        return median(self.values.values())


class Outcome:
    """A figure's value at one point."""

    def __init__(self, value, bound, ours, peer, limit, names, rounds, good_only, point):
        self.value, self.bound, self.ours, self.peer, self.limit = value, bound, ours, peer, limit
        self.names, self.rounds, self.good_only, self.point = names, rounds, good_only, point


class Evaluation:
    """The samples of each command. `pairs` is the number of rounds in a full measurement."""

    def __init__(self, commands, samples, pairs):
        self.commands = {command.key: command for command in commands}
        self.by_command = defaultdict(list)
        for sample in samples:
            if sample["command"] in self.commands:
                self.by_command[sample["command"]].append(sample)
        self.pairs = pairs

    def candidates(self, pick, point, value_of, check=True):
        """Returns the series that a pick selects at a point. If `check`, series with wrong results
        are left out."""
        found = {}
        for key, command in self.commands.items():
            if not pick.takes_command(command):
                continue
            for sample in self.by_command[key]:
                for row in sample["rows"]:
                    if not matches(row, pick.fields + tuple(point.items())):
                        continue
                    value = value_of(row)
                    if value is None:
                        continue
                    name = " ".join(word for word in (command.program, command.variant,
                                                      row["way"]) if word)
                    series = found.setdefault(name, Series(name))
                    series.values[sample["round"]] = value
                    series.good[sample["round"]] = sample["good"]
                    series.wrong += row["wrong"]
                    series.rows.append(row)
        return [series for series in found.values() if not (check and series.wrong)]

    def reason_for_nothing(self, pick):
        keys = [key for key, command in self.commands.items() if pick.takes_command(command)]
        errors = [sample["error"] for key in keys for sample in self.by_command[key]
                  if sample["error"]]
        errors += [self.commands[key].fault for key in keys if self.commands[key].fault]
        if errors:
            return f"{keys[0]}: {errors[-1]}"
        if not any(self.by_command[key] for key in keys):
            return "not run"
        wanted = ", ".join(f"{name}={value}" for name, value in pick.fields)
        return f"no row of {keys[0]} has {wanted}"

    def at_point(self, figure, point):
        """Returns the outcome at a point, or the reason why there is none."""
        numbers = self._numbers(figure)
        ours = self.candidates(figure.ours, point, numbers["ours"], check=False)
        if not ours:
            return self.reason_for_nothing(figure.ours)
        wrong = sum(series.wrong for series in ours)
        if wrong and figure.kind != FAULTS:
            return f"{wrong} wrong elements"
        def best(of):
            return min(of, key=Series.median) if of else None

        mine = best(ours)
        peer = best(self.candidates(figure.peers, point, numbers["peer"]) if figure.peers else [])
        limit = best(self.candidates(figure.limit, point, numbers["limit"]) if figure.limit else [])
        if figure.kind in (SLOWDOWN, SPEEDUP) and not peer:
            return self.reason_for_nothing(figure.peers)
        if figure.kind == SHARE and not limit:
            return self.reason_for_nothing(figure.limit)
        other = limit if figure.kind == SHARE else peer
        ratio = {
            SLOWDOWN: lambda own, theirs: own / theirs,
            SPEEDUP: lambda own, theirs: theirs / own,
            SHARE: lambda own, theirs: theirs / own,
            VALUE: lambda own, _: own,
            FAULTS: lambda own, _: own,
            BESIDE: lambda own, _: own,
        }[figure.kind]
        if figure.kind in (VALUE, FAULTS, BESIDE):
            other = mine
        rounds = sorted(set(mine.values) & set(other.values))
        if not rounds:
            return "ours and the other were never measured in the same round"
        good = [i for i in rounds if mine.good[i] and other.good[i]]
        # If too few rounds were good, all rounds count, and the row records that.
        good_only = len(good) >= min(self.pairs, len(rounds)) or len(good) >= GOOD_PAIRS_FULL
        used = good if good_only else rounds
        values = [ratio(mine.values[i], other.values[i]) for i in used]
        if figure.kind == BESIDE:
            return self._beside(mine, values, used, good_only, point)
        names = {"ours": mine.name, "peer": peer.name if peer else None,
                 "limit": limit.name if limit else None}
        return Outcome(median(values), stats.bound_of_median(values), mine.median(),
                       peer.median() if peer else None, limit.median() if limit else None, names,
                       len(used), good_only, point)

    @staticmethod
    def _beside(mine, values, used, good_only, point):
        """Returns the outcome of rows that compare pairs inside one program and have their
        bound."""
        low, high, ours, library = (median(field_of(row, name) for row in mine.rows) for name in (
            "extra.ratio_low", "extra.ratio_high", "time_us", "extra.raw_us"))
        bound = (low, high) if len(values) == 1 else stats.bound_of_median(values)
        # The other side is the library itself, unless the row names it as a limit.
        limit = field_of(mine.rows[0], "extra.limit")
        names = {"ours": mine.name, "peer": None if limit else "the library itself", "limit": limit}
        times = (None, library) if limit else (library, None)
        return Outcome(median(values), bound, ours, *times, names, len(used), good_only, point)

    def _numbers(self, figure):
        def time_of(row):
            return row["time_us"]

        if figure.kind == FAULTS:
            def count(row):
                return sum(field_of(row, name) != right for name, right in figure.faults)
            return {"ours": count, "peer": time_of, "limit": time_of}
        if figure.kind == BESIDE:
            def ratio(row):
                return field_of(row, "extra.ratio")
            return {"ours": ratio, "peer": time_of, "limit": time_of}
        if figure.kind == VALUE:
            def own(row):
                value = field_of(row, figure.field)
                return None if value is None else value * figure.scale
            return {"ours": own, "peer": time_of, "limit": time_of}
        return {"ours": time_of, "peer": time_of, "limit": time_of}

    def outcomes(self, figure):
        """Returns the outcomes of points, and the reasons of points without an outcome."""
        outcomes, reasons = [], []
        for point in figure.points:
            found = self.at_point(figure, point)
            (outcomes if isinstance(found, Outcome) else reasons).append(found)
        return outcomes, reasons

    def row(self, figure):
        outcomes, reasons = self.outcomes(figure)
        ours = [command for command in self.commands.values() if figure.ours.takes_command(command)]
        row = {"name": figure.name, "about": figure.about, "value": None, "unit": figure.shown_unit,
               "better": figure.better, "target": figure.target, "floor": figure.floor,
               "holds": False, "reaches_target": False, "ours": None, "peer": None, "limit": None,
               "command": ours[0].text() if ours else "", "reason": "; ".join(sorted(set(reasons)))}
        if not outcomes:
            return row
        worst = (max if figure.better == "lower" else min)(outcomes, key=lambda one: one.value)
        row.update(
            value=worst.value, low=worst.bound[0], high=worst.bound[1], ours=worst.ours,
            peer=worst.peer, limit=worst.limit, names=worst.names, rounds=worst.rounds,
            windows="good" if worst.good_only else "any", at=worst.point,
            holds=not reasons and stats.reaches(figure.better, worst.value, figure.floor),
            reaches_target=not reasons and stats.reaches(figure.better, worst.value, figure.target),
            points=[{**one.point, "value": one.value, "low": one.bound[0], "high": one.bound[1],
                     "ours": one.ours, "peer": one.peer, "limit": one.limit, "names": one.names}
                    for one in outcomes])
        for command in ours:
            if all(word in command.text() for word in map(str, worst.point.values())):
                row["command"] = command.text()
                break
        return row

    def needed_ways(self, figures, factor):
        """Returns, by key of each peer's command, the ways that are within `factor` of the best
        peer at any point. The other ways cannot change a figure in later rounds."""
        needed = {}
        for figure in figures:
            if not figure.peers or figure.peers.programs == ("tutti",):
                continue
            keys = [key for key, command in self.commands.items()
                    if figure.peers.takes_command(command) and self.by_command[key]]
            for key in keys:
                needed.setdefault(key, set())
            for point in figure.points:
                fields = figure.peers.fields + tuple(point.items())
                times = defaultdict(list)
                for key in keys:
                    for sample in self.by_command[key]:
                        for row in sample["rows"]:
                            if matches(row, fields):
                                times[key, row["way"]].append(row["time_us"])
                medians = {one: median(values) for one, values in times.items()}
                best = min(medians.values(), default=0)
                for (key, way), value in medians.items():
                    if value <= factor * best:
                        needed[key].add(way)
        return needed
