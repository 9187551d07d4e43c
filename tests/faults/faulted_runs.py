"""Jobs of 4 ranks in which something goes wrong on one, at a random moment: do they end, what do they leave?

    python tests/faults/faulted_runs.py [--runs 200] [--seconds 300] [--first 0] [--workers 2]

Run `i` draws, by the seed `i`, a command, a fault, a rank, and one of the moments that a run without a fault
counted (planted.py). It must end in 30 s ($FAULTS_LIMIT) with all its processes and another code than 0 (but
a training goes on without its log, and may end before a signal stops it), say so in words, and leave what
was there before, or what it makes, whole. Then the same command runs again, without a fault: its result
must be that of a run in a clean folder, with no other file beside. Prints a line for each run that is not as
it must be and a table; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import numpy as np

from distgnn import UserError, gallery
from distgnn.store import Store, checkpoint, prepare
from distgnn.store.importers import open_source
from distgnn.store.team import Team
from faults.planted import STARTED
from mpi_helpers.programs import clean_environment, launcher

RANKS, DRAWS = 4, 20
LIMIT = float(os.environ.get("FAULTS_LIMIT", "30"))  # seconds in which a run must end; more on a busy machine
HERE = Path(__file__).resolve().parent

TRAIN = "train g.dg --quiet --hidden 4 --epochs 2"
LADIES = "--sampler ladies --fanout 8,8 --batch-size 8 --partition-graph"
SAVE = f"{TRAIN} --checkpoint kept --checkpoint-every 1"
RESUME = SAVE.replace("--epochs 2", "--epochs 4")
SBM = "generate sbm graph --communities 3 --features 4"
#: What each starts from, its words, and what it makes.
COMMANDS = {
    "generate": ("", f"{SBM} --nodes 60", "graph"),
    "generate --force": ("graph", f"{SBM} --nodes 61 --force", "graph"),
    "prepare": ("graph", "prepare graph g.dg --order random,double --partition random:4", "g.dg"),
    "prepare --force": ("graph g.dg", "prepare graph g.dg --seed 1 --force", "g.dg"),
    "prepare, text": ("x.csv f.csv", "prepare x.csv g.dg --features f.csv --weights", "g.dg"),
    "prepare, npz": ("x.csv f.npz", "prepare x.csv g.dg --features f.npz", "g.dg"),
    "info": ("g.dg", "info g.dg --verify --ranks 4", ""),
    "train 1d": ("g.dg", f"{TRAIN} --sparsity-aware", ""),
    "train 2d": ("g.dg", f"{TRAIN} --algorithm 2d --verify", ""),
    "train 1.5d": ("g.dg", f"{TRAIN} --algorithm 1.5d --replication 2 --train-features", ""),
    "train, minibatches": ("g.dg", f"{TRAIN} {LADIES}", ""),
    "save": ("g.dg", SAVE, "kept"),
    "save --force": ("g.dg kept", f"{SAVE} --force", "kept"),
    "save --resume": ("g.dg kept log", f"{RESUME} --log log --resume", "kept log"),
    "predict": ("g.dg kept", "predict g.dg --quiet --checkpoint kept --out p.npz", "p.npz"),
    "export": ("kept", "export kept w.npz", "w.npz"),
    "log and trace": ("g.dg", f"{TRAIN} --log log --trace trace", "log trace"),
    "log and trace --force": ("g.dg log trace", f"{TRAIN} --log log --trace trace --force", "log trace"),
}  # fmt: skip
FAULTS = (
    "SIGKILL", "SIGTERM", "exit 3", "RuntimeError", "MemoryError", "KeyboardInterrupt", "ENOSPC", "EIO",
    "EFBIG", "ENOSPC write", "EIO write", "EFBIG write", "file size",
)  # fmt: skip
DISK = {
    "ENOSPC": "No space left",
    "EIO": "Input/output error",
    "EFBIG": "File too large",
    "file": "File too large",
}


@dataclass
class Job:
    """Outcome of a job."""

    code: int
    said: str
    seconds: float
    hangs: bool = False
    processes: list[str] = field(default_factory=list)


@dataclass
class Row:
    """A faulted run; `wrong`: what is not as it must be."""

    name: str
    command: str
    fault: str
    rank: int
    where: str
    seconds: float
    code: int
    after: str
    said: str
    wrong: list[str]


def job(folder: Path, words: str, **planted: Any) -> Job:
    """Run a command on all ranks in a folder, with temporary files in a folder of its own."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = {"TMPDIR": str(temporary), "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "DISTGNN_INIT_TIMEOUT": "10"}
    program = ["-m", "distgnn"]
    if planted:
        variables |= {"PLANTED": json.dumps({"folder": f"{folder}/", **planted})}
        variables |= {"FAILING_WRITE": str(folder.parent / "failing_write.so")}
        program = [str(HERE / "planted.py")]
    command = [launcher(), "-n", str(RANKS), sys.executable, *program, *words.split()]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
        env=clean_environment(**variables), start_new_session=True,
    )  # fmt: skip
    hangs, said = False, b""
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        hangs = True
    seconds, left = time.perf_counter() - start, remaining(temporary)
    for number in left:
        with contextlib.suppress(OSError):
            os.kill(int(number), signal.SIGKILL)
    if hangs:
        process.kill()
        said, _ = process.communicate()
    return Job(process.returncode, said.decode(errors="backslashreplace"), seconds, hangs, left)


