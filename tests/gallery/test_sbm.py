"""Planted partitions: the statistics they promise."""

from __future__ import annotations

import numpy as np

from distgnn.gallery import PlantedPartition
from loops import each

from .kinds import drawn


@each("mixing", [0.0, 0.1, 0.6, 1.0])
@each("exponent", [None, 2.5])
def test_sbm_share_of_leaving_edges_is_the_mixing(mixing: float, exponent: float | None) -> None:
    made = PlantedPartition(
        2003, communities=12, mixing=mixing, size_exponent=exponent, degree_exponent=exponent
    )
    src, dst = drawn(made)
    community = made.labels()
    assert community is not None
    share = (community[src] != community[dst]).mean()
    assert abs(share - mixing) <= 5 * np.sqrt(mixing * (1 - mixing) / len(src))
    assert not (src == dst).any()


def test_sbm_community_sizes() -> None:
    equal = np.bincount(PlantedPartition(1000, communities=7).labels())  # type: ignore[arg-type]
    power = np.bincount(PlantedPartition(1000, communities=7, size_exponent=2.0).labels())  # type: ignore[arg-type]
    assert equal.sum() == power.sum() == 1000
    assert np.ptp(equal) <= 1
    assert power.min() >= 1
    assert power.max() > 2 * power.min()


def test_sbm_degrees() -> None:
    equal, power = (
        np.bincount(
            drawn(PlantedPartition(3000, degree=20, degree_exponent=exponent)).ravel(), minlength=3000
        )
        for exponent in (None, 2.2)
    )
    assert equal.mean() == power.mean() == 20
    assert 15 < equal.var() < 25  # Poisson
    assert power.var() > 200
    assert power.max() < 2 * np.sqrt(3000 * 20)


def test_sbm_edges_of_a_community_of_one_node_leave() -> None:
    made = PlantedPartition(50, communities=50, mixing=0.0, degree=10)
    src, dst = drawn(made)
    assert not (src == dst).any()


def test_sbm_label_is_the_community_modulo_classes() -> None:
    communities, classes = (PlantedPartition(100, communities=6, classes=c).labels() for c in (None, 4))
    np.testing.assert_array_equal(communities % 4, classes)  # type: ignore[operator]
