"""R-MAT graphs: the statistics they promise."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from distgnn import gallery
from distgnn.gallery import RMat, rmat_graph
from distgnn.gallery.streams import stream
from loops import each

from .kinds import drawn


@each("scale", [5, 8, 13])
def test_rmat_quadrants_have_their_probabilities_on_every_level(scale: int) -> None:
    quadrants = (0.5, 0.25, 0.15, 0.1)
    src, dst = drawn(RMat(scale=scale, edges=40_000, probabilities=quadrants, scramble=False))
    for level in range(scale):
        chosen = 2 * (src >> level & 1) + (dst >> level & 1)
        np.testing.assert_allclose(np.bincount(chosen, minlength=4) / 40_000, quadrants, atol=0.0125)


def test_rmat_endpoint_beyond_the_last_node_loses_its_highest_bit() -> None:
    options = {"edges": 5_000, "scramble": False, "features": 0}
    whole, cut = drawn(RMat(1024, **options)), drawn(RMat(700, **options))
    np.testing.assert_array_equal(cut, np.where(whole < 700, whole, whole - 512))


def test_rmat_degrees_are_skewed_unless_the_quadrants_are_equal() -> None:
    skewed, even = (
        np.bincount(drawn(RMat(4096, probabilities=p)).ravel(), minlength=4096)
        for p in (rmat_graph.GRAPH500, (0.25,) * 4)
    )
    assert skewed.sum() == even.sum() == 16 * 4096
    assert skewed.max() > 30 * skewed.mean()
    assert even.max() < 3 * even.mean()
    assert (skewed == 0).mean() > 0.2 > 0.01 > (even == 0).mean()


def test_rmat_scrambling_only_renumbers() -> None:
    plain, scrambled = (drawn(RMat(500, scramble=scramble)) for scramble in (False, True))
    degrees = [np.bincount(edges.ravel(), minlength=500) for edges in (plain, scrambled)]
    assert not np.array_equal(*degrees)
    np.testing.assert_array_equal(*map(np.sort, degrees))
    assert (
        abs(np.corrcoef(np.arange(500), degrees[1])[0, 1])
        < 0.2
        < -np.corrcoef(np.arange(500), degrees[0])[0, 1]
    )


@each("directed", [False, True])
def test_rmat_labels_are_those_of_averaged_states(directed: bool) -> None:
    made = RMat(200, degree=6, directed=directed)
    src, dst = drawn(made)
    A = sp.csr_array((np.ones(len(src)), (dst, src)), shape=(200, 200))
    mean = sp.eye_array(200, format="csr") + (A if directed else A + A.T)
    mean = sp.diags_array(1 / mean.sum(axis=1)) @ mean
    directions = gallery.streams.unit_rows(stream(0, "classes"), 8, rmat_graph.DIMENSIONS)
    signal = mean @ mean @ made._directions[made._hidden]
    agree = (signal @ directions.T).argmax(axis=1) == made.labels()
    assert agree.mean() > 0.99  # but for rounding
