"""Runs the processes of one measurement and returns the rows that they printed."""

import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Process:
    argv: tuple
    env: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One measurement. Commands of the same topic and group run directly after each other."""

    key: str
    program: str
    topic: str
    group: str
    processes: tuple  # started together; one of them prints the rows
    variant: str = ""
    network: str = ""  # "", "namespaces" or "shaped": the network that must be made first
    timeout_s: float = 90
    rounds: int = 0  # number of rounds in which it runs; 0: all rounds
    parse: object = None  # converts stdout to rows, for a program that prints no JSON
    fault: str = ""  # why it cannot run here
    ways_flag: str = ""  # flag before the list of the ways that it measures; "": it has one way

    def text(self):
        """Returns the command line that a reader can type in the current folder."""
        words = []
        for process in self.processes:
            settings = [f"{name}={value}" for name, value in sorted(process.env.items())]
            words.append(" ".join(settings + list(process.argv)))
        return " & ".join(words).replace(f"{os.getcwd()}/", "")

    def narrowed(self, ways):
        def narrow(argv):
            rest = list(argv)
            if self.ways_flag in rest:
                at = rest.index(self.ways_flag)
                del rest[at:at + 2]
            return (*rest, self.ways_flag, ",".join(sorted(ways)))

        return replace(self, processes=tuple(Process(narrow(one.argv), one.env)
                                             for one in self.processes))


def parse_rows(text):
    rows = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ValueError(f"not a row: {line[:80]}: {error}") from error
    return rows


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def end_group(process):
    """Kills the process group of a program, which contains everything that the program started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(command):
    """Returns the rows, and the reason if there are none."""
    if command.fault:
        return [], command.fault
    started, outputs = [], []
    deadline = time.monotonic() + command.timeout_s
    fault = ""
    try:
        for process in command.processes:
            # The output goes to files instead of pipes, so that it need not be read while the
            # programs run.
            out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
            outputs.append((out, err))
            started.append(
                subprocess.Popen(
                    process.argv,
                    env={**os.environ, **process.env},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            )
        for process in started:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        fault = f"not done within {command.timeout_s:.0f} s"
    except OSError as error:
        fault = str(error)
    finally:
        for process in started:
            end_group(process)
            process.wait()
    texts = []
    for out, err in outputs:
        out.seek(0), err.seek(0)
        texts.append((out.read(), err.read()))
        out.close(), err.close()
    if not fault:
        for process, (_, err) in zip(started, texts):
            if process.returncode != 0:
                fault = f"exit code {process.returncode}: {last_line(err)}"
                break
    try:
        rows = []
        for out, _ in texts:
            rows += (command.parse or parse_rows)(out)
    except ValueError as error:
        return [], str(error)
    # A program that counted wrong results prints its rows and then ends with an error code. Its
    # rows are valid.
    if fault and not rows:
        return [], fault
    return rows, "" if rows else "it printed no rows"
