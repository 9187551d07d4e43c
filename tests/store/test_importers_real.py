"""Published data sets, where they lie beside the clone: in ``../shared/data/cora`` and
``../shared/data/facebook``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions, Source

from .importing import all_features

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def undirected_edges(source: Source) -> int:
    """Count distinct pairs without self-loops."""
    keys = [
        np.minimum(src, dst)[src != dst] * source.n + np.maximum(src, dst)[src != dst]
        for src, dst, _ in source.edges()
    ]
    return len(np.unique(np.concatenate(keys)))


@pytest.mark.skipif(not (DATA / "cora").exists(), reason=f"Cora is not in {DATA}")
@pytest.mark.slow
def test_cora():
    source = open_source(DATA / "cora")
    assert (source.name, source.n, source.width, source.classes, source.directed) == (
        "cora",
        2708,
        1433,
        7,
        False,
    )
    assert undirected_edges(source) == 5278
    assert np.bincount(source.split).tolist() == [1068, 140, 500, 1000]
    assert np.bincount(source.labels).tolist() == [351, 217, 418, 818, 426, 298, 180]
    assert np.bincount(source.labels[source.split == 1]).tolist() == [20] * 7
    features = all_features(source)
    assert features.sum() == 49216 and set(np.unique(features)) == {0, 1}


@pytest.mark.skipif(not (DATA / "facebook").exists(), reason=f"the page graph is not in {DATA}")
@pytest.mark.slow
def test_facebook():
    source = open_source(DATA / "facebook", ImportOptions(split="0.6/0.2/0.2"))
    assert (source.name, source.n, source.width) == ("facebook", 22470, 4714)
    assert source.class_names == ["company", "government", "politician", "tvshow"]
    assert np.bincount(source.labels).tolist() == [6495, 6880, 5768, 3327]
    assert np.bincount(source.split).tolist() == [0, 13482, 4494, 4494]
    assert undirected_edges(source) == 170823
    sample = source.features(np.array([554, 22469]))
    assert sample[0].sum() == 22 and sample[0, [2835, 4518, 4708]].all()
