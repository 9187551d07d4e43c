"""NCCL in place of host copies: the same results and charges, and errors on every rank."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn.comm import nccl
from distgnn.errors import DisagreementError
from distgnn.gallery import rmat
from distgnn.operators import ALGORITHMS, make_grid
from mpi_helpers import gpu


@pytest.fixture
def staged(monkeypatch):
    """Yield CuPy, or its stand-in, beside an MPI that is not CUDA-aware."""
    with gpu.backend(gpu.STAGED, monkeypatch) as chosen:
        yield chosen


@pytest.fixture(params=["0", "1"])
def grid(request, comm, staged, monkeypatch):
    """Yield a grid, once without and once with NCCL."""
    monkeypatch.setenv("DISTGNN_NCCL", request.param)
    made = dg.Grid(comm, backend=staged)
    group = made.along("rows")
    assert (group.nccl is not None) == (request.param == "1" and group.size > 1)
    yield made
    made.free()


def whole_numbers(on, shape, rank):
    """Return whole numbers, so that sums are exact."""
    return on.asarray((np.arange(np.prod(shape)).reshape(shape) % 11 + 100.0 * rank).astype(np.float32))


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("parts", ["even", "uneven", "empty"])
def test_collectives(grid, parts):
    """Blocks of one size, of sizes 0, 1, 2 ..., and of none."""
    group, on, P = grid.along("rows"), grid.backend, grid.size
    cut = {"even": np.arange(P + 1) * 3, "uneven": np.r_[0, np.cumsum(np.arange(P))], "empty": [0] * (P + 1)}
    bounds = np.array(cut[parts], np.int64)
    height, (first, last) = int(bounds[-1]), bounds[group.rank : group.rank + 2]
    everybodys = [on.to_host(whole_numbers(on, (height, 5), rank)) for rank in range(P)]
    mine = lambda: on.asarray(everybodys[group.rank])  # noqa: E731
    with dg.Ledger(timing=True) as told:
        for op in ("sum", "max", "min"):
            combined = getattr(np.array(everybodys), op)(axis=0)
            np.testing.assert_array_equal(on.to_host(group.allreduce(mine(), op)), combined)
        np.testing.assert_array_equal(on.to_host(group.bcast(mine(), P - 1)), everybodys[-1])
        kept = group.reduce_scatter_rows(mine(), bounds)
        np.testing.assert_array_equal(on.to_host(kept), sum(everybodys)[first:last])
        whole = on.to_host(group.allgather_rows(kept, bounds))
        np.testing.assert_array_equal(whole, sum(everybodys))
    size, share = height * 5, (P - 1) * height * 5 / P
    words = {entry["operation"]: entry["words"] for entry in told.entries()}
    assert words == {
        "allreduce": round(3 * 2 * share), "bcast": size * (group.rank != P - 1),
        "reduce_scatter": round(share), "allgather": size - 5 * int(last - first),
    }  # fmt: skip


@pytest.mark.ranks(4)
@pytest.mark.parametrize("overlap", [True, False])
def test_sums_under_way(grid, overlap):
    group, on, grid.overlap = grid.along("rows"), grid.backend, overlap
    roots = [*range(group.size), None, 0, None]
    arrays = [whole_numbers(on, (40, 8), group.rank + number) for number in range(len(roots))]
    with dg.Ledger(timing=True) as told, group.sums(grid.workspace, grid.overlap) as sums:
        for array, root in zip(arrays, roots, strict=True):
            sums.start(array, root)
    for number, (array, root) in enumerate(zip(arrays, roots, strict=True)):
        ranks = range(group.size) if root in (None, group.rank) else [group.rank]
        total = sum(on.to_host(whole_numbers(on, (40, 8), rank + number)) for rank in ranks)
        np.testing.assert_array_equal(on.to_host(array), total)
    away = sum(root not in (None, group.rank) for root in roots)
    assert told.words == away * 320 + 2 * 2 * 320 * (group.size - 1) // group.size and told.flight > 0


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_products_are_charged_the_same(comm, staged, name, monkeypatch):
    A = rmat(97, degree=9, directed=True, features=0, classes=0).A.astype(np.float64)
    X = np.random.default_rng(1).standard_normal((A.shape[0], 6))
    found = []
    for asked in "01":
        monkeypatch.setenv("DISTGNN_NCCL", asked)
        grid = make_grid(comm, name, backend=staged)
        operator = dg.distribute(A, grid, name)
        with dg.Ledger() as told:
            Y = dg.gather(operator.T @ (operator @ dg.scatter(X, operator.input_layout)))
        found.append(told.entries())
        if grid.rank == 0:
            np.testing.assert_allclose(Y, A.T @ (A @ X), rtol=1e-10)
        grid.free()
    assert found[0] == found[1]


@pytest.mark.ranks(2, 3)
def test_ranks_without_nccl_are_refused_together(comm, staged, monkeypatch):
    monkeypatch.setenv("DISTGNN_NCCL", "1")
    monkeypatch.setattr(staged, "nccl", lambda: None if comm.Get_rank() else nccl)
    with pytest.raises(dg.UserError, match="DISTGNN_NCCL=1: CuPy finds no NCCL library"):
        dg.Grid(comm, backend=staged)


@pytest.mark.ranks(2)
def test_ranks_that_ask_for_different_transports_are_refused(comm, staged, monkeypatch):
    monkeypatch.setenv("DISTGNN_NCCL", str(comm.Get_rank()))
    with pytest.raises(DisagreementError, match="DISTGNN_NCCL is 0 on rank 0 and 1 on rank 1"):
        dg.Grid(comm, backend=staged)


def test_nccl_is_for_devices_whose_mpi_takes_no_pointers(staged):
    assert nccl.wanted(staged, False, {"DISTGNN_NCCL": "1"})
    assert not nccl.wanted(staged, True, {"DISTGNN_NCCL": "1"})
    assert not nccl.wanted(staged, False, {"DISTGNN_NCCL": "no"}) and not nccl.wanted(staged, False, {})
    with pytest.raises(dg.UserError, match="DISTGNN_NCCL=maybe: expected 0 or 1"):
        nccl.wanted(staged, True, {"DISTGNN_NCCL": "maybe"})


@pytest.mark.ranks(2)
def test_two_ranks_on_one_device_are_refused(comm, staged, monkeypatch):
    """NCCL refuses two ranks on one device, on every rank."""

    def refused(size, name, rank):
        raise RuntimeError("NCCL_ERROR_INVALID_USAGE: invalid usage")

    monkeypatch.setenv("DISTGNN_NCCL", "1")
    monkeypatch.setattr(staged.nccl(), "NcclCommunicator", refused)
    with pytest.raises(dg.UserError, match="each of which needs a GPU of its own: .*INVALID"):
        dg.Grid(comm, backend=staged)
