"""Compare the training of every algorithm on every grid, with overlap, with one process and with itself.

    python benchmarks/equal_losses.py --out benchmarks/results/equal-losses.md

Trains six epochs with dropout and Adam, on 3, 4, 6, 8, 9 and 12 ranks. Losses may differ from those of
``nn/reference.py`` by 1e-5, relative, in single precision and by 1e-12 in double. A run's bits are a hash of
its losses and of every rank's weights. On the first graph all grids run, ``--runs`` times in single precision
and once in double; on larger graphs and widths one grid for each number of ranks, twice. Exits with 1 if a
loss or a bit differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.nn import GCN, Adam
from distgnn.nn.reference import GCNReference, normalize
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids, make_grid
from distgnn.train import train

RANKS, EPOCHS, DROPOUT, LR = (3, 4, 6, 8, 9, 12), 6, 0.5, 0.01
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


class Problem(NamedTuple):
    """A graph and a network on it."""

    nodes: int
    widths: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.nodes:,} nodes, {'-'.join(map(str, self.widths))}"


FIRST = Problem(5201, (24, 24, 16, 7))
LARGER = [Problem(10_000, (3000, 128, 8)), Problem(20_000, (8, 1024, 32)), Problem(100_000, (64, 48, 16))]


class Data:
    """The numbers of a problem: the matrix on all ranks, those of nodes on rank 0."""

    X = labels = split = None

    def __init__(self, problem: Problem, dtype: str) -> None:
        rng, n, widths = np.random.default_rng(1), problem.nodes, problem.widths
        entries = rng.integers(0, n, (2, 6 * n))
        A = sp.coo_array((np.ones(6 * n), entries), shape=(n, n)).tocsr()
        A.data[:] = 1
        self.A = normalize(sp.csr_array(A + A.T), dtype=np.float32).astype(dtype)
        if MPI.COMM_WORLD.rank > 0:
            return
        self.X = rng.standard_normal((n, widths[0]), np.float32).astype(dtype)
        hidden = rng.standard_normal((widths[0], widths[-1]), np.float32)  # what there is to learn
        self.labels = (self.A @ self.X @ hidden).argmax(axis=1).astype(np.int32)
        self.split = rng.integers(0, 4, n).astype(np.uint8)

    def reference(self, widths: tuple[int, ...]) -> list[float]:
        """Return the losses of one process."""
        model = GCNReference(self.A, widths, dropout=DROPOUT, bias=True, dtype=self.A.dtype)
        records = model.train(self.X, self.labels, self.split, EPOCHS, lr=LR, evaluate=False)
        return [record["loss"] for record in records]


def cases(ranks: int) -> list[tuple[str, dict[str, int], bool]]:
    """List every algorithm on every grid, where it can with needed rows, too."""
    return [
        (name, sizes, aware)
        for name in ALGORITHMS
        for sizes in grids(name, ranks)
        for aware in ((False, True) if name in SPARSITY_AWARE else (False,))
    ]


def losses(grid: dg.Grid, A: Any, data: Data, widths: tuple[int, ...]) -> tuple[list[float], str]:
    """Return the losses of a run and its bits. Collective."""
    model = GCN(A, widths, dropout=DROPOUT, bias=True)
    X = dg.scatter(data.X, model.input_layout)
    targets = model.targets(data.labels, data.split)
    found = [record["loss"] for record in train(model, X, targets, Adam(LR), EPOCHS, eval_every=0)]
    bits = hashlib.sha256(np.array(found).tobytes())
    for parameter in model.parameters:
        bits.update(np.ascontiguousarray(parameter.block).tobytes())
    every = "".join(grid.world.gather_objects(bits.hexdigest()))
    return found, hashlib.sha256(every.encode()).hexdigest()


def work(job: dict[str, Any]) -> None:
    """Run the cases of a job on the ranks of this launch; rank 0 prints a line of JSON for each."""
    problem, dtype = Problem(job["nodes"], tuple(job["widths"])), job["dtype"]
    data = Data(problem, dtype)
    for name, sizes, aware in job["cases"]:
        grid = make_grid(MPI.COMM_WORLD, name, sizes, backend="numpy")
        A = dg.distribute(data.A, grid, name, sparsity_aware=aware)
        runs = [losses(grid, A, data, problem.widths) for _ in range(job["runs"])]
        bits = [one for _, one in runs]
        other = sum(one != bits[0] for one in bits)
        far = np.max(np.abs(np.array([run for run, _ in runs]) / job["losses"] - 1))
        if grid.rank == 0:
            row = {"algorithm": name, "aware": aware, "sizes": sizes, "runs": len(runs)}
            print(json.dumps(row | {"far": float(far), "other": other}), flush=True)
        grid.free()


def launch(ranks: int, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Launch a job and return its lines. CalledProcessError: it failed."""
    mpiexec = os.environ.get("MPIEXEC") or str(Path(sys.executable).with_name("mpiexec"))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        words = [mpiexec, "-n", str(ranks), sys.executable, __file__, "--job", file.name]
        environment = os.environ | {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
        lines = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    done = f"{ranks} ranks, {job['nodes']:,} nodes, {job['dtype']}: {len(rows)} cases"
    print(done, file=sys.stderr, flush=True)
    return [row | {"ranks": ranks, "dtype": job["dtype"]} for row in rows]


def first(runs: int, ranks: tuple[int, ...], most: int | None) -> list[dict[str, Any]]:
    """List all cases on the first graph."""
    rows = []
    for dtype in TOLERANCE:
        job = _job(FIRST, dtype, runs if dtype == "float32" else 1)
        for size in ranks:
            rows += launch(size, job | {"cases": cases(size)[:most]})
    return rows


def larger(ranks: tuple[int, ...], problems: list[Problem]) -> dict[Problem, list[dict[str, Any]]]:
    """Choose on each larger graph a case for each number of ranks, others on another."""
    rows: dict[Problem, list[dict[str, Any]]] = defaultdict(list)
    for number, problem in enumerate(problems):
        job = _job(problem, "float32", 2)
        for place, size in enumerate(ranks):
            dealt = cases(size)
            dealt = dealt[:: max(len(dealt) // len(problems), 1)]
            rows[problem] += launch(size, job | {"cases": [dealt[(number + place) % len(dealt)]]})
    return rows


def _job(problem: Problem, dtype: str, runs: int) -> dict[str, Any]:
    serial = Data(problem, dtype).reference(problem.widths)
    return {**problem._asdict(), "dtype": dtype, "runs": runs, "losses": serial}


def wrong(row: dict[str, Any]) -> bool:
    """Tell whether a loss is too far from the serial one, or is no number, or a run had other bits."""
    return not row["far"] <= TOLERANCE[row["dtype"]] or row["other"] > 0


def by_algorithm(rows: list[dict[str, Any]]) -> str:
    """Return a table of the cases on the first graph."""
    names = ["algorithm", "ranks", "grids", "runs", "farthest, float32", "farthest, float64", "other bits"]
    lines, groups = table.columns(*names), defaultdict(list)
    for row in rows:
        groups[row["algorithm"] + (", needed rows" if row["aware"] else ""), row["ranks"]].append(row)
    for (name, ranks), of_it in groups.items():
        far = [max((r["far"] for r in of_it if r["dtype"] == dtype), default=0.0) for dtype in TOLERANCE]
        single = [row for row in of_it if row["dtype"] == "float32"]
        runs, other = sum(row["runs"] for row in of_it), sum(row["other"] for row in of_it)
        lines.append(f"| {name} | {ranks} | {len(single)} | {runs} | {far[0]:.1e} | {far[1]:.1e} | {other} |")
    return "\n".join(lines)


def by_problem(rows: dict[Problem, list[dict[str, Any]]]) -> str:
    """Return a table of the cases on the larger graphs."""
    lines = table.columns("graph and widths", "algorithm and grid", "ranks", "runs", "farthest", "other bits")
    for problem, of_it in rows.items():
        for row in of_it:
            grid = "x".join(map(str, row["sizes"].values())) + (", needed rows" if row["aware"] else "")
            case = f"{row['algorithm']} {grid} | {row['ranks']} | {row['runs']}"
            lines.append(f"| {problem} | {case} | {row['far']:.1e} | {row['other']} |")
    return "\n".join(lines)


def main() -> int:
    """Run the job that is named, or all jobs and make the tables; 1 if something differs."""
    parser = table.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=10, help="of each case on the first graph")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--most", type=int, help="cases for each number of ranks, on the first graph only")
    parser.add_argument("--job", type=Path, help="of a launch, which the program starts itself")
    args = parser.parse_args()
    if args.job:
        work(json.loads(args.job.read_text()))
        return 0
    rows, ranks = first(args.runs, tuple(args.ranks), args.most), tuple(args.ranks)
    on_larger = larger(ranks, [] if args.most else LARGER)
    every = [*rows, *(row for of_it in on_larger.values() for row in of_it)]
    bad = [row for row in every if wrong(row)]
    said = f"{len(every)} cases, {sum(row['runs'] for row in every)} runs, {len(bad)} cases wrong. {ABOUT}"
    tables = f"{FIRST}:\n\n{by_algorithm(rows)}\n\n" + (by_problem(on_larger) if on_larger else "")
    table.publish(args, f"{table.heading(args)}\n\n{said}\n\n{tables}")
    print(*bad, sep="\n", file=sys.stderr)
    return int(bool(bad))


ABOUT = """A case is an algorithm on a grid, with overlap. Farthest is the largest relative difference of a
loss of 6 epochs with dropout from that of one process in the same precision: it may be 1e-5 in single and
1e-12 in double. Other bits are runs whose hash of losses and weights is not that of the case's first run."""

if __name__ == "__main__":
    sys.exit(main())
