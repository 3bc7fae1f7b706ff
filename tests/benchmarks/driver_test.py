"""The driver's arithmetic on made-up samples: which peer is best, which rounds count, what a figure
says that could not be measured."""

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.dont_write_bytecode = True
from driver import command, compare, plot, report, stats  # noqa: E402
from driver.command import Command, Process  # noqa: E402
from driver.evaluate import Evaluation  # noqa: E402
from driver.figures import BESIDE, FAULTS, SHARE, SLOWDOWN, SPEEDUP, Figure, all_figures, pick  # noqa: E402
from driver.network import Network  # noqa: E402
from driver.programs import Programs, Scope, parse_ctest, parse_demo, parse_training  # noqa: E402
from driver.rounds import Rounds, State  # noqa: E402


def make_command(program, variant="", **more):
    key = ".".join(word for word in ("t", program, variant) if word)
    return Command(key, program, "t", "", (Process(("true",)),), variant, **more)


def row(program, time_us, size=4, wrong=0, way="blocking", **extra):
    return {"program": program, "case": "allreduce", "way": way, "in_place": True, "bytes": size,
            "time_us": time_us, "wrong": wrong, "extra": extra}


def sample(one, round_, *rows, good=True, error=""):
    return {"command": one.key, "round": round_, "rows": list(rows), "good": good, "error": error,
            "text": one.text()}


OURS, SLOW, FAST, LIMIT = (make_command("tutti"), make_command("openmpi", "slow"),
                           make_command("openmpi", "fast"), make_command("limit"))
COMMANDS = [OURS, SLOW, FAST, LIMIT]
PEERS = pick("t", ("openmpi",))


def figure(kind, target, floor, points=({"bytes": 4},), **more):
    return Figure("f", "a figure", kind, target, floor, pick("t"), PEERS, pick("t", ("limit",)),
                  points, **more)


