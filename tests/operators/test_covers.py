"""Products that send minimum vertex covers: the oracle, and exactly Σ cover(A_ij) f words, both ways."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from awkward_shapes import awkward
from chosen_grids import some_grids, wide_grid
from distgnn.gallery import rmat
from distgnn.layout import partition
from distgnn.local.covers import cover, split
from distgnn.operators import SPARSITY_AWARE, grids, make_grid

from .counts import check_price, matched, rows_fetched, rows_returned, shares_of
from .test_products import awkward_matrices, check_product, uneven

MATRICES = awkward()
WIDTH = 5
names = pytest.mark.parametrize("name", SPARSITY_AWARE)


def smallest(A: sp.csr_array) -> int:
    """Find the size of a minimum vertex cover by trying all sets of rows; the columns follow."""
    pattern = A.toarray() != 0
    sets = ([bool(mask >> i & 1) for i in range(A.shape[0])] for mask in range(1 << A.shape[0]))
    return min(sum(rows) + int(pattern[~np.array(rows)].any(axis=0).sum()) for rows in sets)


def test_covers_are_covers_and_no_smaller_ones_exist():
    for seed in range(60):
        r = np.random.default_rng(seed)
        shape = tuple(r.integers(1, 8, 2))
        A = sp.random_array(shape, density=r.uniform(0, 0.9), format="csr", rng=r)
        rows, columns = cover(A)
        entries = A.tocoo()
        assert (rows[entries.row] | columns[entries.col]).all()
        assert rows.sum() + columns.sum() == smallest(A), seed
        fetched, partial = split(A)
        assert (abs(fetched + partial - A)).nnz == 0 and fetched.nnz + partial.nnz == A.nnz
        assert columns[fetched.indices].all() and not columns[partial.indices].any()
        assert np.unique(fetched.indices).size + np.unique(partial.tocoo().row).size == smallest(A), seed


@pytest.mark.ranks(1, 3, 4)
@names
@pytest.mark.slow
def test_awkward_matrices(comm, name, backend):
    grid = wide_grid(comm, name, backend)
    for matrix, A in awkward_matrices(comm.Get_size()).items():
        check_product(A, grid, name, WIDTH, label=matrix, sparsity_aware="cover")
    grid.free()


@pytest.mark.ranks(1, 3, 4, 6)
@names
@pytest.mark.parametrize("cut", [partition, uneven])
def test_ledger_equals_the_covers_on_every_grid(comm, name, backend, cut):
    """To the word on every rank, forward and adjoint, directed and rectangular matrices."""
    for number, sizes in enumerate(some_grids(name, comm.Get_size())):
        grid = make_grid(comm, name, sizes, backend=backend)
        for matrix in ("prime", "wide") if comm.Get_size() < 4 else ("prime", "wide")[number % 2 :: 2]:
            A, label = MATRICES[matrix], f"{matrix} on {sizes}"
            parts = {"row_parts": cut(A.shape[0], sizes["rows"]), "col_parts": cut(A.shape[1], sizes["rows"])}
            how = {"label": label, "sparsity_aware": "cover", **parts}
            operator, H, G = check_product(A, grid, name, WIDTH, **how)
            check_price(lambda: operator @ H, operator.prices.product(WIDTH), label)  # noqa: B023
            adjoint = check_price(lambda: operator.T @ G, operator.prices.adjoint(WIDTH), label)  # noqa: B023
            if operator.algorithm.A.__class__.__name__ == "CoveredRows":
                check_covers(operator, A, label)
            fetched = {entry["matrix"] for entry in adjoint.entries() if entry["operation"] == "alltoallv"}
            assert fetched <= {"G", "sums", "T"}, "the adjoint fetches rows of G"
        grid.free()


def check_covers(operator: dg.DistSparse, A: sp.csr_array, label: str) -> None:
    """Check that what travels has the size of the covers of the blocks."""
    cut, lefts = operator.algorithm, shares_of(operator)
    held, i, tops = cut.A, cut.column.rank, cut.row_parts
    fetched, partial = held.fetched.rows, held.partial.rows
    expected = rows_fetched(A, tops, lefts, i, range(len(lefts) - 1), matched)
    assert sum(fetched.counts()) + sum(partial.counts(back=True)) == expected, label
    back = rows_returned(A, tops, lefts, i, matched)
    assert sum(fetched.counts(back=True)) + sum(partial.counts()) == back, label


@pytest.mark.ranks(3, 4)
@names
def test_fewer_rows_than_are_read_and_the_same_bits_with_overlap(comm, name, backend):
    """Rows above MPI's eager limit, several products in a row."""
    A = rmat(1024, degree=12, directed=True, features=0, classes=0).A.astype(np.float32)
    A.data[:] = np.random.default_rng(0).standard_normal(A.nnz)
    X = np.random.default_rng(1).standard_normal((A.shape[0], 64)).astype(np.float32)
    words, results = [], []
    sizes = next(sizes for sizes in grids(name, comm.Get_size()) if sizes["rows"] > 1)
    for aware, overlap in ((True, True), ("cover", True), ("cover", False)):
        grid = make_grid(comm, name, sizes, backend=backend)
        grid.overlap = overlap
        operator = dg.distribute(A, grid, name, sparsity_aware=aware)
        H = dg.scatter(X, operator.input_layout)
        with dg.Ledger() as ledger:
            chain = [operator @ H, operator.T @ (operator @ H), operator @ (operator @ (operator @ H))]
        words.append(ledger.words)
        results.append([Y.block.tobytes() for Y in chain])
    assert results[1] == results[2]
    received = comm.allreduce(np.array(words))
    assert received[1] == received[2] < received[0]
