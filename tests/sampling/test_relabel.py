"""Renumbering against products with extraction matrices, compiled and in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.local import host
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack

N = 40


@pytest.fixture(params=["compiled", "numpy"])
def labels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Relabelling:
    if request.param == "numpy":
        monkeypatch.setattr(host, "module", lambda: None)
    elif host.module() is None:
        pytest.skip("the host kernels are not built here")
    return Relabelling(N)


def problem(sizes: list[tuple[int, int]], seed: int = 0) -> tuple[Stack, Stack]:
    """Draw ids with repetitions, and distinct known ids, of these numbers per minibatch."""
    generator = np.random.default_rng(seed)
    ids = Stack.of([generator.integers(0, N, count) for count, _ in sizes])
    return ids, Stack.of([generator.choice(N, known, replace=False) for _, known in sizes])


SIZES = [[(30, 10)], [(30, 10), (0, 5), (20, 0), (100, 40), (7, 1)], [(0, 0), (0, 3)], [(0, 0), (5, 0)], []]


@pytest.mark.parametrize("sizes", SIZES)
def test_finding_is_a_product_with_the_extraction_matrix(
    sizes: list[tuple[int, int]], labels: Relabelling
) -> None:
    """Section 4.2.4: rows of one non-zero each, block b in columns b n ... b n + n - 1, times Q_C."""
    ids, known = problem(sizes)
    k = len(sizes)
    for _ in range(2):  # the table is as it was
        found = labels.find(ids, known)
    R = sp.csr_array(
        (np.ones(len(ids.ids)), ids.owners * N + ids.ids, np.arange(len(ids.ids) + 1)),
        shape=(len(ids.ids), k * N),
    )
    places = (known.owners * N + known.ids, np.arange(len(known.ids)))
    Q_C = sp.coo_array((np.ones(len(known.ids)), places), shape=(k * N, len(known.ids)))
    product = R @ Q_C.tocsr()
    expected = np.full(len(ids.ids), -1)
    rows, columns = product.nonzero()
    expected[rows] = columns - known.bounds[known.owners[columns]]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("sizes", SIZES)
def test_extending_numbers_everything(sizes: list[tuple[int, int]], labels: Relabelling) -> None:
    ids, known = problem(sizes)
    for _ in range(2):
        numbers, lists = labels.extend(ids, known)
    numbers = numbers.ids
    for b in range(len(sizes)):
        own, seeds = (stack.ids[stack.bounds[b] : stack.bounds[b + 1]].tolist() for stack in (ids, known))
        expected = list(dict.fromkeys(seeds + own))  # in the order in which they first occur
        assert lists.ids[lists.bounds[b] : lists.bounds[b + 1]].tolist() == expected
        assert numbers[ids.bounds[b] : ids.bounds[b + 1]].tolist() == [expected.index(one) for one in own]


def test_ids_outside_of_the_graph_are_refused() -> None:
    if host.module() is None:
        pytest.skip("the host kernels are not built here")
    for wrong in (-1, N):
        with pytest.raises(ValueError, match=f"must lie in 0..{N - 1}, got {wrong}"):
            Relabelling(N).find(Stack.of([np.array([wrong])]), Stack.of([np.array([0])]))