class Figures(unittest.TestCase):
    def samples(self, ours, slow, fast, good=True):
        made = []
        for i, (a, b, c) in enumerate(zip(ours, slow, fast)):
            made += [sample(OURS, i, row("tutti", a), good=good),
                     sample(SLOW, i, row("openmpi", b), good=good),
                     sample(FAST, i, row("openmpi", c), good=good),
                     sample(LIMIT, i, row("limit", 5), good=good)]
        return made

    def test_the_fastest_peer_is_the_one_that_counts(self):
        samples = self.samples([10, 10, 10], [40, 40, 40], [20, 30, 25])
        result = Evaluation(COMMANDS, samples, 3).row(figure(SPEEDUP, 2.4, 2))
        self.assertEqual(result["value"], 2.5)
        self.assertEqual((result["low"], result["high"]), (2, 3))
        self.assertEqual(result["names"]["peer"], "openmpi fast blocking")
        self.assertTrue(result["holds"] and result["reaches_target"])

    def test_a_ratio_is_taken_within_each_round(self):
        samples = self.samples([10, 100, 1000], [90, 900, 9000], [20, 200, 2000])
        result = Evaluation(COMMANDS, samples, 3).row(figure(SLOWDOWN, 0.4, 0.45))
        self.assertEqual((result["value"], result["low"], result["high"]), (0.5, 0.5, 0.5))
        self.assertFalse(result["holds"])

    def test_only_good_windows_count_if_there_are_enough(self):
        samples = self.samples([10] * 3, [40] * 3, [20] * 3)
        samples += [dict(one, round=one["round"] + 3, good=False,
                         rows=[dict(one["rows"][0], time_us=7)]) for one in samples]
        result = Evaluation(COMMANDS, samples, 3).row(figure(SPEEDUP, 2, 2))
        self.assertEqual((result["value"], result["rounds"], result["windows"]), (2, 3, "good"))
        result = Evaluation(COMMANDS, samples, 4).row(figure(SPEEDUP, 2, 2))
        self.assertEqual((result["rounds"], result["windows"]), (6, "any"))

    def test_the_worst_size_is_the_figure(self):
        samples = [sample(OURS, 0, row("tutti", 1, 4), row("tutti", 3, 8)),
                   sample(FAST, 0, row("openmpi", 2, 4), row("openmpi", 3, 8))]
        points = ({"bytes": 4}, {"bytes": 8})
        result = Evaluation(COMMANDS, samples, 1).row(figure(SPEEDUP, 2, 1.5, points))
        self.assertEqual((result["value"], result["at"]), (1, {"bytes": 8}))
        self.assertEqual([point["value"] for point in result["points"]], [2, 1])

    def test_a_missing_size_keeps_a_figure_from_holding(self):
        samples = self.samples([10], [40], [20])
        points = ({"bytes": 4}, {"bytes": 8})
        result = Evaluation(COMMANDS, samples, 1).row(figure(SPEEDUP, 1, 1, points))
        self.assertEqual(result["value"], 2)
        self.assertFalse(result["holds"])
        self.assertIn("no row of t.tutti", result["reason"])

    def test_a_wrong_peer_does_not_count(self):
        samples = [sample(OURS, 0, row("tutti", 10)), sample(SLOW, 0, row("openmpi", 40)),
                   sample(FAST, 0, row("openmpi", 20, wrong=1))]
        result = Evaluation(COMMANDS, samples, 1).row(figure(SPEEDUP, 4, 4))
        self.assertEqual((result["value"], result["holds"]), (4, True))

    def test_our_wrong_result_is_the_reason(self):
        samples = [sample(OURS, 0, row("tutti", 10, wrong=2)), sample(FAST, 0, row("openmpi", 20))]
        result = Evaluation(COMMANDS, samples, 1).row(figure(SPEEDUP, 1, 1))
        self.assertEqual((result["holds"], result["reason"]), (False, "2 wrong elements"))

    def test_what_could_not_run_says_why(self):
        samples = [sample(OURS, 0, error="exit code 2: no such case")]
        result = Evaluation(COMMANDS, samples, 1).row(figure(SPEEDUP, 1, 1))
        self.assertEqual((result["value"], result["holds"]), (None, False))
        self.assertEqual(result["reason"], "t.tutti: exit code 2: no such case")

    def test_a_share_is_of_the_limit(self):
        samples = self.samples([10], [40], [20])
        result = Evaluation(COMMANDS, samples, 1).row(figure(SHARE, 0.8, 0.5))
        self.assertEqual((result["value"], result["holds"], result["reaches_target"]),
                         (0.5, True, False))

    def test_pairs_inside_one_program_bring_their_own_ratio_and_bound(self):
        ours = row("tutti", 20, ratio=0.9, ratio_low=0.88, ratio_high=0.91, raw_us=18)
        beside = figure(BESIDE, 0.95, 0.85)
        result = Evaluation(COMMANDS, [sample(OURS, 0, ours)], 1).row(beside)
        self.assertEqual((result["value"], result["low"], result["high"]), (0.9, 0.88, 0.91))
        self.assertEqual((result["ours"], result["peer"]), (20, 18))
        self.assertEqual((result["holds"], result["reaches_target"]), (True, False))

    def test_what_a_row_calls_a_limit_is_none_of_the_peers(self):
        rows = [row("tutti", 20, ratio=ratio, ratio_low=0, ratio_high=1, raw_us=16, limit="copies")
                for ratio in (0.7, 0.8, 0.75)]
        samples = [sample(OURS, i, one) for i, one in enumerate(rows)]
        result = Evaluation(COMMANDS, samples, 1).row(figure(BESIDE, 0.9, 0.7))
        self.assertEqual((result["value"], result["low"], result["high"]), (0.75, 0.7, 0.8))
        self.assertEqual((result["ours"], result["peer"], result["limit"]), (20, None, 16))
        self.assertEqual(result["names"]["limit"], "copies")

    def test_faults_are_counted(self):
        counted = figure(FAULTS, 0, 0, ({},), faults=(("extra.a", 0), ("extra.b", True)))
        for extra, wanted in (({"a": 0, "b": True}, 0), ({"a": 3, "b": True}, 1), ({}, 2)):
            result = Evaluation(COMMANDS, [sample(OURS, 0, row("tutti", 1, **extra))], 1).row(counted)
            self.assertEqual((result["value"], result["holds"]), (wanted, wanted == 0))

    def test_ways_that_no_figure_misses_are_not_needed(self):
        samples = self.samples([10], [40], [20])
        samples[2]["rows"].append(row("openmpi", 70, way="fused"))
        for factor, slow, fast in ((1.4, set(), {"blocking"}), (2, {"blocking"}, {"blocking"}),
                                   (4, {"blocking"}, {"blocking", "fused"})):
            needed = Evaluation(COMMANDS, samples, 1).needed_ways([figure(SPEEDUP, 1, 1)], factor)
            self.assertEqual(needed, {SLOW.key: slow, FAST.key: fast})

    def test_a_command_is_narrowed_to_some_of_its_ways(self):
        for argv in (("peer", "--way", "all", "--bytes", "4"), ("peer", "--bytes", "4")):
            one = Command("k", "openmpi", "t", "", (Process(argv),), ways_flag="--way")
            self.assertEqual(one.narrowed({"b", "a"}).text(), "peer --bytes 4 --way a,b")

    def test_a_command_is_told_for_the_folder_in_which_this_runs(self):
        here = Path.cwd()
        one = Command("k", "tutti", "t", "", (Process(
            (f"{here}/build/peer", "--set", f"{here}/data"), {"LD_PRELOAD": f"{here}/x.so"}),))
        self.assertEqual(one.text(), "LD_PRELOAD=x.so build/peer --set data")


