"""Exact distributions of what the samplers draw, and tests of counts against them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.special import chdtrc  # of scipy.stats, whose import takes a second

LEVEL = 0.001
Subsets = dict[int, float]  # bit mask of columns -> probability


def subset_probabilities(weights: Sequence[float], count: int) -> Subsets:
    """Compute the probability of every set of `count` columns that successive sampling may draw: one by one,
    in proportion to weight among the rest.
    """
    reached: Subsets = {0: 1.0}
    for _ in range(min(count, np.count_nonzero(weights))):
        after: Subsets = defaultdict(float)
        for drawn, probability in reached.items():
            left = [w if not drawn >> i & 1 else 0.0 for i, w in enumerate(weights)]
            for i, w in enumerate(left):
                if w:
                    after[drawn | 1 << i] += probability * w / sum(left)
        reached = after
    return dict(reached)


def inclusion_probabilities(subsets: Subsets, columns: int) -> np.ndarray:
    return np.array([sum(p for drawn, p in subsets.items() if drawn >> i & 1) for i in range(columns)])


def masks(members: np.ndarray) -> np.ndarray:
    """Return a bit mask of every row of a bool matrix (draws, columns)."""
    return members @ (1 << np.arange(members.shape[1]))


def p_value(members: np.ndarray, subsets: Subsets) -> float:
    """Compute the p-value of the χ² test that the rows of `members` (bool, draws × columns) are draws from
    these subsets.

    Subsets expected fewer than five times are one class together; one that cannot be drawn makes it 0.
    """
    found, times = np.unique(masks(members), return_counts=True)
    observed = dict(zip(found.tolist(), times.tolist(), strict=True))
    if not observed.keys() <= subsets.keys():
        return 0.0
    expected = {drawn: p * len(members) for drawn, p in subsets.items()}
    common = [drawn for drawn, times in expected.items() if times >= 5]
    wanted = np.array([expected[drawn] for drawn in common])
    seen = np.array([observed.get(drawn, 0) for drawn in common])
    rest = len(members) - wanted.sum()
    if rest > 1e-6 * len(members):
        wanted, seen = np.append(wanted, rest), np.append(seen, len(members) - seen.sum())
    assert len(wanted) > 1, "one outcome only: nothing to test"
    return float(chdtrc(len(wanted) - 1, ((seen - wanted) ** 2 / wanted).sum()))


def p_value_inclusion(members: np.ndarray, subsets: Subsets) -> float:
    """Compute the p-value of the χ² test of the inclusion frequencies, whose covariance is that of the exact
    subsets.
    """
    columns = members.shape[1]
    drawn = np.array([[mask >> i & 1 for i in range(columns)] for mask in subsets], float)
    p = np.array(list(subsets.values()))
    mean = p @ drawn
    covariance = (drawn - mean).T * p @ (drawn - mean) / len(members)
    off = members.mean(axis=0) - mean
    rank = np.linalg.matrix_rank(covariance, hermitian=True)
    return float(chdtrc(rank, max(off @ np.linalg.pinv(covariance, hermitian=True) @ off, 0.0)))


def assert_mean(draws: np.ndarray, expected: np.ndarray, deviations: float = 4.5) -> None:
    """Check that the mean over axis 0 is the expected one, entry by entry, within standard errors.

    The standard errors must be small. The relative 1e-4 is for entries that differ from the mean so rarely
    that their standard error cannot be estimated.
    """
    error = draws.std(axis=0) / np.sqrt(len(draws))
    off = np.abs(draws.mean(axis=0) - expected)
    assert (off <= deviations * error + 1e-4 * np.abs(expected)).all(), (
        off / np.maximum(error, 1e-300)
    ).max()
    assert (error <= 0.1 * np.abs(expected).max()).all(), "too few draws to tell"
