"""Trainings that are preempted at random moments and resumed: are they the ones that nobody preempted?

    python benchmarks/faults/preemption.py [--preemptions 30] [--kills 1] [--seconds 600] [--first 0]

A trial draws, by its seed, a training, a number of ranks, and for each of its launches a moment, one of the
signals SIGTERM, SIGUSR1 and SIGINT, and whom it reaches: one rank, all ranks, or mpiexec, which passes it on.
A launch that gets it must save, and end with code 75 within 30 s; the next one resumes, until one ends with
0. Losses, scores and step sizes of all epochs, and every byte of the last checkpoint, must be those of a
training that was never preempted. Then the last launch is repeated as often as --kills says, and killed
(SIGKILL) after its last save: resumed it must end with 0 and change nothing. Prints a table; exits with 1 if
anything is wrong. Trainings take --no-tune-gemm, as forms of products that are chosen by time round apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 30.0  # seconds in which a launch must end after its signal
STOPPED = 75  # the exit code of a training that was asked to stop
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
SAGE = "--sampler sage --fanout 5,5 --batch-size 64 --batches-per-update 4 --eval-every 2"
TRAININGS = {
    "1d": "--algorithm 1d --epochs 60",
    "2d": "--algorithm 2d --epochs 60 --schedule plateau:5,0.5",
    "1.5d": "--algorithm 1.5d --replication 2 --epochs 60 --train-features",
    "3d": "--algorithm 3d --epochs 60 --residual --hidden 16,16",
    "minibatches": f"{SAGE} --epochs 6",
    "minibatches, graph cut": f"{SAGE} --epochs 6 --partition-graph --replication 2 --bulk 2",
}


@dataclass
class Row:
    """A trial: the signals of its launches and whom they reached, seconds of the longest end, and what is
    wrong.
    """

    training: str
    ranks: int
    reached: list[str] = field(default_factory=list)
    within: int = 0  # an epoch
    longest: float = 0.0
    killed: int = 0  # after the last save, before the end
    wrong: list[str] = field(default_factory=list)


class Trial:
    """A training in a folder of its own, launched again and again."""

    def __init__(self, folder: Path, store: Path, flags: str, ranks: int) -> None:
        self.folder, self.ranks = folder, ranks
        self.words = f"train {store} --quiet --seed 1 --no-tune-gemm {flags}".split()

    def start(self, name: str, more: str = "") -> subprocess.Popen[str]:
        """Launch the training on its files NAME.log and NAME, from the checkpoint if there is one."""
        files = ["--checkpoint", name, "--log", f"{name}.log", *more.split()]
        if (self.folder / name / "manifest.json").exists():
            files.append("--resume")
        else:  # stopped before its first update
            (self.folder / f"{name}.log").unlink(missing_ok=True)
        beside = Path(sys.executable).with_name("mpiexec")  # of the MPI of this Python
        mpiexec = os.environ.get("MPIEXEC") or str(beside if beside.exists() else "mpiexec")
        command = [mpiexec, "-n", str(self.ranks), sys.executable, "-m", "distgnn", *self.words, *files]
        variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
        variables |= {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            command, cwd=self.folder, env=os.environ | variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the whole lines of a log."""
        path = self.folder / f"{name}.log"
        lines = path.read_text().splitlines(True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def numbers(self, name: str) -> list[dict[str, Any]]:
        """Return what a log says of each epoch, without what depends on time."""
        kept = ("epoch", "loss", "lr", "train_acc", "val_acc", "test_acc")
        epochs = [event for event in self.events(name) if event["event"] == "epoch"]
        return [{key: epoch[key] for key in kept if key in epoch} for epoch in epochs]

    def content(self, name: str) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return all numbers of a checkpoint."""
        from distgnn.store.checkpoint import read_alone

        reader = read_alone(self.folder / name)
        shapes = reader.shapes.items()
        whole = {name: reader.piece(name, (0, rows), (0, cols)) for name, (rows, cols) in shapes}
        return {name: array.tobytes() for name, array in whole.items()}, reader.meta

    def await_epochs(self, name: str, more: int, launch: subprocess.Popen[str]) -> None:
        """Wait until this launch has logged so many epochs, or its first line, or has ended."""
        runs = sum(event["event"] == "run" for event in self.events(name))
        while launch.poll() is None:
            events = self.events(name)
            last = [n for n, event in enumerate(events) if event["event"] == "run"]
            if len(last) > runs and len(events) - last[-1] > more:
                return
            time.sleep(0.005)


def ranks_of(launch: subprocess.Popen[str]) -> list[int]:
    """Return the processes of the ranks, the grandchildren of mpiexec."""
    found = []
    for child in children(launch.pid):
        found += children(child)
    return found


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


def ended(launch: subprocess.Popen[str]) -> tuple[int, str, float]:
    """Wait for a launch; return its code, what it said, and the seconds that it took."""
    start = time.monotonic()
    try:
        said, _ = launch.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(launch.pid, signal.SIGKILL)
        return -1, "hangs", LIMIT
    return launch.returncode, said, time.monotonic() - start


def preempt(trial: Trial, draw: random.Random, row: Row, most: int) -> Iterator[str]:
    """Launch, send signals and resume until the training has come to its end; yield what is wrong."""
    while True:
        launch = trial.start("kept")
        if len(row.reached) < most:
            trial.await_epochs("kept", draw.choice((0, 1, 1, 2, 3)), launch)
            time.sleep(draw.random() * 0.05)
            whom, name = draw.choice(("one rank", "all ranks", "mpiexec")), draw.choice(SIGNALS)
            ranks = ranks_of(launch)
            one = [draw.choice(ranks)] if ranks else []
            for process in {"one rank": one, "all ranks": ranks, "mpiexec": [launch.pid]}[whom]:
                send(process, getattr(signal, name))
        code, said, seconds = ended(launch)
        if code == 0:
            return
        if code != STOPPED or "Traceback" in said:
            yield f"code {code}: {said[-500:]}"
            return
        row.reached.append(f"{name} to {whom}")
        row.within += " updates;" in said
        row.longest = max(row.longest, seconds)


def send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass  # it came to its end


def kill_after_the_last_save(trial: Trial, row: Row) -> Iterator[str]:
    """Kill every rank when the last epoch is saved, before the log has its end; yield what is wrong."""
    for path in trial.folder.glob("late*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    expected = trial.content("whole")
    launch = trial.start("late")
    epochs = len(trial.numbers("whole"))
    while launch.poll() is None:
        manifest = trial.folder / "late" / "manifest.json"
        if manifest.exists() and json.loads(manifest.read_text())["meta"]["epoch"] == epochs:
            break
        time.sleep(0.0005)
    for process in ranks_of(launch):
        send(process, signal.SIGKILL)
    row.killed += ended(launch)[0] != 0
    for _ in range(2):
        code, said, _ = ended(trial.start("late"))
        if code:
            yield f"code {code} after the last save: {said[-500:]}"
    if trial.content("late") != expected:
        yield "another checkpoint after the last save"


def run(folder: Path, store: Path, seed: int, most: int, kills: int) -> Row:
    """Do the trial of this seed."""
    draw = random.Random(seed)
    training = [*TRAININGS][seed % len(TRAININGS)]
    ranks = 4 if training in ("2d", "1.5d", "3d", "minibatches, graph cut") else draw.choice((2, 3, 4))
    trial, row = Trial(folder, store, TRAININGS[training], ranks), Row(training, ranks)
    code, said, _ = ended(trial.start("whole"))
    if code:
        row.wrong = [f"code {code} without a signal: {said[-500:]}"]
        return row
    row.wrong += preempt(trial, draw, row, most)
    if not row.wrong and trial.numbers("kept") != trial.numbers("whole"):
        row.wrong.append("other numbers in the log")
    if not row.wrong and trial.content("kept") != trial.content("whole"):
        row.wrong.append("another checkpoint")
    stray = {path.name for path in folder.iterdir()} - {"whole", "whole.log", "kept", "kept.log"}
    row.wrong += [f"stray files: {', '.join(sorted(stray))}"] if stray else []
    for _ in range(kills):
        row.wrong += kill_after_the_last_save(trial, row)
    return row


def table(rows: list[Row]) -> str:
    """Write the table of trials by training."""
    lines = ["| training | ranks | preemptions | within an epoch | longest end, s | wrong |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for training in TRAININGS:
        its = [row for row in rows if row.training == training]
        if its:
            ranks = ", ".join(map(str, sorted({row.ranks for row in its})))
            counts = sum(len(row.reached) for row in its), sum(row.within for row in its)
            wrong = sum(bool(row.wrong) for row in its)
            longest = max(row.longest for row in its)
            lines.append(f"| {training} | {ranks} | {counts[0]} | {counts[1]} | {longest:.1f} | {wrong} |")
    reached = Counter(way for row in rows for way in row.reached)
    ways = ", ".join(f"{way} {count}" for way, count in sorted(reached.items()))
    total, wrong = sum(reached.values()), sum(bool(row.wrong) for row in rows)
    killed = f"{sum(row.killed for row in rows)} launches were killed between their last save and their end."
    counts = f"{total} preemptions of {len(rows)} trainings, {wrong} wrong: {ways}."
    return "\n".join([*lines, "", f"{counts} {killed}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--preemptions", type=int, default=30, help="go on until there were so many")
    parser.add_argument("--each", type=int, default=5, help="of a training, at most")
    parser.add_argument("--kills", type=int, default=1, help="after the last save, of each training")
    parser.add_argument("--seconds", type=float, default=600, help="start no training after so many")
    parser.add_argument("--first", type=int, default=0, help="seed of the first training")
    parser.add_argument("--nodes", type=int, default=4000)
    given = parser.parse_args()
    begun, rows = time.monotonic(), list[Row]()
    with tempfile.TemporaryDirectory() as name:
        store = make_store(Path(name), given.nodes)
        seed = given.first
        while sum(len(row.reached) for row in rows) < given.preemptions:
            if time.monotonic() - begun > given.seconds:
                break
            folder = Path(name) / str(seed)
            folder.mkdir()
            rows.append(row := run(folder, store, seed, given.each, given.kills))
            what = f"{row.training} on {row.ranks}: {len(row.reached)} preemptions"
            print("; ".join([f"{seed}: {what}", *row.wrong]), file=sys.stderr, flush=True)
            seed += 1
    print(table(rows))
    return any(row.wrong for row in rows)


def make_store(folder: Path, nodes: int) -> Path:
    """Prepare a graph with the orders that the trainings take."""
    from distgnn import gallery
    from distgnn.store import prepare
    from distgnn.store.importers import open_source

    gallery.write(gallery.PlantedPartition(nodes, communities=8, features=16), folder / "graph")
    prepare(open_source(folder / "graph"), folder / "g.dg", order=("random", "double"))
    return folder / "g.dg"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