class Bounds(unittest.TestCase):
    def test_the_bound_holds_the_median_and_repeats(self):
        values = [1.0, 1.1, 0.9, 1.3, 1.0, 2.5, 1.05]
        low, high = stats.bound_of_median(values)
        self.assertLessEqual(low, 1.05)
        self.assertGreaterEqual(high, 1.05)
        self.assertEqual((low, high), stats.bound_of_median(values))


class Comparing(unittest.TestCase):
    def one(self, value, low, high, better="higher"):
        return {"name": "f", "value": value, "low": low, "high": high, "better": better,
                "unit": "x", "reason": ""}

    def test_worse_beyond_chance_is_found(self):
        self.assertTrue(compare.is_worse(self.one(2, 1.9, 2.1), self.one(1.5, 1.4, 1.6)))
        self.assertTrue(compare.is_worse(self.one(1, 0.9, 1.1, "lower"),
                                         self.one(1.5, 1.4, 1.6, "lower")))
        self.assertTrue(compare.is_worse(self.one(2, 1.9, 2.1),
                                         self.one(None, None, None)))

    def test_better_or_by_chance_is_not(self):
        self.assertFalse(compare.is_worse(self.one(2, 1.9, 2.1), self.one(2.5, 2.4, 2.6)))
        self.assertFalse(compare.is_worse(self.one(2, 1.3, 2.1), self.one(1.5, 1.2, 1.6)))
        self.assertFalse(compare.is_worse(self.one(2, 1.99, 2.01), self.one(1.95, 1.94, 1.96)))


class Running(unittest.TestCase):
    def run_shell(self, text, **more):
        one = Command("k", "tutti", "t", "", (Process(("sh", "-c", text)),), **more)
        return command.run(one)

    def test_rows_are_read_among_other_lines(self):
        rows, error = self.run_shell("echo hello; echo '{\"time_us\": 1}'")
        self.assertEqual((rows, error), ([{"time_us": 1}], ""))

    def test_a_failure_has_its_last_words(self):
        self.assertEqual(self.run_shell("echo one >&2; echo two >&2; exit 3"),
                         ([], "exit code 3: two"))

    def test_a_deadline_ends_a_program_with_its_children(self):
        rows, error = self.run_shell("sleep 60 & wait", timeout_s=0.5)
        self.assertEqual((rows, error), ([], "not done within 0 s"))

    def test_a_program_that_is_not_there(self):
        rows, error = command.run(Command("k", "x", "t", "", (Process(("/nowhere/x",)),)))
        self.assertEqual(rows, [])
        self.assertIn("/nowhere/x", error)


class Resuming(unittest.TestCase):
    @mock.patch("driver.rounds.Bystanders.share", lambda self: 0.0)  # whatever else runs here
    def test_an_interrupted_run_goes_on(self):
        class Settings:
            pairs, most_rounds, minutes, wait_s = 2, 2, 1, 0

        with tempfile.TemporaryDirectory() as folder:
            count = Path(folder) / "count"
            script = f"echo x >> {count}; echo '{{\"time_us\": 1, \"bytes\": 4, \"wrong\": 0}}'"
            one = Command("t.tutti", "tutti", "t", "", (Process(("sh", "-c", script)),))
            good = '{"extra": {"oneway_ns": 50, "core_scaling": 2}}'
            probe = Command("p", "limit", "p", "", (Process(("echo", good)),))

            def measure():
                rounds = Rounds([one], [figure(SPEEDUP, 1, 1)], State(Path(folder), "id"), None,
                                probe, Settings, lambda text: None)
                rounds.run(float("inf"))
                return rounds

            self.assertEqual(measure().rounds, 2)
            with (Path(folder) / "samples.jsonl").open("a") as file:
                file.write('{"round": 7, "comm')  # where it was stopped
            self.assertEqual(measure().good_rounds(), 2)
            self.assertEqual(len(count.read_text().split()), 2)
            self.assertEqual(len(State(Path(folder), "another build").samples), 0)