def remaining(temporary: Path, patience: float = 3.0) -> list[str]:
    """List processes of a job that still run seconds after it ended, by the folder in their environment."""
    mark, end = f"TMPDIR={temporary}\0".encode(), time.monotonic() + patience
    while found := [name for name in os.listdir("/proc") if name.isdecimal() and _has(name, mark)]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return found


def _has(process: str, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{process}/environ").read_bytes() + b"\0"
    except OSError:
        return False


class Alone(Team):
    """A group of one rank, without MPI."""

    def share(self, thing: Any, root: int = 0) -> Any:
        return thing


def content(path: Path) -> Any:
    """Return the content of a whole output; None where the file is missing, "damaged" otherwise."""
    if not os.path.lexists(path):
        return None
    try:
        if path.name == "log":
            events = map(json.loads, path.read_text().splitlines())
            return [(event["epoch"], event["loss"]) for event in events if event["event"] == "epoch"]
        if path.name == "trace":
            return sorted({event["name"] for event in json.loads(path.read_text())["traceEvents"]})
        if path.name == "graph":
            return (
                {file.name: file.read_bytes() for file in path.iterdir()}
                if (path / "graph.json").exists()
                else "damaged"
            )
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return {name: arrays[name].tobytes() for name in arrays.files}
        if path.name == "g.dg":
            return Store(path, verify=True).manifest["id"]
        reader = checkpoint.load(path, Alone())  # type: ignore[arg-type]
        shapes = reader.shapes.items()
        arrays = {name: reader.piece(name, (0, rows), (0, cols)).tobytes() for name, (rows, cols) in shapes}
        return reader.meta["epoch"], arrays
    except (UserError, ValueError, KeyError, zipfile.BadZipFile) as error:
        return "unfinished" if path.name == "kept" and checkpoint.unfinished(path) else f"damaged ({error})"


def names(folder: Path) -> set[str]:
    """List all files below a folder; a checkpoint's without their generation."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return {re.sub(r"^kept/\d+-", "kept/N-", path) for path in paths}


class Trial:
    """All runs: the folder from which commands start, what each makes there, and the moments it comes to."""

    def __init__(self, folder: Path, commands: list[str]) -> None:
        self.folder, self.commands, self.base = folder, commands, folder / "base"
        self.base.mkdir()
        build(folder)
        self._make_base()
        self.made: dict[str, Any] = {}
        self.names: dict[str, set[str]] = {}
        self.moments: dict[str, list[dict[str, int]]] = {}
        self.writes: dict[str, list[int]] = {}
        self.largest: dict[str, int] = {}

    def _make_base(self) -> None:
        draw = np.random.default_rng(0)
        edges = draw.integers(0, 60, (300, 2))
        lines = [f"{source},{target},{1 + source % 3}" for source, target in edges.tolist()]
        (self.base / "x.csv").write_text("source,target,weight\n" + "\n".join([*lines, "59,0,1"]) + "\n")
        features = draw.random((60, 5), np.float32)
        np.savetxt(self.base / "f.csv", features, delimiter=",")
        np.savez_compressed(self.base / "f.npz", features=features)
        needed = {item for command in self.commands for item in COMMANDS[command][0].split()}
        gallery.write(gallery.PlantedPartition(60, communities=3, features=4), self.base / "graph")
        prepare(open_source(self.base / "graph"), self.base / "g.dg")
        if needed & {"kept", "log", "trace"}:
            done = job(self.base, f"{SAVE} --log log --trace trace")
            assert done.code == 0, done.said
            shutil.rmtree(self.base / "tmp")

    def start(self, name: str, command: str) -> Path:
        """Make a new folder with the files that a command starts from."""
        folder = self.folder / name
        folder.mkdir()
        for item in COMMANDS[command][0].split():
            source = self.base / item
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / item)
        return folder

    def make(self, command: str, **planted: Any) -> Path:
        """Run it without a fault, to know what it makes; returns where."""
        folder = self.start(f"whole-{[*COMMANDS].index(command)}", command)
        done = job(folder, COMMANDS[command][1], **planted)
        assert done.code == 0, done.said
        self.made[command] = [content(folder / item) for item in COMMANDS[command][2].split()]
        self.names[command] = names(folder)
        return folder

    def count(self, command: str) -> None:
        """Make the files of a command, and record the moments of its ranks."""
        mark = str(self.folder / f"seen-{[*COMMANDS].index(command)}")
        folder = self.make(command, mark=mark)
        seen = [json.loads(Path(f"{mark}.{rank}").read_text()) for rank in range(RANKS)]
        calls = {where: times for where, times in seen[1].items() if ":" in where}
        self.moments[command] = [found | (calls if rank > 1 else {}) for rank, found in enumerate(seen)]
        counts = (Path(f"{mark}.{rank}.writes") for rank in range(RANKS))
        self.writes[command] = [int(path.read_text()) if path.exists() else 0 for path in counts]
        outputs = [folder / item for item in COMMANDS[command][2].split()]
        files = [file for path in outputs for file in [path, *path.rglob("*")] if file.is_file()]
        self.largest[command] = max((file.stat().st_size for file in files), default=0)

    def drawn(self, draw: random.Random, command: str, fault: str) -> dict[str, Any] | None:
        """Draw a moment of this fault in this command; None if it has none."""
        ranks = list(range(RANKS))
        if fault == "file size":
            size = int(self.largest[command] * draw.random() ** 2)
            return {"rank": draw.choice(ranks), "size": size, "where": STARTED, "nth": 1}
        if fault.endswith(" write"):
            ranks = [rank for rank in ranks if self.writes[command][rank]]
            if not ranks:
                return None
            rank = draw.choice(ranks)
            return {"rank": rank, "where": "write", "nth": 1 + draw.randrange(self.writes[command][rank])}
        changes = fault in DISK or draw.random() < 0.4
        moments = self.moments[command]
        found = [[where for where in moments[rank] if (":" not in where) == changes] for rank in ranks]
        ranks = [rank for rank in ranks if found[rank]]
        if not ranks:
            return None
        rank = draw.choice(ranks)
        where = draw.choice(sorted(found[rank]))
        return {"rank": rank, "where": where, "nth": 1 + draw.randrange(self.moments[command][rank][where])}

    def draw(self, number: int, only: str = "") -> Row | None:
        """Run the faulted run of this number; None if its faults have no moment in its commands."""
        draw = random.Random(number)
        for attempt in range(DRAWS):
            command = draw.choice(self.commands)
            fault = draw.choice([fault for fault in FAULTS if fault.startswith(only)])
            spec = self.drawn(draw, command, fault)
            row = None if spec is None else self.run(f"{number}-{attempt}", command, fault, spec)
            if row is not None:
                return row
        return None

    def run(self, name: str, command: str, fault: str, spec: dict[str, Any]) -> Row | None:
        """Run a faulted run and the next one; None if it did not come to that moment this time."""
        folder, mark = self.start(f"run-{name}", command), self.folder / f"mark-{name}"
        outputs = [folder / item for item in COMMANDS[command][2].split()]
        before = [content(path) for path in outputs]
        done = job(folder, COMMANDS[command][1], fault=fault, mark=str(mark), **spec)
        if not mark.exists() and not (done.code and "size" in spec):
            shutil.rmtree(folder)
            return None
        after = [content(path) for path in outputs]
        trains = COMMANDS[command][1].startswith("train")
        wrong = [*ending(done, fault, trains), *self.left(command, before, after)]
        wrong += self.next(command, folder)
        if not wrong:
            shutil.rmtree(folder)
        where = f"{spec['size']} bytes" if "size" in spec else f"{mark.read_text()} ({spec['nth']})"
        kind = state(before, after, self.made[command])
        return Row(name, command, fault, spec["rank"], where, done.seconds, done.code, kind, done.said, wrong)

    def left(self, command: str, before: list[Any], after: list[Any]) -> Iterator[str]:
        """Return the problems with the files that a faulted run left."""
        for item, old, now, new in zip(
            COMMANDS[command][2].split(), before, after, self.made[command], strict=True
        ):
            whole = now in (old, new)
            if item == "kept" and not whole:  # saved after another epoch than the last
                whole = isinstance(now, tuple) or (now == "unfinished" and not isinstance(old, tuple))
            if item == "log" and isinstance(now, list):  # as far as it came
                whole = now == [*(old or [])][: len(now)] or now == new[: len(now)]
            if not whole:
                yield f"{item} is neither the old one nor the new one: {str(now)[:200]}"

    def next(self, command: str, folder: Path) -> Iterator[str]:
        """Return the problems after the same command has run again."""
        words = COMMANDS[command][1]
        if "--resume" in words and isinstance(saved := content(folder / "kept"), tuple):
            if saved[0] == 4:  # it came to its end, so the next goes on from the old one
                shutil.rmtree(folder / "kept")
                shutil.copytree(self.base / "kept", folder / "kept")
        elif (
            any((folder / item).exists() for item in COMMANDS[command][2].split()) and "--force" not in words
        ):
            words += " --force"
        done = job(folder, words)
        if done.code:
            yield f"the next run: code {done.code}, {done.said[-300:]}"
            return
        now = [content(folder / item) for item in COMMANDS[command][2].split()]
        if now != self.made[command]:
            yield "the next run made something else"
        stray = names(folder) - self.names[command]
        if stray:
            yield f"stray files: {', '.join(sorted(stray))}"
        if missing := self.names[command] - names(folder):
            yield f"missing files: {', '.join(sorted(missing))}"


def ending(done: Job, fault: str, trains: bool = False) -> Iterator[str]:
    """Return the problems with the end of a faulted run, and with its messages.

    A training outlives its log, and a signal that comes after its last update but one.
    """
    lost = trains and "this log is incomplete" in done.said
    if done.hangs:
        yield f"hangs: not over after {LIMIT:g} s"
    elif done.processes:
        yield f"{len(done.processes)} processes left"
    if done.code == 0 and not (lost or (trains and fault == "SIGTERM")):
        yield "code 0"
    if not done.said.isprintable() and any(not (c.isprintable() or c in "\n\t") for c in done.said):
        yield "says what does not print"
    word = fault.split()[0]
    ours = [line for line in done.said.splitlines() if line.startswith("distgnn: ") and "warning" not in line]
    if word in DISK and not lost:
        if "Traceback" in done.said or len(ours) != 1 or not ours[0].startswith("distgnn: error: "):
            yield "a disk error is not one line"
        elif DISK[word] not in ours[0]:
            yield "the line does not say which disk error"
    elif fault in ("RuntimeError", "MemoryError", "KeyboardInterrupt"):
        explained = len(ours) == 1 and ours[0].startswith("distgnn: error: ")  # such as too little memory
        if not explained and not any(re.search(r"rank \d on host \S+", line) for line in ours):
            yield "names no rank and host"


def state(before: list[Any], after: list[Any], made: list[Any]) -> str:
    """Describe the state that a faulted run left, in a word."""
    if not after:
        return "-"
    if after == before:
        return "nothing" if before == [None] * len(before) else "old"
    return "new" if after == made else "between"


def build(folder: Path) -> None:
    """Compile the library that lets writes fail, where there is a compiler."""
    library = str(folder / "failing_write.so")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler:
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, str(HERE / "failing_write.c"), "-ldl"]
        subprocess.run(command, check=True)


def trial(
    folder: Path, numbers: range, commands: list[str], workers: int, only: str = "", seconds: float = math.inf
) -> list[Row]:
    """Do the faulted runs of these numbers, and start none after so many seconds; after an interrupt, return
    those that have ended.
    """
    runs, rows = Trial(folder, commands), []

    pool = ThreadPoolExecutor(workers)
    try:
        list(pool.map(runs.count, commands))
        end = time.monotonic() + seconds

        def in_time(number: int) -> Row | None:
            return runs.draw(number, only) if time.monotonic() < end else None

        for ended in as_completed([pool.submit(in_time, number) for number in numbers]):
            if (row := ended.result()) is not None:
                rows.append(row)
                show(row)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
    pool.shutdown(cancel_futures=True)
    return rows


def show(row: Row) -> None:
    """Print a line about a run, and its output if there is a fault."""
    what = f"{row.name}: {row.command}, {row.fault} on rank {row.rank} at {row.where}: code {row.code}"
    wrong = f"; {'; '.join(row.wrong)}\n{row.said[-1500:]}" if row.wrong else ""
    print(f"{what}, {row.seconds:.1f} s, {row.after}{wrong}", file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    """Write the table of runs by command and fault, and of their ends."""
    lines = ["| command | " + " | ".join(FAULTS) + " | runs |", "|---" * (len(FAULTS) + 2) + "|"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row.command][row.fault] += 1
        counts["all"][row.fault] += 1
    for command in [*COMMANDS, "all"]:
        if command in counts:
            numbers = [counts[command][fault] for fault in FAULTS]
            lines.append(f"| {command} | {' | '.join(map(str, numbers))} | {sum(numbers)} |")
    wrong = {
        word: sum(any(word in text for text in row.wrong) for row in rows) for word in ("hangs", "stray")
    }
    zero, bad = sum(row.code == 0 for row in rows), sum(bool(row.wrong) for row in rows)
    longest = max((row.seconds for row in rows), default=0)
    left = Counter(row.after for row in rows if row.after != "-")
    lines += ["", f"{len(rows)} faulted runs: {wrong['hangs']} hangs (the longest took {longest:.1f} s), "]
    lines[-1] += (
        f"{wrong['stray']} with stray files after the next run, {zero} with code 0, {bad} with anything "
    )
    lines[-1] += f"wrong. Left: {', '.join(f'{kind} {count}' for kind, count in sorted(left.items()))}"
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no run after so many")
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--workers", type=int, default=2, help="jobs at a time")
    parser.add_argument("--only", default="", help="faults that begin with this")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="only these commands")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.runs)
    with tempfile.TemporaryDirectory() as folder:
        commands = given.command or [*COMMANDS]
        rows = trial(Path(folder), numbers, commands, given.workers, given.only, given.seconds)
    print(table(rows))
    return any(row.wrong for row in rows)


if __name__ == "__main__":
    sys.exit(main())
