"""Products, extraction and renumbering on a GPU against SciPy and the host, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.local import cuda, host
from distgnn.local.array_draw import row_keys
from distgnn.local.csr_rows import row_pointers
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from kernels.conftest import in_orders
from loops import each

from ..sampling.test_relabel import SIZES, N, problem


def orders(gpu):
    return in_orders(gpu, (0, 1, 5))


def moved(gpu, A, index=np.int64):
    """Move the arrays of a matrix to the GPU."""
    arrays = A.indptr.astype(np.int64), A.indices.astype(index), A.data
    return cuda.Product(*map(gpu.asarray, arrays), A.shape)


def random(shape, dtype, seed):
    """Draw values of both signs, some of which cancel; empty rows and columns, and a full one of each."""
    r = np.random.default_rng(seed)
    dense = np.where(r.random(shape) < 0.15, r.integers(-3, 4, shape) + r.choice((0, 0.1), shape), 0)
    dense[:, 5], dense[4], dense[::7], dense[:, ::6] = 1, -1, 0, 0
    return sp.csr_array(dense.astype(dtype))


@each("index", [np.int32, np.int64])
@each("dtype", [np.float32, np.float64])
def test_products_have_the_bits_of_scipy(gpu, dtype, index):
    for m in (1, 20, 0):
        Q, A = random((20, 50), dtype, 1)[:m], random((50, 37), dtype, 2)
        expected = sp.csr_array((Q != 0).astype(int) @ (A != 0).astype(int))
        expected.sort_indices()
        rows, columns = expected.nonzero()
        expected.data = (Q @ A).toarray()[rows, columns]  # with the 0 of what cancels
        assert m != 20 or (expected.data == 0).any()
        for _ in orders(gpu):
            there = moved(gpu, A, index)
            found, count = cuda.spgemm(moved(gpu, Q), there, there.indptr)
            assert count == np.diff(A.indptr)[Q.indices].sum() and found.shape == expected.shape
            for name in ("indptr", "indices", "data"):
                one, other = gpu.to_host(getattr(found, name)), getattr(expected, name)
                assert one.tolist() == other.tolist()
            assert found.data.dtype == dtype and found.ends.tolist() == expected.indptr.tolist()


@pytest.mark.parametrize("sizes", SIZES)
def test_numbers_are_those_of_the_host(gpu, sizes, monkeypatch):
    """However the threads come to the table."""
    ids, known = problem(sizes)
    monkeypatch.setattr(host, "module", lambda: None)
    labels, lists = Relabelling(N).extend(ids, known)
    given = [tuple(map(gpu.asarray, stack.arrays)) for stack in (ids, known)]
    for _ in orders(gpu):
        numbering = cuda.Numbering(*given, N)
        assert gpu.to_host(numbering.bounds).tolist() == lists.bounds.tolist()
        found = numbering.numbers(len(lists.ids))
        for one, other in zip(found, (labels.ids, lists.ids), strict=True):
            assert gpu.to_host(one).tolist() == other.tolist()


def test_a_table_that_ids_share_places_in(gpu, monkeypatch):
    """The table is as full as any ever is, with ids of many minibatches."""
    ids, known = problem([(40, 3)] * 25, seed=4)
    monkeypatch.setattr(host, "module", lambda: None)
    labels, lists = Relabelling(N).extend(ids, known)
    for _ in orders(gpu):
        numbering = cuda.Numbering(*(tuple(map(gpu.asarray, s.arrays)) for s in (ids, known)), N)
        assert gpu.to_host(numbering.numbers(len(lists.ids))[0]).tolist() == labels.ids.tolist()


@each("index", [np.int32, np.int64])
@each("scaled", [False, True])
@each("dtype", [np.float32, np.float64])
def test_columns_are_those_of_a_submatrix(gpu, dtype, scaled, index):
    """Three minibatches, one without rows and one without columns."""
    A, r = random((30, 40), dtype, 3), np.random.default_rng(0)
    rows, cols = [[3, 1, 28, 4], [], [5, 4], [2]], [[0, 4, 5, 39], [7, 8], [], list(range(40))]
    scale = r.uniform(0.5, 2, sum(map(len, cols)))
    lists = [Stack.of([np.array(one, np.int64) for one in each]).arrays for each in (rows, cols)]
    there = [tuple(map(gpu.asarray, each)) for each in lists]
    indptr, columns = gpu.asarray(A.indptr.astype(np.int64)), gpu.asarray(A.indices.astype(index))
    for _ in orders(gpu):
        *entries, offsets = cuda.entries_of(indptr, there[0][1])
        found = cuda.find_columns(*there, tuple(entries), columns)
        places = gpu.to_host(found[1])[gpu.to_host(offsets)]
        factors = gpu.asarray(scale) if scaled else None
        labels, values = cuda.keep_entries(
            *there, tuple(entries), found, int(places[-1]), gpu.asarray(A.data), factors
        )
        labels, values = gpu.to_host(labels), gpu.to_host(values)
        assert values.dtype == dtype
        for b, (own, chosen) in enumerate(zip(rows, cols, strict=True)):
            expected = A[np.array(own, int)][:, np.array(chosen, int)]
            if scaled:
                top = lists[1][0][b]
                expected.data *= scale[top + expected.indices].astype(dtype)
            pointers = places[lists[0][0][b] : lists[0][0][b + 1] + 1]
            mine = slice(pointers[0], pointers[-1])
            assert labels[mine].tolist() == expected.indices.tolist()
            assert values[mine].tolist() == expected.data.tolist()
            assert (pointers - pointers[0]).tolist() == expected.indptr.tolist()


def test_keys_and_lengths_of_rows(gpu):
    ids, _ = problem(SIZES[1])
    keys = np.arange(5, dtype=np.uint64)
    found = cuda.row_keys(tuple(map(gpu.asarray, ids.arrays)), gpu.asarray(keys))
    assert gpu.to_host(found).tolist() == row_keys(keys[ids.owners], ids.ids).tolist()
    pointers = row_pointers(np.arange(N))
    lengths = cuda.row_lengths(gpu.asarray(pointers), gpu.asarray(ids.ids))
    assert gpu.to_host(lengths).tolist() == ids.ids.tolist()


def test_bad_input_is_refused(gpu):
    ids, bounds = gpu.asarray(np.arange(4)), gpu.asarray(np.array([0, 4]))
    with pytest.raises(ValueError, match="Numbering: the ids of known must be"):
        cuda.Numbering((bounds, ids), (bounds, ids.astype(np.int32)), N)
    with pytest.raises(ValueError, match="row_keys: keys must be"):
        cuda.row_keys((bounds, ids), gpu.asarray(np.zeros(2, np.uint64)))
    with pytest.raises(ValueError, match="spgemm: Q must be"):
        one = moved(gpu, sp.csr_array(np.eye(3, dtype=np.float32)))
        cuda.spgemm(one, moved(gpu, sp.csr_array(np.eye(3))), one.indptr)
