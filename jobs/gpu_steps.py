"""Steps of ``gpu_check.py``: commands with limits of time, run side by side or alone, and their outcomes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
Command = list[str]
SHORTEST = 5.0  # seconds: a step that would have fewer left is not begun


@dataclass
class Machine:
    """Equipment of this machine.

    Attributes:
        about: lines for the report.
        missing: by what steps need, why it is not here.
    """

    about: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class Step:
    """Commands, one after the other until one fails, in `seconds` altogether.

    Attributes:
        cores: how many it keeps busy, beside other steps; 0: it runs alone, as it is timed.
        needs: names in `Machine.missing`, without any of which the step is skipped.
    """

    name: str
    seconds: float
    commands: list[Command]
    cores: int = 0
    env: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


class Running:
    """A step under way. Its output goes to a log, which the next step of this name goes on with."""

    def __init__(self, step: Step, env: dict[str, str], log: Path, end: float) -> None:
        self.step, self.env, self.log = step, env | step.env, log
        self.started = time.monotonic()
        self.deadline = min(end, self.started + step.seconds)
        log.touch()
        self.begin, self.output = log.stat().st_size, open(log, "ab", 0)
        self.left, self.problem = list(step.commands), ""
        self.process: subprocess.Popen[bytes] | None = None

    def over(self) -> bool:
        """Start the next command where none runs; tell whether the step is over."""
        if self.process is None:
            if self.problem or not self.left:
                self.output.close()
                return True
            self.process, self.problem = started(self.left.pop(0), self.env, self.output)
            return False
        code = self.process.poll()
        if code is None and time.monotonic() > self.deadline:
            end(self.process)
            self.process, self.problem = None, "over its time"
        elif code is not None:
            self.process, self.problem = None, f"exit status {code}" if code else ""
        return False

    def verdict(self) -> str:
        return f"{self.step.name}: {self.problem or 'passed'}, {time.monotonic() - self.started:.0f} s"


def started(
    command: Command, env: dict[str, str], output: IO[bytes] | int
) -> tuple[subprocess.Popen[bytes] | None, str]:
    """Start a command in a session of its own; what went wrong, or ""."""
    if not isinstance(output, int):
        output.write(f"$ {shlex.join(command)}\n".encode())
    try:
        given = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=env, cwd=ROOT, start_new_session=True, **given), ""
    except OSError as error:
        return None, f"{command[0]}: {error.strerror}"


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it and all that it started to end, so that pytest says what failed and a launcher ends its ranks;
    then make them.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


class Check:
    """Runs steps; tells the terminal and the report what became of each.

    Args:
        end: the moment (of ``time.monotonic``) at which the last step must have ended.
        cores: of this machine.
    """

    def __init__(
        self, report: Path, env: dict[str, str], machine: Machine, end: float, cores: int | None = None
    ) -> None:  # fmt: skip
        self.report, self.env, self.machine, self.end = report, env, machine, end
        self.cores = cores or len(os.sched_getaffinity(0))
        self.failed, self.skipped, self.passed = list[str](), list[str](), 0

    def run(self, steps: list[Step]) -> int:
        """Run the steps in their order, side by side while there are cores; return the exit status."""
        begun, waiting, running = time.monotonic(), list(steps), list[Running]()
        try:
            while waiting or running:
                while waiting and self._room(waiting[0], running):
                    running += self._begun(waiting.pop(0))
                time.sleep(0.05)
                for one in [one for one in running if one.over()]:
                    running.remove(one)
                    self._finished(one)
        finally:
            for one in running:
                if one.process is not None:
                    end(one.process)
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        problems = (f"- {line}" for line in self.failed + self.skipped)
        took = f"{time.monotonic() - begun:.0f} s"
        self.say(f"\n## {self.passed} of {len(steps)} steps passed{skipped}, {took}\n", *problems)
        return int(bool(self.failed))

    def _room(self, step: Step, running: list[Running]) -> bool:
        """Tell whether a step can begin beside those that run; a larger one than the machine runs alone."""
        if not step.cores or not all(one.step.cores for one in running):
            return not running
        return not running or step.cores + sum(one.step.cores for one in running) <= self.cores

    def _begun(self, step: Step) -> list[Running]:
        missing = self.machine.missing
        if why := [missing[need] for need in step.needs if need in missing]:
            self.skipped.append(f"{step.name}: skipped: {why[0]}")
            self.say(f"\n## {self.skipped[-1]}\n")
            return []
        if self.end - time.monotonic() < SHORTEST:
            self.failed.append(f"{step.name}: not run: no time is left")
            self.say(f"\n## {self.failed[-1]}\n")
            return []
        print(f"--- {step.name}", flush=True)
        return [Running(step, self.env, self.report.with_name(f"{step.name}.log"), self.end)]

    def _finished(self, one: Running) -> None:
        verdict = one.verdict()
        self.passed += not one.problem
        self.failed += [f"{verdict}, {one.log}"] if one.problem else []
        if not one.step.cores:
            print(text_of(one.log, one.begin), flush=True)
        lines = outcome(one.log, one.begin, bool(one.problem))
        self.say(f"\n## {verdict}\n", *(f"    {line}" for line in lines))

    def say(self, *lines: str) -> None:
        text = "\n".join(lines) + "\n"
        print(text, flush=True)
        with open(self.report, "a") as file:
            file.write(text)


OUTCOME = re.compile(
    r"FAILED |ERROR |the budget is spent|.*\d (passed|failed|errors?|skipped)\b.* in [\d.]+s"  # pytest
    r"|check: |epoch [\d.]+ s \(median|algorithm +grid|[\w.-]+ +(\dx?)+  |.* algorithms "  # train and demo
    r"|compiled \d|========= ERROR SUMMARY"
)


def text_of(log: Path, begin: int) -> str:
    with open(log, errors="replace") as file:
        file.seek(begin)
        return file.read()


def outcome(log: Path, begin: int, failed: bool) -> list[str]:
    """Return the lines of the log that say how it went, and the last ones where it failed."""
    lines = text_of(log, begin).splitlines()
    kept = [line for line in lines if OUTCOME.match(line)][:40]
    return kept + [line for line in lines[-12:] if failed and line not in kept]
