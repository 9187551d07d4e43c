"""The share of reads that a cache answers is that of a cache which keeps the rows read last."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.gallery import rmat
from distgnn.plan import Graph, reuse
from distgnn.plan.reuse import EVEN, of_rows, of_source
from distgnn.store.read.store import Store
from loops import each

from ..train.stores import prepared

N = 4096


SEQUENCES = {
    "random": np.random.default_rng(0).integers(0, N, 40_000),
    "hubs": (N * np.random.default_rng(0).random(40_000) ** 5).astype(int),
    "rmat": rmat(N, degree=16).A.indices,
    "band": (np.arange(N)[:, None] + np.arange(-4, 5)).reshape(-1) % N,
}


def found(columns, capacity):
    """Count the reads of the second half that a cache of the rows read last answers, as a share."""
    cache, hits = OrderedDict(), 0
    for place, row in enumerate(columns.tolist()):
        hits += row in cache and place >= len(columns) // 2
        cache[row] = None
        cache.move_to_end(row)
        if len(cache) > capacity:
            cache.popitem(last=False)
    return hits / (len(columns) - len(columns) // 2)


@pytest.mark.parametrize("name", SEQUENCES)
def test_reads_found_are_those_of_a_cache_of_the_rows_read_last(name):
    curve = of_rows([SEQUENCES[name]], N)
    assert curve.kept[0] == curve.answered[0] == 0 and curve.kept[-1] == curve.answered[-1] == 1
    assert np.all(np.diff(curve.kept) >= 0) and np.all(np.diff(curve.answered) >= 0)
    for capacity in (16, 64, 256, 1024):
        assert curve.share(capacity, N) == pytest.approx(found(SEQUENCES[name], capacity), abs=0.04)
    assert curve.share(N, N) == 1


def test_a_random_matrix_is_even():
    curve = of_rows([SEQUENCES["random"]] * 2, N)
    assert np.abs(np.array(curve.answered) - curve.kept).max() < 0.02
    assert [EVEN.share(some, 8) for some in (0, 2, 8, 9)] == [0, 0.25, 1, 1] and EVEN.share(0, 0) == 1


@each("columns", [np.empty(0, int), np.zeros(reuse.FEWEST - 1, int), np.empty((0,), np.int64)])
def test_few_entries_say_nothing(columns):
    assert of_rows([columns], N) is EVEN


def test_one_column_is_always_found_again():
    assert of_rows([np.zeros(1000, int)], 1).share(0.5, 1) >= 0.5
    assert of_rows([np.zeros(1000, int)], N).share(1, N) > 0.99


def test_places_of_a_matrix_stand_for_all_of_it(monkeypatch):
    A = sp.csr_array(rmat(N, degree=16).A)
    whole = of_rows([A.indices], N)
    monkeypatch.setattr(reuse, "READ", A.nnz // 6)
    told = []

    class Source:
        shape = A.shape

        @staticmethod
        def block(rows, cols):
            told.append(rows)
            assert cols == (0, N)
            return A[rows[0] : rows[1]]

    some = of_source(Source, A.nnz)
    assert len(told) == reuse.WINDOWS and sum(first + last for first, last in told) == pytest.approx(
        reuse.WINDOWS * N, abs=2 * reuse.WINDOWS
    )
    for kept in (0.02, 0.1, 0.2):
        assert some.share(kept, 1) == pytest.approx(whole.share(kept, 1), abs=0.06)


def test_what_is_known_of_a_graph_says_how_often_rows_are_found():
    A = sp.csr_array(rmat(N, degree=16).A)
    known = Graph.known(A, 8, 4, np.zeros(N, int), np.ones(N, np.uint8))
    assert known.reuse == of_rows([A.indices], N) == known.grown(2).reuse != EVEN
    for size in (0, N):
        assert Graph.of_size(size, 5 * size, 8, 4).reuse is EVEN
    store = Store(prepared())
    some, exact = (Graph.of_store(store, exact=exact).reuse for exact in (False, True))
    assert some == exact != EVEN


def test_a_row_that_is_read_again_at_once_is_found() -> None:
    """Each of a few rows in turn is found, too, once all of them are kept."""
    for rows in (1, 8):
        curve = of_rows([np.arange(1024) % rows], 64)
        assert curve.share(rows, 64) == 1 and curve.share(0.75 * rows, 64) < 1
        assert curve.share(0.5, 64) == (0.5 if rows == 1 else 0)
