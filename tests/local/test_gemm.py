"""Dense products row by row: pieces, forms, and what the ledger counts."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn import local
from distgnn.arrays.tuning import TUNING
from distgnn.local import forms
from loops import each

RNG = np.random.default_rng(0)
A, B, C = RNG.standard_normal((23, 6)), RNG.standard_normal((6, 4)), RNG.standard_normal((23, 4))


@each("rows", [1, 5, 23, 100])
@each("form", [None, *forms.FORMS])
def test_pieces_of_rows_make_up_the_product(backend, monkeypatch, rows: int, form: forms.Form | None) -> None:
    monkeypatch.setattr(TUNING, "gemm_rows", rows)
    left, right = backend.asarray(A), backend.asarray(B)
    got = local.gemm(left, right, out=backend.asarray(np.full_like(C, np.nan)), form=form)
    np.testing.assert_allclose(backend.to_host(got), A @ B, rtol=1e-12)
    more = local.gemm(left, right, out=backend.asarray(C.copy()), accumulate=True, form=form)
    np.testing.assert_allclose(backend.to_host(more), A @ B + C, rtol=1e-12)


@each("pending, pieces", [(4, 6), (23, 1)])
def test_messages_are_driven_after_every_piece(monkeypatch, pending: int, pieces: int) -> None:
    polls: list[None] = []
    monkeypatch.setattr(TUNING, "gemm_rows", pending)
    monkeypatch.setattr("distgnn.progress.poll", lambda: polls.append(None))
    local.gemm(A, B)
    assert len(polls) == pieces


@each("accumulate", [False, True])
def test_bytes_that_are_touched(accumulate: bool) -> None:
    """A sum reads its result as well."""
    with dg.Ledger() as ledger:
        local.gemm(A, B, out=C.copy(), accumulate=accumulate)
    assert ledger.touched["gemm"] == A.nbytes + B.nbytes + (1 + accumulate) * C.nbytes


def test_operands_that_lie_as_asked_are_not_copied() -> None:
    by_column = np.asfortranarray(A)
    assert forms.laid(np, A, "N") is A and forms.laid(np, by_column, "T") is by_column
    for X, letter, contiguous in ((A, "T", "f_contiguous"), (by_column, "N", "c_contiguous")):
        copied = forms.laid(np, X, letter)
        assert getattr(copied.flags, contiguous) and not np.shares_memory(copied, X)
        np.testing.assert_array_equal(copied, A)


@pytest.mark.parametrize("shape", [(0, 6), (23, 0)])
def test_nothing_to_add_up(shape: tuple[int, int]) -> None:
    product = local.gemm(np.ones(shape), np.ones((shape[1], 4)), out=np.full((shape[0], 4), np.nan))
    np.testing.assert_array_equal(product, 0)
