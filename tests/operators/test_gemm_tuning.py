"""Forms of dense products: all compute the same, and one is chosen for all ranks."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn import Grid, local
from distgnn.arrays.tuning import TUNING
from distgnn.layout import Cut, Layout
from distgnn.local import forms
from distgnn.operators import gemm_tuning
from distgnn.operators.dense import scatter
from distgnn.operators.weights import FORWARD, INPUT, WEIGHTS, ReplicatedWeights
from loops import each


@each("form", forms.FORMS)
@each("shape", [(1, 1, 1), (7, 3, 5), (1100, 4, 6), (4, 1100, 6), (0, 3, 2), (3, 0, 2), (0, 0, 2)])
@each("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_every_form_is_the_product(form, shape, transposed, backend):
    m, k, n = shape
    rng = np.random.default_rng(0)
    A, B, start = rng.standard_normal((m, k)), rng.standard_normal((k, n)), rng.standard_normal((m, n))
    stored = [backend.asarray(X.T if trans else X) for X, trans in zip((A, B), transposed, strict=True)]
    flags = {"trans_a": transposed[0], "trans_b": transposed[1], "form": form}
    out = local.gemm(*stored, **flags)
    np.testing.assert_allclose(backend.to_host(out), A @ B, rtol=1e-10, atol=1e-10)
    more = backend.asarray(start).copy()
    local.gemm(*stored, out=more, accumulate=True, **flags)
    np.testing.assert_allclose(backend.to_host(more), start + A @ B, rtol=1e-10, atol=1e-10)


def test_names_of_forms():
    assert [str(form) for form in forms.FORMS[:4]] == ["NN", "NT", "TN", "TT"] and str(
        forms.FORMS[-2]
    ) == "TN reversed"
    assert [str(forms.as_given(*flags)) for flags in ((False, False), (True, False), (False, True))] == [
        "NN",
        "TN",
        "NT",
    ]


@pytest.mark.ranks(1, 2, 3)
def test_all_ranks_take_the_form_that_is_best_for_the_slowest(comm, backend, monkeypatch):
    """Every rank likes another form; NN reversed is second best on all."""
    grid = Grid(comm, backend=backend)
    mine = forms.FORMS[grid.rank % 3 + 1]

    def seconds(backend, form, A, B, out):
        assert out.shape == (A.shape[0], B.shape[1]) and A.shape[1] == B.shape[0]
        return 0.1 if form == mine else 0.15 if str(form) == "NN reversed" else 0.19

    monkeypatch.setattr(gemm_tuning, "_seconds", seconds)
    layout = Layout(grid, Cut(("rows",)), Cut())
    products = ReplicatedWeights(layout)
    expected = str(mine) if comm.Get_size() == 1 else "NN reversed"
    assert products.tune(40, 6, 3, np.float32) == dict.fromkeys((FORWARD, WEIGHTS, INPUT), expected)
    T, W = np.random.default_rng(1).standard_normal((40, 6)), np.random.default_rng(2).standard_normal((6, 3))
    Z = products.times(scatter(T, layout), scatter(W, products.weight_layout))
    first, last = Z.row_range
    np.testing.assert_allclose(backend.to_host(Z.block), (T @ W)[first:last])


def test_a_form_that_is_hardly_faster_is_not_taken(backend, monkeypatch):
    from mpi4py import MPI

    grid = Grid(MPI.COMM_SELF, backend=backend)
    for others, taken in ((0.95, "TN"), (0.85, "NN")):
        monkeypatch.setattr(
            gemm_tuning, "_seconds", lambda *args, others=others: 1.0 if str(args[1]) == "TN" else others
        )
        assert (
            str(gemm_tuning.fastest(grid.backend, grid.world, 5, 1000, 7, True, False, np.float32)) == taken
        )


def test_trials_are_short(backend, monkeypatch):
    """However many nodes there are."""
    from mpi4py import MPI

    grid, flops = Grid(MPI.COMM_SELF, backend=backend), []
    monkeypatch.setattr(TUNING, "gemm_trial_on_device" if backend.on_device else "gemm_trial", 1e5)
    monkeypatch.setattr(
        gemm_tuning, "_seconds", lambda on, form, A, B, out: flops.append(2 * A.size * B.shape[1]) or 1.0
    )
    empty = (0, 8, 4, False, False), (0, 0, 4, False, False), (0, 0, 0, True, False)
    for shape in ((10**9, 8, 4, False, False), (8, 10**9, 4, True, False), *empty):
        gemm_tuning.fastest(grid.backend, grid.world, *shape, np.float32)
    assert 0.9e5 < max(flops) <= 1e5


def test_the_first_call_of_a_form_does_not_count(backend, monkeypatch):
    """Libraries load and kernels are compiled in it, which takes longer than twice the usual form."""
    from mpi4py import MPI

    grid, calls = Grid(MPI.COMM_SELF, backend=backend), {}

    def seconds(on, form, A, B, out):
        calls[str(form)] = calls.get(str(form), 0) + 1
        return (
            1.0
            if str(form) == "NN"
            else 100.0
            if calls[str(form)] == 1
            else 0.5
            if str(form) == "NT"
            else 0.95
        )

    monkeypatch.setattr(gemm_tuning, "_seconds", seconds)
    assert str(gemm_tuning.fastest(grid.backend, grid.world, 50, 6, 7, False, False, np.float32)) == "NT"