class Screening(unittest.TestCase):
    @mock.patch("driver.rounds.Bystanders.share", lambda self: 0.0)
    def test_far_off_peers_and_ways_stay_out_of_later_rounds(self):
        class Settings:
            pairs, most_rounds, minutes, wait_s = 2, 2, 1, 0

        def program(name, times, **more):
            lines = "".join(f"echo '{{\"time_us\": {time}, \"bytes\": 4, \"wrong\": 0, "
                            f"\"way\": \"{way}\"}}';" for way, time in times.items())
            return Command(f"t.{name}", name, "t", "",
                           (Process(("sh", "-c", lines, "sh")),), **more)

        probe = Command("p", "limit", "p", "", (Process(
            ("echo", '{"extra": {"oneway_ns": 50, "core_scaling": 2}}')),))
        commands = [program("tutti", {"blocking": 1}),
                    program("openmpi", {"good": 10, "bad": 100}, ways_flag="--way"),
                    program("mpich", {"good": 50})]
        compared = Figure("f", "a figure", SPEEDUP, 1, 1, pick("t"), pick("t", ("openmpi", "mpich")),
                          points=({"bytes": 4},))
        with tempfile.TemporaryDirectory() as folder:
            rounds = Rounds(commands, [compared], State(Path(folder), "id"), None, probe, Settings,
                            lambda text: None)
            rounds.run(float("inf"))
            self.assertEqual(rounds.dropped, {"t.mpich", "t.openmpi bad"})
            second = [one for one in rounds.state.samples if one["round"] == 1]
            self.assertEqual([one["command"] for one in second], ["t.openmpi", "t.tutti"])
            self.assertIn("--way good", second[0]["text"])


class Table(unittest.TestCase):
    def test_every_figure_has_commands(self):
        for quick in (False, True):
            scope = Scope(quick)
            commands = Programs("/nowhere", "/nowhere", scope, Network("n")).commands
            keys = [one.key for one in commands]
            self.assertEqual(len(keys), len(set(keys)))
            for one in all_figures(scope):
                for selection in one.picks():
                    self.assertTrue(any(selection.takes_command(c) for c in commands), one.name)

    def test_another_process_runs_the_same_commands(self):
        # An interrupted run finds by a command's text that it was measured.
        def texts(pid):
            with mock.patch("os.getpid", lambda: pid):
                programs = Programs("/nowhere", "/nowhere", Scope(False), Network("n"))
                return [one.text() for one in programs.commands]

        self.assertEqual(texts(1), texts(2))

    def test_the_report_shows_every_row(self):
        facts = {"commit": "c", "mode": "quick", "date": "", "machine": "m", "rounds": 1,
                 "wanted_pairs": 1, "good_probes": 1, "probes": 1, "left_out": []}
        samples = [sample(OURS, 0, row("tutti", 10)), sample(FAST, 0, row("openmpi", 20))]
        evaluation = Evaluation(COMMANDS, samples, 1)
        rows = [evaluation.row(figure(SPEEDUP, 1, 1)), evaluation.row(figure(SHARE, 1, 1))]
        for text in (report.table(facts, rows), report.markdown(facts, rows)):
            self.assertIn("at least 1 (1)", text)
            self.assertIn("openmpi fast blocking", text)
        self.assertIn("not measured", plot.bandwidths(evaluation, facts))

    def test_words_of_other_programs_are_read(self):
        self.assertEqual(parse_demo("exposed 4.0 %\nexposed 2.0 %")[0]["extra"],
                         {"exposed_percent": 3.0})
        self.assertEqual(parse_demo("nothing"), [])
        text = "98% tests passed, 1 tests failed out of 50"
        self.assertEqual(parse_ctest(text)[0]["extra"], {"failed": 1, "tests": 50})

    def test_a_training_step_is_the_median_of_all_but_the_first(self):
        text = ("[0] step 0  loss 9.0  norm 1  900.0 ms\n[0] step 1  loss 8.0  norm 1  30.0 ms\n"
                "[0] step 2  loss 7.0  norm 1  10.0 ms\n[0] step 3  loss 6.0  norm 1  20.0 ms\n"
                "[0] 12 tokens/s, exposed 1.5 %\n")
        row = parse_training("gpt2", 2)(text)[0]
        self.assertEqual((row["time_us"], row["ranks"], row["wrong"]), (20e3, 2, 0))
        self.assertEqual(row["extra"], {"per_second": 12, "exposed_percent": 1.5})
        self.assertEqual(parse_training("gpt2", 2)("step 0  loss 9.0  norm 1  900.0 ms"), [])
        rising = parse_training("gpt2", 2)(text.replace("6.0", "10.0"))[0]
        self.assertEqual(rising["wrong"], 1)


if __name__ == "__main__":
    unittest.main()
