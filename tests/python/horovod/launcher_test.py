"""python -m tutti.horovodrun translates horovodrun's flags to those of tutti-run."""

import os
import subprocess
import sys
import tempfile
import unittest

from tutti import horovodrun


def translated(*words):
    made = horovodrun.parser()
    return horovodrun.arguments_of(made.parse_args(words), made)


def ran(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tutti.horovodrun", *words], capture_output=True, text=True,
        timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip


class Flags(unittest.TestCase):
    def test_ranks_hosts_and_how_to_reach_them(self):
        self.assertEqual(
            translated("-np", "4", "-H", "a:2,b:2", "python", "x.py", "-np", "9"),
            ["-np", "4", "--hosts", "a:2,b:2", "python", "x.py", "-np", "9"],
        )
        got = translated("--num-proc", "2", "-p", "22", "-i", "key", "--gloo", "--", "x")
        self.assertEqual(got, ["-np", "2", "--rsh", "ssh -o BatchMode=yes -p 22 -i key", "x"])
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("a slots=3\n# none\nb:2\nc\n")
            file.flush()
            self.assertEqual(
                translated("-hostfile", file.name, "x"), ["--hosts", "a:3,b:2,c", "x"]
            )

    def test_settings(self):
        got = translated(
            "-np", "1", "--fusion-threshold-mb", "2", "--cache-capacity", "7", "--start-timeout",
            "9", "--log-level", "TRACE", "--stall-check-warning-time-seconds", "5",
            "--stall-check-shutdown-time-seconds", "6", "--network-interfaces", "eth0,eth1",
            "--timeline-filename", "t.json", "--output-filename", "out", "--min-np", "1", "x",
        )  # fmt: skip
        settings = {got[at + 1] for at, word in enumerate(got) if word == "--env"}
        self.assertEqual(
            settings,
            {
                "TUTTI_CONNECT_TIMEOUT=9", "TUTTI_CACHE_CAPACITY=7", "TUTTI_STALL_WARNING=5",
                "TUTTI_OPERATION_TIMEOUT=6", "TUTTI_FUSION_BYTES=2097152", "TUTTI_LOG=debug",
            },
        )  # fmt: skip
        self.assertIn("--keep-going", got)
        self.assertEqual(got[got.index("--interface") + 1], "eth0")
        self.assertEqual(got[got.index("--timeline") + 1], "t.json")
        self.assertEqual(got[got.index("--output") + 1], "out")
        self.assertIn("TUTTI_CACHE_CAPACITY=0", translated("-np", "1", "--disable-cache", "x"))
        quiet = translated("-np", "1", "--no-stall-check", "--log-level", "ERROR", "x")
        self.assertIn("TUTTI_LOG=error", quiet)

    def test_a_config_file(self):
        try:
            import yaml  # noqa: F401
        except ImportError:
            self.assertIn("python3-yaml", ran("--config-file", os.devnull, "-np", "1", "x").stderr)
            return
        made = horovodrun.parser()
        settings = made.parse_args(["-np", "1", "x"])
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("verbose: true\nparams:\n  fusion-threshold-mb: 3\n"
                       "timeline:\n  filename: t.json\n")  # fmt: skip
            file.flush()
            horovodrun.read_config(file.name, settings, made)
        self.assertTrue(settings.verbose)
        self.assertEqual((settings.fusion_threshold_mb, settings.timeline_filename), (3, "t.json"))

    def test_what_cannot_be_had_says_so_in_one_line(self):
        for flag, text in (
            (["--host-discovery-script", "x"], "give -H or --hostfile"),
            (["--slots-per-host", "2"], "give -H a:2,b:2"),
            (["--max-np", "4"], "no rank is added"),
            (["--reset-limit", "4"], "resets end by themselves"),
            (["--elastic-timeout", "4"], "nothing waits for new ranks"),
            (["--autotune"], "nothing to tune by trial"),
            (["--jsrun"], "jsrun is not known"),
            (["--tcp"], "TUTTI_BACKEND=tcp"),
        ):
            got = ran("-np", "1", *flag, "true")
            self.assertEqual(got.returncode, 2)
            self.assertIn(text, got.stderr.splitlines()[-1])
        self.assertIn("no command", ran("-np", "1").stderr)
        self.assertIn("-np is needed", ran("true").stderr)

    def test_it_runs_the_ranks(self):
        got = ran("-np", "2", "--verbose", "--cycle-time-ms", "1", sys.executable, "-c",
                  "import tutti.torch as hvd; hvd.init(); print('rank', hvd.rank(), hvd.size())",
                  HOROVOD_TIMELINE="t.json", HOROVOD_CYCLE_TIME="1")  # fmt: skip
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("rank 1 2", got.stdout)
        self.assertIn("tutti-run -np 2", got.stderr)
        self.assertIn("Tutti has no cycles", got.stderr)
        strangers = "HOROVOD_CYCLE_TIME, HOROVOD_TIMELINE: set, but not used; their replacements"
        self.assertEqual((got.stdout + got.stderr).count(strangers), 1)  # by rank 0
        self.assertIn("tutti-doctor", ran("--check-build").stdout)
        self.assertRegex(ran("--version").stdout, r"^tutti \d")


if __name__ == "__main__":
    unittest.main()
