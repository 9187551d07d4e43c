"""Programs that catch errors and go on: do all ranks learn of them, and is what follows right?

    python tests/faults/catching.py [--ranks 2 3 4] [--seconds 60] [--first 0] [--tries 1000]

A job does one kind of work after another: trainings, predictions, stores. In each, an error is raised on one
rank or several, in any function of the package. All ranks catch what they get, and other work follows: its
numbers must be those of before. Prints a line for each job, and exits with 1 if a rank went on where another
failed, a number is wrong, or a job does not come to its end.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from mpi_helpers.programs import clean_environment, ended, launcher

NODES, WIDTH = 1500, 32  # messages of 64 KB and more
#: Functions without which ranks do not meet, as Python raises KeyboardInterrupt anywhere: bookkeeping.
SPARED = (
    "session.py", "watched.py", "notices.py", "leaving.py", "flight.py", "waiting.py", "launch.py",
    "interrupts.py", "progress.py",
)  # fmt: skip
ERRORS = (
    ValueError("a bug"), MemoryError(), RecursionError("too deep"), OSError(28, "No space left on device"),
    KeyboardInterrupt(), SystemExit(3), KeyError("x"),
)  # fmt: skip
LIMIT = 150.0  # seconds in which a job must say another line


class Planted:
    """An error that is raised at one of the next calls of the package's functions; a count without one.

    Calls count where `inside()`.
    """

    def __init__(
        self, at: int = -1, error: BaseException | None = None, inside: Callable[[], bool] = lambda: True
    ) -> None:
        self.calls, self.at, self.error, self.inside, self.where = 0, at, error, inside, ""

    def __enter__(self) -> Planted:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event != "call" or "/distgnn/" not in path or path.endswith(SPARED) or not self.inside():
            return
        self.calls += 1
        if self.calls == self.at and self.error is not None:
            self.where = f"{path.rpartition('/distgnn/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
            raise self.error


def work(folder: Path) -> dict[str, Callable[[], list[float]]]:
    """Make the files, and return what is done, by kind; each returns numbers."""
    import numpy as np
    from mpi4py import MPI

    import distgnn as dg
    from distgnn.train import Run, Settings
    from distgnn.train.predict import Predictor

    world = MPI.COMM_WORLD
    graph = dg.gallery.sbm(NODES, communities=3, features=WIDTH, seed=1)
    store, arrays = folder / "graph.dg", (graph.A, graph.features, graph.labels, "0.6/0.2/0.2")
    if world.rank == 0:
        dg.prepare(*arrays, out=store)
    world.Barrier()
    common: dict[str, Any] = {"epochs": 2, "hidden": [16], "recipe": "plain"}

    def fit(**given: Any) -> list[float]:
        return [record["loss"] for record in dg.fit(*arrays, **common | given).history]

    def run(leave: int = 0, **given: Any) -> list[float]:
        files = {"checkpoint": folder / "weights", "log": folder / "log", "force": True}
        losses = []
        for record in Run(store, Settings(**common | files | given)).train():
            losses.append(record["loss"])
        return losses

    def predict() -> list[float]:
        with np.load(Predictor(store, folder / "kept").write(folder / "p.npz", force=True)) as answers:
            return [float(answers["probability"][:, 0].sum())]

    def prepared() -> list[float]:
        dg.prepare(*arrays, out=folder / "again.dg", comm=world, force=True)
        grid = dg.make_grid(world, "1.5d", folder / "again.dg")
        return [float(dg.Store(folder / "again.dg").nnz), *map(float, grid.shape.values())]

    [*Run(store, Settings(**common, checkpoint=folder / "kept")).train()]
    return {
        "fit": fit, "fit in two dimensions": lambda: fit(algorithm="2d"),
        "fit on samples": lambda: fit(sampler="sage", batch_size=100),
        "fit with attention": lambda: fit(model="gat", heads=2),
        "run": run, "run on samples": lambda: run(sampler="ladies", batch_size=100), "predict": predict,
        "prepare, plan": prepared,
    }  # fmt: skip


def as_rank(folder: Path, first: int, tries: int, seconds: float) -> None:
    """Do the tries on this rank of a job; rank 0 prints a line of each that went wrong, and a last one."""
    import numpy as np
    from mpi4py import MPI

    from distgnn.comm.session import session_of

    judge, kinds = MPI.COMM_WORLD.Dup(), work(folder)
    session = session_of(MPI.COMM_WORLD)

    def inside() -> bool:  # a task: no rank can tell others what it does outside, such as Settings()
        return bool(session is None or session._open)

    right, calls = {}, {}
    for name, kind in kinds.items():
        with Planted(inside=inside) as counted:
            right[name] = kind()
        calls[name] = judge.allgather(counted.calls)
    begun, done, wrong, raised = time.monotonic(), 0, 0, 0
    for number in range(first, first + tries):
        if judge.bcast(time.monotonic() - begun) > seconds:
            break
        draw = random.Random(number)
        name, following = draw.choice([*kinds]), draw.choice([*kinds])
        bad = draw.sample(range(judge.size), draw.choice((1, 1, 1, 2, judge.size)) if judge.size > 1 else 1)
        at = {rank: int(calls[name][rank] * draw.random()) for rank in bad}
        if draw.random() < 0.3:
            at = dict.fromkeys(bad, min(at.values()))
        error = draw.choice(ERRORS)
        said = ""
        with Planted(at.get(judge.rank, -1), error, inside) as planted:
            try:
                kinds[name]()
            except BaseException as caught:
                said = f"{type(caught).__name__}: {caught}"
        outcomes = judge.allgather((said, planted.where))
        got = kinds[following]()
        same = judge.allgather(bool(np.allclose(got, right[following], rtol=1e-5)))
        ends = {bool(said) for said, _ in outcomes}
        good = all(same) and (len(ends) == 1 or not any(where for _, where in outcomes))
        done, wrong, raised = done + 1, wrong + (not good), raised + any(said for said, _ in outcomes)
        if judge.rank == 0:
            word = "right" if good else "WRONG"
            print(f"{number} {name}, {outcomes}, then {following}: {word}", flush=True)
    if judge.rank == 0:
        print(f"{done} programs that catch on {judge.size} ranks, {raised} errors, {wrong} wrong", flush=True)


def job(ranks: int, first: int, tries: int, seconds: float) -> tuple[bool, str]:
    """Run a job; tell whether it is as it must be, and what it printed."""
    with tempfile.TemporaryDirectory(prefix="distgnn-catching-") as folder:
        given = [folder, str(first), str(tries), str(seconds)]
        words = [launcher(), "-n", str(ranks), sys.executable, "-W", "ignore", __file__, "--rank", *given]
        variables = {"DISTGNN_STALL": "30", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
        variables |= {"MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD": "1"}
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=clean_environment(**variables), start_new_session=True,
        )  # fmt: skip
        code, said, _ = ended(process, seconds + LIMIT)
    return code == 0 and " 0 wrong" in said.rstrip().rpartition("\n")[2], said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--seconds", type=float, default=60, help="of each number of ranks")
    parser.add_argument("--first", type=int, default=0, help="number of the first try")
    parser.add_argument("--tries", type=int, default=1000, help="at most so many")
    given = parser.parse_args()
    failed = 0
    for ranks in given.ranks:
        good, said = job(ranks, given.first, given.tries, given.seconds)
        failed += not good
        print(said.rstrip().rpartition("\n")[2] if good else said)
    print(f"programs that catch: {failed} of {len(given.ranks)} jobs not as they must be")
    return min(failed, 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        as_rank(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    else:
        sys.exit(main())
