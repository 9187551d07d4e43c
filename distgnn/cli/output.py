"""Messages of a command beside its result: warnings and progress, on stderr and in files of the ranks.

Results alone go to stdout.

=========  ===========================================================================================
-q         errors only
(neither)  warnings, of any rank; on rank 0 progress: a bar on a terminal, else a line every few seconds
-v         also INFO of rank 0: what was chosen, read and written, and the seconds of each stage
--log-dir  a file per rank with all that and DEBUG: what this rank was given, its seconds and words by epoch
=========  ===========================================================================================
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from distgnn import stages
from distgnn.comm.launch import launched
from distgnn.errors import ArgumentError, UserError
from distgnn.stages import Stage
from distgnn.terminal import printable, show, write

EVERY = 5.0  # seconds between lines, at least; of long work a fiftieth of the time that it has taken
DELAY = 1.0  # seconds after which a bar appears
FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s rank {rank} %(name)s: %(message)s"

log = logging.getLogger("distgnn.cli")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a command its ``-v``, ``-q`` and ``--log-dir``."""
    add = parser.add_argument_group("messages").add_argument
    add("-v", "--verbose", action="store_true", help="say what is chosen, read and written")
    add("-q", "--quiet", action="store_true", help="print nothing but errors and what was asked for")
    add("--log-dir", metavar="DIR", help="write what each rank does to DIR/rank-NNNN.log")


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[None]:
    """Send messages and progress, inside the context, where the command line says.

    Raise ArgumentError if a log can't be written.
    """
    rank, package = launched()[1], logging.getLogger("distgnn")
    handlers: list[logging.Handler] = [_on_stderr(args, rank)]
    if args.log_dir:
        handlers.append(_in_file(Path(args.log_dir), rank))
    before = package.level
    package.setLevel(min(handler.level for handler in handlers))
    for handler in handlers:
        package.addHandler(handler)
    with ExitStack() as stack:
        if rank == 0 and not args.quiet:
            stack.enter_context(watching(sys.stderr))
        try:
            log.info("%s begins: %s", args.command, " ".join(sys.argv[1:]))
            yield
            log.info("%s is done", args.command)
        except UserError as error:
            log.error("%s", error)
            raise
        except BaseException:
            log.critical("%s failed", args.command, exc_info=True)
            raise
        finally:
            package.setLevel(before)
            for handler in handlers:
                package.removeHandler(handler)
                handler.close()


def _on_stderr(args: argparse.Namespace, rank: int) -> logging.Handler:
    """Add a handler for stderr. The command line prints a line of an error itself."""
    handler = _OnStderr()
    level = logging.INFO if args.verbose and rank == 0 else logging.WARNING
    handler.setLevel(logging.ERROR if args.quiet else level)
    handler.addFilter(lambda record: record.levelno < logging.ERROR)
    whose = f"rank {rank}: " if rank else ""
    handler.setFormatter(_Line(f"distgnn: %(level)s: {whose}%(message)s"))
    return handler


class _OnStderr(logging.Handler):
    """A handler of messages that people read at once."""

    def emit(self, record: logging.LogRecord) -> None:
        show(self.format(record), error=True)


class _Line(logging.Formatter):
    """A formatter of messages as one line each; `level` is in small letters, as compilers write it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        return printable(super().formatMessage(record))


def _in_file(folder: Path, rank: int) -> logging.Handler:
    """Add a handler that appends to a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler = _RankFile(folder / f"rank-{rank:04d}.log", encoding="utf-8")
    except OSError as error:
        raise ArgumentError("log_dir", folder, f"cannot write it ({error.strerror})") from None
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(_Line(FORMAT.format(rank=rank), "%Y-%m-%dT%H:%M:%S"))
    return handler


