"""A rank that waits for long names those that have not come."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpi_helpers import mpiexec

#: Each call is made twice on a communicator of its own: the first makes its session, the second meets in it.
PROGRAM = """
import os, sys, time
import numpy as np
from mpi4py import MPI
import distgnn as dg
from distgnn.plan import settle_together
from distgnn.train import Predictor, Settings

world, folder, late = MPI.COMM_WORLD, sys.argv[1], [*map(int, sys.argv[2].split(","))]
graph = dg.gallery.sbm(60, communities=3, features=4)
arrays = graph.A, graph.features, graph.labels, "0.6/0.2/0.2"
if world.rank == 0:
    dg.prepare(*arrays, out=f"{folder}/g.dg")
    dg.fit(*arrays, comm=MPI.COMM_SELF, epochs=1).save(f"{folder}/w")
world.Barrier()

def fit(comm): dg.fit(*arrays, comm=comm, epochs=1)
def make_grid(comm): dg.make_grid(comm, "1d")
def prepare(comm): dg.prepare(*arrays, out=f"{folder}/other.dg", comm=comm, force=True)
def predict(comm): Predictor(f"{folder}/g.dg", f"{folder}/w", comm)
def plan(comm): settle_together(comm, Settings(), f"{folder}/g.dg")

for call in (fit, make_grid, prepare, predict, plan):
    comm = world.Dup()
    for turn in range(2):
        if world.rank in late:
            time.sleep(2.5)
        call(comm)
    world.Barrier()
some = world.Split(int(world.rank > 0), -world.rank)
if world.rank > 0:
    A = dg.distribute(graph.A, dg.make_grid(some, "1d"), "1d")
    H = dg.DistDense.empty(A.input_layout, (60, 3), A.dtype)
    def multiply(A): A @ H
    if world.rank in late:
        time.sleep(2.5)
    multiply(A)
os.write(1, b"right\\n")  # a line at once
"""
WAITS = r"rank (\d) on host \S+ has waited \d+ s .* in ([^,]*), called .*: def (\w+)\("
LINE = re.compile(rf"{WAITS}.*; (ranks? [-, \d]+) (?:has|have) not come")


@pytest.mark.programs
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "late", "said"), [(3, "1", "rank 1"), (4, "0,2", "ranks 0, 2")])
def test_late_ranks_are_named(tmp_path: Path, ranks: int, late: str, said: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = tmp_path / "program.py", tmp_path, late
    result = mpiexec(ranks, *words, env={"DISTGNN_STALL": "0.5"}, timeout=150)
    assert (result.code, result.out.split()) == (0, ["right"] * ranks), result.err
    there = {rank for rank in range(ranks) if str(rank) not in late}
    lines = [(int(rank), *others) for rank, *others in LINE.findall(result.err)]
    named = {(rank, where, call) for rank, where, call, names in lines if names == said}
    for call in ("fit", "make_grid", "prepare", "predict", "plan"):
        first = {(rank, "first call over all ranks", call) for rank in there & {0, ranks - 1}}
        later = {(rank, "meeting over world", call) for rank in there}
        assert first | later <= named, result.err
    said = said.replace("s 0,", "")  # rank 0 takes no part in the product
    products = {(rank, names) for rank, _, call, names in lines if call == "multiply"}
    assert {(rank, said) for rank in there - {0}} <= products, result.err


LEAVES = """
import os, sys, time
from mpi4py import MPI
import distgnn as dg

world = MPI.COMM_WORLD
if world.rank == int(sys.argv[1]):
    sys.exit(0)
time.sleep(2.5)  # until that rank has ended MPI
try:
    dg.make_grid(world, "1d")
except RuntimeError as error:
    os.write(1, f"{world.rank} {error}\\n".encode())
"""


@pytest.mark.programs
@pytest.mark.parametrize(("ranks", "gone"), [(2, 1), (3, 1), (4, 1), (4, 0), (4, 3), (6, 2)])
def test_all_ranks_learn_who_left_before_their_first_call(tmp_path: Path, ranks: int, gone: int) -> None:
    (tmp_path / "program.py").write_text(LEAVES)
    result = mpiexec(ranks, tmp_path / "program.py", gone)
    told = f"rank {gone} has left the program without taking part"
    assert sorted(result.out.splitlines()) == [f"{k} {told}" for k in range(ranks) if k != gone]
