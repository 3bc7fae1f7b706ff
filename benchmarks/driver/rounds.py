"""Measures in rounds. Each round runs every command once, group by group, with probes of the
machine in between."""

import hashlib
import json
import os
import resource
import time
from contextlib import ExitStack

from . import command as commands_module
from .evaluate import Evaluation

GOOD_FLAG_NS = 90
GOOD_SCALING = 1.7
QUIET_SHARE = 0.05  # largest share of all cores' time that other programs may take
QUIET_LEAST_S = 0.06  # less time of other programs is not measurable: a few ticks of the kernel
# After this many rounds, ways that are slower than the best peer by this factor are left out.
SCREENING = {1: 2.0, 3: 1.4, 6: 1.2}


class State:
    """The samples, one per line of a file, so that an interrupted run can be continued."""

    def __init__(self, folder, build_id):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "samples.jsonl"
        self.build_id = build_id
        self.samples = []
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    sample = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the line in which an earlier run was stopped
                if sample["build"] == build_id:
                    self.samples.append(sample)

    def clear(self):
        self.path.unlink(missing_ok=True)
        self.samples = []

    def find(self, round_, key, text):
        for sample in self.samples:
            if (sample["round"], sample["command"], sample["text"]) == (round_, key, text):
                return sample
        return None

    def add(self, sample):
        sample["build"] = self.build_id
        self.samples.append(sample)
        with self.path.open("a") as file:
            file.write(json.dumps(sample) + "\n")


def build_id_of(build):
    """Returns an id that changes when a measured program changes."""
    words = []
    for pattern in ("tools/tutti-bench", "libtutti.so.*", "benchmarks/peer-*", "benchmarks/tutti-*",
                    "benchmarks/raw-*", "libtutti_backend_*.so"):
        for path in sorted(build.glob(pattern)):
            stat = path.stat()
            words.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


class Bystanders:
    """Measures how much time the machine's cores spent on programs that this run did not start."""

    def __init__(self):
        self.begin = (time.monotonic(), self.all_s(), self.own_s())

    @staticmethod
    def all_s():
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system = map(int, file.readline().split()[1:4])
        return (user + nice + system) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def own_s():
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    def share(self):
        """Returns the other programs' share of all cores' time, or 0 if it is too small to be
        measured."""
        wall, everybody, own = (end - begin for end, begin in zip(
            (time.monotonic(), self.all_s(), self.own_s()), self.begin))
        others = everybody - own
        return 0.0 if others < QUIET_LEAST_S else others / (wall * os.cpu_count())


