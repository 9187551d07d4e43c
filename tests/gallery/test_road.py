"""Road maps: the shape they promise."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from distgnn import gallery
from distgnn.gallery import RoadMap

from .kinds import drawn


def test_road_edges_join_neighbouring_cells_of_the_map() -> None:
    made = RoadMap(3001, tile=16)
    rows, columns = np.zeros((2, made.n), np.int64)
    for strip in range(made.edge_chunks):
        ids = made._ids(strip, made._strip(strip)[2])
        row, column = np.nonzero(ids >= 0)
        rows[ids[row, column]], columns[ids[row, column]] = row + strip * made.tile, column
    assert len({*zip(rows, columns, strict=True)}) == made.n  # the grid's own embedding: no two edges cross
    src, dst = drawn(made)
    assert set(abs(rows[src] - rows[dst]) + abs(columns[src] - columns[dst])) == {1}
    tiles = rows // made.tile * made.tiles + columns // made.tile
    assert (np.diff(tiles) >= 0).all()


def test_road_degrees_and_giant_component() -> None:
    A = gallery.road(20_000, features=0).A
    degrees = np.diff(A.indptr)
    assert degrees.max() <= 4
    assert 2.0 < degrees.mean() < 2.4
    assert np.isin(degrees, (2, 3)).mean() > 0.85
    assert (degrees == 2).mean() > 0.75
    components = sp.csgraph.connected_components(A, directed=False)[1]
    assert np.bincount(components).max() > 0.95 * 20_000


def test_road_without_junction_spacing_is_the_lattice_with_gaps() -> None:
    degrees = np.diff(
        gallery.road(10_000, spacing=1, missing_roads=0.0, missing_nodes=0.0, features=0).A.indptr
    )
    assert 3.9 < degrees.mean() < 4.0


def test_road_nonzeros_crowd_around_the_diagonal() -> None:
    A = gallery.road(20_000, features=0).A.tocoo()
    blocks = np.zeros((8, 8))
    np.add.at(blocks, (A.row * 8 // 20_000, A.col * 8 // 20_000), 1)
    assert np.trace(blocks) > 0.9 * A.nnz
    assert (blocks == 0).sum() >= 64 - 8 - 2 * (7 + 6)