class _RankFile(logging.FileHandler):
    """A file of messages, which ends with a warning where the disk takes no more."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self.setLevel(logging.CRITICAL + 1)
            log.warning("%s: this log is incomplete (%s)", self.baseFilename, error.strerror)
        else:
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written before
            super().close()


@contextmanager
def watching(stream: IO[str]) -> Iterator[None]:
    """Show stages on a stream: bars on a terminal, else lines."""
    if stream.isatty():
        with stages.watched(Bars(stream)):
            yield
        return
    lines = Lines(stream)
    with stages.watched(lines), lines.ticking():
        yield


class Bars:
    """A bar for each stage, where it stays for more than a moment."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.bars: dict[int, Any] = {}

    def begun(self, stage: Stage) -> None:
        from tqdm import tqdm

        many = stage.unit == "B" or (stage.total or 0) > 10_000
        self.bars[id(stage)] = tqdm(
            total=stage.total, desc=stage.name, unit=stage.unit if stage.unit == "B" else f" {stage.unit}",
            unit_scale=many, file=self.stream, leave=False, delay=DELAY,
            dynamic_ncols=True,
        )  # fmt: skip

    def advanced(self, stage: Stage) -> None:
        if (bar := self.bars.get(id(stage))) is not None:
            if stage.note:
                bar.set_postfix_str(stage.note, refresh=False)
            bar.update(stage.done - bar.n)

    def ended(self, stage: Stage) -> None:
        if (bar := self.bars.pop(id(stage), None)) is not None:
            bar.close()
            if stage.stopped and stage.seconds >= DELAY:
                write(self.stream, f"distgnn: {outcome(stage)}")


class Lines:
    """A line of the innermost stage now and then, and one when a stage is over that had some."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream, self.every = stream, EVERY
        self.open: list[Stage] = []
        self.told: set[int] = set()
        self.last = time.monotonic()
        self.lock = threading.RLock()

    def begun(self, stage: Stage) -> None:
        with self.lock:
            self.open.append(stage)

    def advanced(self, stage: Stage) -> None:
        with self.lock:
            due = max(self.every, stage.seconds / 50)
            quiet = min(stage.seconds, time.monotonic() - self.last)  # seconds since this or another spoke
            if quiet >= due and stage is self.open[-1]:
                self._say(stage, describe(stage))

    def ended(self, stage: Stage) -> None:
        with self.lock:
            self.open.remove(stage)
            if id(stage) in self.told:
                self.told.discard(id(stage))
                self._say(stage, outcome(stage))

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Tell also how long a stage lasts that does not advance by itself."""
        over = threading.Event()

        def tick() -> None:
            while not over.wait(self.every / 4):
                with self.lock:
                    if self.open:
                        self.advanced(self.open[-1])

        thread = threading.Thread(target=tick, name="distgnn progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _say(self, stage: Stage, text: str) -> None:
        self.told.add(id(stage))
        self.last = time.monotonic()
        write(self.stream, f"distgnn: {text}")


def describe(stage: Stage) -> str:
    """Write ``write shards: 43 %, 1.2M entries/s, 12 s left``."""
    parts, spent = [], stage.seconds
    rate = stage.done / spent if spent else 0.0
    if stage.total:
        parts.append(f"{min(stage.done / stage.total, 1.0):.0%}")
    elif stage.done:
        parts.append(amounts(stage.done, stage.unit))
    if rate:
        parts.append(f"{amounts(rate, stage.unit)}/s")
    if stage.total and rate:
        parts.append(f"{lasting(max(stage.total - stage.done, 0) / rate)} left")
    else:
        parts.append(f"{lasting(spent)} so far")
    return f"{stage.name}: {', '.join(parts)}" + (f"; {stage.note}" if stage.note else "")


def outcome(stage: Stage) -> str:
    """Write the end of a stage: ``read: done, 10k lines in 17 s``; or that it stopped."""
    total = amounts(stage.total or 0, "B" if stage.unit == "B" else "")
    share = f" of {total}" if stage.stopped and stage.total else ""
    amount = f"{amounts(stage.done, stage.unit)}{share} in " if stage.done else ""
    return f"{stage.name}: {'stopped' if stage.stopped else 'done'}, {amount}{lasting(stage.seconds)}"


def amounts(count: float, unit: str) -> str:
    """Return a count with its unit: ``4.5 MiB``, ``10k edges``."""
    from distgnn.report.numbers import short, size

    return size(count) if unit == "B" else f"{short(count)} {unit}".strip()


def lasting(seconds: float) -> str:
    from distgnn.report import numbers

    return numbers.seconds(float(round(seconds)))