class Rounds:
    def __init__(self, commands, figures, state, network, probe, settings, say):
        self.figures, self.state, self.network = figures, state, network
        self.probe_command, self.settings, self.say = probe, settings, say
        self.commands = [one for one in commands
                         if any(pick.takes_command(one) for figure in figures
                                for pick in figure.picks())]
        self.waited_s = 0
        self.dropped = set()
        self.rounds = 0
        self.network_fault = None  # not tried yet
        self.last_probe = None
        self.shaped = False

    def probe(self):
        rows, error = commands_module.run(self.probe_command)
        if error:
            self.last_probe = {"good": False, "error": error}
            return self.last_probe
        extra = rows[0]["extra"]
        good = extra["oneway_ns"] < GOOD_FLAG_NS and extra["core_scaling"] > GOOD_SCALING
        self.last_probe = {"good": good, **extra}
        return self.last_probe

    def wait_for_good_window(self):
        others = Bystanders()
        while not (self.probe()["good"] and others.share() <= QUIET_SHARE):
            if self.waited_s >= self.settings.wait_s:
                return
            others = Bystanders()
            time.sleep(1)
            self.waited_s += 1

    def sample(self, one, round_):
        before = self.last_probe or self.probe()
        fault = self.prepare(one)
        others, begin = Bystanders(), time.monotonic()
        rows, error = ([], fault) if fault else commands_module.run(one)
        seconds, share = time.monotonic() - begin, others.share()
        after = self.probe()
        self.state.add({"round": round_, "command": one.key, "text": one.text(), "rows": rows,
                        "error": error, "seconds": round(seconds, 3), "before": before,
                        "after": after, "others": round(share, 3),
                        "good": before["good"] and after["good"] and share <= QUIET_SHARE})
        wrong = sum(row["wrong"] for row in rows)
        if error or wrong:
            self.say(f"  {one.key}: {error or f'{wrong} wrong elements'}")

    def prepare(self, one):
        """Makes the network that a command needs. Returns the reason if that fails, else ""."""
        if not one.network:
            return ""
        if self.network_fault is None:
            try:
                self.stack.enter_context(self.network)
                self.network_fault = ""
            except OSError as error:
                self.network_fault = str(error)
        if self.network_fault:
            return self.network_fault
        wants_shape = one.network == "shaped"
        if wants_shape != self.shaped:
            try:
                self.network.shape("1gbit") if wants_shape else self.network.unshape()
            except OSError as error:
                return str(error)
            self.shaped = wants_shape
        return ""

    def is_due(self, one, round_):
        if one.key in self.dropped or (one.rounds and round_ >= one.rounds):
            return False
        # A command that cannot run here reports this only in the first round.
        return not (one.fault and round_ > 0)

    def run_round(self, round_):
        due = [one for one in self.commands if self.is_due(one, round_)]
        unsampled = [one for one in due if not self.state.find(round_, one.key, one.text())]
        groups = {}
        for one in unsampled:
            groups.setdefault((one.topic, one.group), []).append(one)
        for group in groups.values():
            # The command that runs first changes from round to round.
            first = round_ % len(group)
            self.wait_for_good_window()
            for one in group[first:] + group[:first]:
                self.sample(one, round_)
        return bool(unsampled)

    def run(self, deadline):
        """Runs whole rounds until enough pairs are good or no time is left for another round."""
        with ExitStack() as self.stack:
            while self.rounds < self.settings.most_rounds:
                begin = time.monotonic()
                self.run_round(self.rounds)
                self.rounds += 1
                lasted = time.monotonic() - begin
                good = self.good_rounds()
                self.say(f"round {self.rounds}: {lasted:.0f} s, {good} with good windows only")
                if self.rounds in SCREENING:
                    self.screen(SCREENING[self.rounds])
                if self.rounds >= self.settings.pairs and good >= self.settings.pairs:
                    break
                if time.monotonic() + lasted > deadline:
                    self.say(f"no time for another round: {self.rounds} rounds")
                    break

    def good_rounds(self):
        """Returns the number of good rounds of the command that has the fewest."""
        counts = []
        for one in self.commands:
            if one.fault or one.rounds or one.key in self.dropped:
                continue
            counts.append(sum(sample["good"] for sample in self.state.samples
                              if sample["command"] == one.key))
        return min(counts, default=self.rounds)

    def screen(self, factor):
        # The samples may contain later rounds of a continued run. They must not change which
        # commands run next.
        samples = [one for one in self.state.samples if one["round"] < self.rounds]
        needed = Evaluation(self.commands, samples, self.settings.pairs).needed_ways(
            self.figures, factor)
        for i, one in enumerate(self.commands):
            if one.key not in needed or one.key in self.dropped:
                continue
            measured = {row["way"] for sample in samples if sample["command"] == one.key
                        for row in sample["rows"]}
            ways = needed[one.key]
            if not ways:
                self.leave_out(one.key, factor)
            elif one.ways_flag and ways < measured:
                self.commands[i] = one.narrowed(ways)
                for way in sorted(measured - ways):
                    self.leave_out(f"{one.key} {way}", factor)

    def leave_out(self, name, factor):
        if name not in self.dropped:
            self.dropped.add(name)
            self.say(f"  {name}: nowhere within {factor}x of the best peer, left out now")
