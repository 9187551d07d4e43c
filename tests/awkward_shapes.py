"""Small matrices on which distributed products tend to break; every operator test runs on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp


def awkward(seed: int = 0) -> dict[str, sp.csr_array]:
    """Name -> CSR matrix (float64, int32 indices, rows sorted, no duplicates), the same for the same `seed`.

    All are square except `wide`, `tall` and `wide_vector`; none has more than 67 rows. Values are never 1 and
    positions are never symmetric unless the name says so: neither lost values nor the transpose may pass.
    """
    rng = np.random.default_rng(seed)
    cases = {
        "prime": _random(rng, 31, 31, 0.15),
        "larger_prime": _random(rng, 67, 67, 0.06),
        "symmetric": _symmetric(rng, 33, 0.12),
        "directed": _keep(_random(rng, 29, 29, 0.3), lambda i, j: i > j),
        "dense": _random(rng, 11, 11, 1.0),
        "mixed_sign": _zero_row_sums(rng, 23, 0.3),
        "diagonal": _keep(_random(rng, 19, 19, 1.0), lambda i, j: i == j),
        "stored_zeros": _with_stored_zeros(rng, 21, 0.3),
    }
    cases |= _tiny(rng) | _empty_parts(rng) | _hubs(rng)
    cases |= {
        "wide": _random(rng, 17, 43, 0.15),
        "tall": _random(rng, 43, 17, 0.15),
        "wide_vector": _random(rng, 1, 13, 0.5),
    }
    return {name: _canonical(A) for name, A in cases.items()}


def _tiny(rng: np.random.Generator) -> dict[str, sp.csr_array]:
    """Make matrices of fewer nodes than ranks: some blocks have no rows at all."""
    return {
        "one": sp.csr_array(np.array([[2.5]])),
        "one_empty": sp.csr_array((1, 1)),
        "two": sp.csr_array(np.array([[0.0, 3.0], [0.0, -1.5]])),
        "three": _random(rng, 3, 3, 0.7),
        "smaller_than_grid": _random(rng, 5, 5, 0.5),
    }


def _empty_parts(rng: np.random.Generator) -> dict[str, sp.csr_array]:
    """Make matrices with rows, columns or blocks without non-zeros: some ranks hold or need nothing."""
    return {
        "no_edges": sp.csr_array((13, 13)),
        "one_edge_in_the_corner": sp.csr_array(([2.0], ([13], [0])), shape=(14, 14)),
        "empty_rows": _keep(_random(rng, 32, 32, 0.3), lambda i, j: i % 3 == 1),
        "empty_columns": _keep(_random(rng, 32, 32, 0.3), lambda i, j: j % 3 == 1),
        "block_of_empty_rows": _keep(_random(rng, 40, 40, 0.2), lambda i, j: (i < 8) | (i >= 30)),
        "block_of_empty_columns": _keep(_random(rng, 40, 40, 0.2), lambda i, j: (j < 8) | (j >= 30)),
        "only_first_block": _keep(_random(rng, 41, 41, 0.8), lambda i, j: (i < 6) & (j < 6)),
        "block_diagonal": _keep(_random(rng, 36, 36, 0.7), lambda i, j: i // 9 == j // 9),
    }


def _hubs(rng: np.random.Generator) -> dict[str, sp.csr_array]:
    """Make matrices with one node adjacent to all others: the extreme imbalance of a power-law graph."""
    return {
        "hub_row": _with_star(rng, _random(rng, 37, 37, 0.04), np.s_[5, :]),
        "hub_column": _with_star(rng, _random(rng, 37, 37, 0.04), np.s_[:, 30]),
        "star": _with_star(rng, sp.csr_array((37, 37)), np.s_[36, :], np.s_[:, 36]),
    }


def _random(rng: np.random.Generator, m: int, n: int, density: float) -> sp.csr_array:
    values = rng.uniform(0.5, 2.0, size=(m, n))
    return sp.csr_array(np.where(rng.random((m, n)) < density, values, 0.0))


def _symmetric(rng: np.random.Generator, n: int, density: float) -> sp.csr_array:
    upper = np.triu(_random(rng, n, n, density).toarray())
    return sp.csr_array(upper + np.triu(upper, 1).T)


def _zero_row_sums(rng: np.random.Generator, n: int, density: float) -> sp.csr_array:
    """Make rows of both signs that sum to zero: a check of row sums alone sees no error."""
    dense = _random(rng, n, n, density).toarray() * rng.choice([-1.0, 1.0], size=(n, n))
    np.fill_diagonal(dense, 0.0)
    np.fill_diagonal(dense, -dense.sum(axis=1))
    return sp.csr_array(dense)


def _with_stored_zeros(rng: np.random.Generator, n: int, density: float) -> sp.csr_array:
    """Store zeros as part of the pattern: they are communicated and counted like any non-zero."""
    A = _random(rng, n, n, density)
    A.data[::4] = 0.0
    return A


def _with_star(rng: np.random.Generator, A: sp.csr_array, *where: Any) -> sp.csr_array:
    """Fill rows or columns, given as indices such as np.s_[5, :]."""
    dense = A.toarray()
    for line in where:
        dense[line] = rng.uniform(0.5, 2.0, size=len(dense))
    return sp.csr_array(dense)


def _keep(A: sp.csr_array, where: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> sp.csr_array:
    i, j = np.indices(A.shape)
    return sp.csr_array(np.where(where(i, j), A.toarray(), 0.0))


def _canonical(A: sp.csr_array) -> sp.csr_array:
    A = sp.csr_array(A, dtype=np.float64)
    A.indptr, A.indices = A.indptr.astype(np.int32), A.indices.astype(np.int32)
    A.sort_indices()
    return A
