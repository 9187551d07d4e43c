"""`dg.make_grid`: planned for a graph, by the algorithm's rule without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import operators
from distgnn.plan import Graph, plan
from distgnn.train.resolve import to_plan
from distgnn.train.settings import Settings

from ..train.stores import events, run, small_store
from .machines import slow, written

MATRIX = sp.random(600, 600, 0.02, format="csr", random_state=3, dtype=np.float32)


@pytest.fixture
def machine(comm: Any, shared_tmp_path: Any) -> str:
    if comm.Get_rank() == 0:
        written(shared_tmp_path, slow())
    comm.Barrier()
    return str(shared_tmp_path / "slow.toml")


@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ["1.5d", "2d", "3d"])
def test_a_store_gives_the_grid_of_the_command_line(comm, shared_tmp_path, machine, algorithm) -> None:
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log"
    made = dg.make_grid(comm, algorithm, store, machine=machine)
    run(comm, store, "--algorithm", algorithm, "--machine", machine, "--epochs", 1, "--log", log)
    (start,) = events(log, "run")
    assert [*made.shape.items()] == [*start["grid"].items()] and start["plan"]["machine"] == "slow"


@pytest.mark.ranks(1, 3, 4)
def test_a_matrix_gives_the_best_grid_of_a_plan(comm, machine) -> None:
    asked, P = Settings(algorithm="1.5d", hidden=(24,)), comm.Get_size()
    labels, split = np.zeros(600, np.int64), np.r_[np.ones(60, np.uint8), np.zeros(540, np.uint8)]
    known = Graph.known(MATRIX, 24, 24, labels, split)
    best = plan(to_plan(asked, P), known, P, slow()).best.way.grid if P > 1 else {"rows": 1, "reps": 1}
    for graph in (MATRIX, MATRIX.toarray(), known):
        grid = dg.make_grid(comm, "1.5d", graph, settings=asked, machine=machine)
        assert grid.shape == best
    A = dg.distribute(MATRIX, grid, "1.5d")
    H = dg.scatter(np.ones((600, 3), np.float32), A.input_layout)
    whole = dg.gather(A @ H)
    assert comm.Get_rank() or np.allclose(whole, MATRIX @ np.ones((600, 3)), atol=1e-4)


@pytest.mark.ranks(4)
def test_what_is_given_is_kept(comm, machine) -> None:
    assert dg.make_grid(comm, "1.5d", MATRIX, 2, machine=machine).shape == {"rows": 2, "reps": 2}
    assert dg.make_grid(comm, "2d", MATRIX, sizes={"rows": 1}, machine=machine).shape["cols"] == 4
    for algorithm in operators.ALGORITHMS:  # no graph, no plan
        first = operators.grids(algorithm, 4)[0]
        assert dg.make_grid(comm, algorithm).shape == dg.make_grid(comm, algorithm, first).shape == first


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"graph": 3},
            "graph=int: expected a store or its path, a SciPy matrix, a plan.Graph, or axis sizes",
        ),
        ({"graph": MATRIX[:5]}, "graph=5 x 600: a matrix to plan for must be square"),
        ({"graph": {"rows": 2}, "sizes": {"rows": 2}}, "sizes=.*: is given twice"),
        ({"graph": MATRIX, "machine": "hal"}, "machine hal: there is none"),
        ({"graph": "missing.dg"}, "missing.dg: no such store"),
    ],
)
def test_bad_input_is_one_error_on_every_rank(comm, given, problem) -> None:
    with pytest.raises(dg.UserError, match=problem):
        dg.make_grid(comm, "2d", **given)


@pytest.mark.ranks(1, 2)
def test_a_store_that_is_none_is_told_even_where_there_is_one_grid(comm) -> None:
    with pytest.raises(dg.UserError, match="rows=1: no such store"):
        dg.make_grid(comm, "1d", "rows=1")


@pytest.mark.ranks(2, 3)
def test_ranks_that_disagree_are_told(comm) -> None:
    with pytest.raises(dg.UserError, match="ranks disagree: graph is .*not there on rank 0"):
        dg.make_grid(comm, "2d", MATRIX if comm.Get_rank() else None)
