"""Predicted against measured seconds per epoch, of every way to train that a cluster has.

    mpiexec -n RANKS python benchmarks/plan_cluster.py measure --out FILE.json --name "what it runs on"
    python benchmarks/plan_cluster.py compare FILE.json=MACHINE.toml ... --out FILE.md

``measure`` trains on each graph in every way and keeps the median epoch of the slowest rank. ``compare``
predicts the same from a machine that ``distgnn calibrate`` measured, which has never seen an epoch of these,
or with ``FILE.json=probed`` from what the ranks of the measurement found of themselves before it, as
``--algorithm auto`` does.
``measure --again FILE.json`` measures anew, in turns, the pick and the ways of that file within ``CLOSE``
of its best, and keeps the others. Several files of one cluster, with commas between them, are averaged.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI
from scipy.stats import spearmanr

import cases
import table
from distgnn import operators
from distgnn.gallery import rmat, road, sbm
from distgnn.plan.choices import plan
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.machine import Machine, read
from distgnn.plan.probe import probe
from distgnn.train.settings import Settings
from distgnn.train.ways import Way, ways

WIDTHS = [32, 32, 8]
SETTINGS = Settings(recipe="plain", hidden=WIDTHS[1:-1], eval_every=0)
LONG = 1.0  # seconds of an epoch that is measured once in a trial
PROBED = "probed"
CLOSE = 1.6  # times the best: ways of which a few epochs do not tell the better one
NEAR = 1.1  # a pick is good whose epoch is at most as much longer than the best


def graphs(scale: int = 1) -> dict[str, sp.csr_array]:
    """Return normalised adjacency matrices of different density and structure, by name; ``scale``: times as
    many nodes.
    """
    n = 12_000 * scale
    random = sp.random_array((n, n), density=60 / n, rng=np.random.default_rng(3), format="csr")
    found = {
        f"road-{60 * scale}k": road(60_000 * scale).A,
        f"sbm-{24 * scale}k": sbm(24_000 * scale).A,
        f"rmat-{16 * scale}k": rmat(16_384 * scale).A,
        f"uniform-{12 * scale}k": random + random.T,
    }
    return {name: normalised(A) for name, A in found.items()}


def normalised(A: Any) -> sp.csr_array:
    """Return D^-1/2 (A + I) D^-1/2 in float32."""
    A = sp.csr_array(A + sp.eye_array(A.shape[0]), dtype=np.float32)
    A.data[:] = 1
    scale = sp.dia_array((1 / np.sqrt(A.sum(axis=1))[None], [0]), shape=A.shape)
    return sp.csr_array(scale @ A @ scale, dtype=np.float32)


def measure(
    comm: Any, seconds: float, scale: int, trials: int, earlier: list[dict[str, Any]] | None
) -> Iterator[dict[str, Any]]:
    """Measure each way to train on each graph, in an order without meaning; give a record of each.
    Collective.

    Args:
        earlier: records of a measurement, of which those far from the best are given again.
    """
    machine = probe(comm).machine
    for name, A in graphs(scale).items():
        plans = seconds_by_way(A, comm.Get_size(), machine) if comm.Get_rank() == 0 else {}
        known = {key(record): record["measured"] for record in earlier or () if record["graph"] == name}
        limit = CLOSE * min(known.values(), default=np.inf)
        found = distinct(comm.Get_size())
        pick = comm.bcast(min(plans, key=plans.__getitem__, default=None))
        close = [w for w in found if key(w.record()) == pick or known.get(key(w.record()), 0.0) <= limit]
        taken: dict[Any, list[float]] = {key(way.record()): [] for way in close}
        for trial in range(trials):  # the machine's mood changes within minutes: all ways see each of them
            for number in np.random.default_rng(trial).permutation(len(close)).tolist():
                way = close[number]
                taken[key(way.record())] += epochs(comm, A, way, seconds / trials)
        for way in found:
            record = {"graph": name, **way.record()}
            of_it = taken.get(key(record), known.get(key(record)))
            yield record | {"measured": float(np.median(of_it)), PROBED: plans.get(key(record))}


def distinct(ranks: int) -> list[Way]:
    """Return the ways to train without repeats: 1.5D with one copy is 1D, one block row needs all rows."""
    repeats = lambda way: way.grid.get("reps") == 1 or (way.sparsity_aware and way.grid["rows"] == 1)  # noqa: E731
    return [way for way in ways(SETTINGS, ranks) if not repeats(way)]


def epochs(comm: Any, A: sp.csr_array, way: Way, seconds: float) -> list[float]:
    """Return seconds of the slowest rank, epoch by epoch, for so long at least, after as long of warming up.
    Collective.
    """
    grid = operators.make_grid(comm, way.algorithm, way.grid, backend="numpy")
    records = cases.epochs(grid, A, way.algorithm, WIDTHS, way.sparsity_aware)
    next(records)  # makes what is kept
    taken: list[float] = []
    while comm.bcast(sum(taken) < 2 * seconds or (len(taken) < 2 and sum(taken) < LONG)):
        comm.Barrier()
        start = time.perf_counter()
        next(records)
        taken.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    records.close()  # type: ignore[attr-defined]
    grid.free()
    return taken[len(taken) // 2 :]


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["algorithm"], record["sparsity_aware"], *sorted(record["grid"].items())


def seconds_by_way(A: sp.csr_array, ranks: int, machine: Machine) -> dict[tuple[Any, ...], float]:
    """Plan an epoch in every way; return its seconds by the way's key."""
    n = A.shape[0]
    labels, split = np.random.default_rng(1).integers(0, WIDTHS[-1], n), np.ones(n, np.uint8)
    graph = Graph.known(A, WIDTHS[0], WIDTHS[-1], labels, split)
    choices = plan(SETTINGS, {None: graph}, ranks, machine).choices
    return {key(choice.record()): choice.seconds for choice in choices}


