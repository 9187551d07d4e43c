"""A short run of the programs that catch errors, and what they say: see the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpi_helpers import mpiexec

from . import catching


@pytest.mark.programs
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_ranks_learn_of_errors_and_the_next_training_is_right() -> None:
    good, said = catching.job(3, first=0, tries=8, seconds=120)
    assert good, said


def test_an_error_is_planted_where_it_is_asked_for() -> None:
    from distgnn.layout import partition

    def calls() -> None:
        for _ in range(3):
            partition(10, 2)

    with catching.Planted() as counted:
        calls()
    assert counted.calls >= 3
    with pytest.raises(ZeroDivisionError), catching.Planted(counted.calls, ZeroDivisionError()) as planted:
        calls()
    assert planted.where.startswith("layout/")


FITS = """
import os, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
from mpi4py import MPI
import distgnn as dg
from distgnn.comm.session import session_of
from distgnn.operators import gemm_tuning, weights
from faults.catching import Planted

weights.fastest = lambda on, world, m, k, n, *trans: gemm_tuning.as_given(*trans[:2])  # no choice by time
world, graph = MPI.COMM_WORLD, dg.gallery.sbm(1500, communities=3, features=32, seed=1)
ways = {}, {"algorithm": "2d"}, {"sampler": "sage", "batch_size": 100}, {"model": "gat"}
session = session_of(world)

def fit(**given):
    history = dg.fit(graph.A, graph.features, graph.labels, epochs=2, hidden=16, **given).history
    return [record["loss"].hex() for record in history]

def told(way):
    losses = fit(**way)
    if world.rank == 0:
        os.write(1, f"{way} {losses}\\n".encode())

for number in range(int(sys.argv[2])):
    at = 2000 + 997 * number if world.rank == number % world.size else -1
    try:
        with Planted(at, ValueError("a bug"), inside=lambda: bool(session._open)):
            fit(**ways[number % 4])
    except (ValueError, RuntimeError):
        told(ways[0])
    else:
        sys.exit("no error")
for way in ways:
    told(way)
"""


@pytest.mark.programs
@pytest.mark.timeout(400)
def test_trainings_after_errors_are_those_of_a_fresh_program_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "fits.py").write_text(FITS)
    words = tmp_path / "fits.py", Path(__file__).parents[1]
    fresh, after = (mpiexec(4, *words, errors, timeout=180) for errors in (0, 10))
    assert (fresh.code, after.code) == (0, 0), after.err
    expected, got = fresh.out.splitlines(), after.out.splitlines()
    assert (got[:10], got[10:]) == (expected[:1] * 10, expected)