def compared(files: str, machine: str) -> dict[str, Any]:
    """Return measured and predicted seconds of each way on each graph; measured: means of all files."""
    told = [json.loads(Path(file).read_text()) for file in files.split(",")]
    cases = {}
    for name, A in graphs(told[0]["scale"]).items():
        known = [record for one in told for record in one["records"] if record["graph"] == name]
        if machine == PROBED:
            predicted = {key(record): record[PROBED] for record in known}
        else:
            predicted = seconds_by_way(A, told[0]["ranks"], read(machine))
        taken: dict[Any, list[float]] = {}
        for record in known:
            taken.setdefault(key(record), []).append(record["measured"])
        cases[name] = np.array([(np.mean(seconds), predicted[way]) for way, seconds in taken.items()])
    return {"name": told[0]["name"], "ranks": told[0]["ranks"], "cases": cases}


def lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """Return the table: a row for each graph on each cluster."""
    measures = "median error", "rank correlation", "pick / best"
    yield from table.columns("cluster", "graph", "ways", "best s", "worst s", *measures)
    errors, correlations, picks = [], [], []
    for cluster in found:
        for graph, pairs in cluster["cases"].items():
            measured, predicted = pairs.T
            error = np.abs(predicted / measured - 1)
            correlation = spearmanr(measured, predicted).statistic
            pick = measured[np.argmin(predicted)] / measured.min()
            errors, correlations, picks = [*errors, *error], [*correlations, correlation], [*picks, pick]
            row = (
                f"| {cluster['name']} | {graph} | {len(pairs)} | {measured.min():.3f} | {measured.max():.3f} "
            )
            yield row + f"| {np.median(error):.0%} | {correlation:.2f} | {pick:.2f} |"
    together = np.concatenate([pairs for cluster in found for pairs in cluster["cases"].values()])
    yield ""
    errors, picks = np.array(errors), np.array(picks)
    near, logarithms = np.mean(picks <= NEAR), np.log(together)
    yield f"Over all {errors.size}: median error {np.median(errors):.1%}; R² of seconds"
    yield f"{r2(*together.T):.3f}, of their logarithms {r2(*logarithms.T):.3f}; rank correlation"
    yield f"{min(correlations):.2f} at least, {np.median(correlations):.2f} in the median;"
    yield f"the pick within 10 % of the best in {near:.0%} of cases, at most {picks.max():.2f} of it."


def r2(measured: np.ndarray, predicted: np.ndarray) -> float:
    return 1 - np.sum((measured - predicted) ** 2) / np.sum((measured - measured.mean()) ** 2)


def main() -> int:
    parser = table.arguments(__doc__)
    parser.add_argument("what", choices=("measure", "compare"))
    parser.add_argument("files", nargs="*", help="of compare: FILE.json[,...]=MACHINE.toml, or =probed")
    parser.add_argument("--seconds", type=float, default=0.5, help="to measure each way for")
    parser.add_argument("--trials", type=int, default=3, help="of measure: in turns with the other ways")
    parser.add_argument("--again", type=Path, help="of measure: a file whose close calls are measured again")
    parser.add_argument("--scale", type=int, default=1, help="of measure: times as many nodes")
    args: argparse.Namespace = parser.parse_args()
    comm = MPI.COMM_WORLD
    if args.what == "measure":
        records = []
        earlier = json.loads(args.again.read_text())["records"] if args.again else None
        for record in measure(comm, args.seconds, args.scale, args.trials, earlier):
            records.append(record)
            if comm.Get_rank() == 0:
                print(record["graph"], record["algorithm"], record["grid"], record["sparsity_aware"],
                      f"{record['measured']:.4f}", flush=True)  # fmt: skip
        if comm.Get_rank() == 0:
            told = {"name": args.name, "ranks": comm.Get_size(), "scale": args.scale, "records": records}
            args.out.write_text(json.dumps(told, indent=1))
        return 0
    found = [compared(*pair.split("=", 1)) for pair in args.files]
    table.publish(args, "\n".join([table.heading(args), "", *lines(found)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
