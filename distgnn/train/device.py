"""Settings of a run that are of its grid and its device."""

from __future__ import annotations

from typing import Any

from distgnn.comm.grid import Grid
from distgnn.train.settings import Settings


def configure(grid: Grid, settings: Settings) -> None:
    """Set how products of a run are made. Collective; ArgumentError where a device cannot do that."""
    grid.overlap, grid.block_rows = settings.overlap, settings.block_rows
    with grid.world.together():
        grid.backend.use_tf32(settings.tf32)


def of_whole_graph(settings: Settings) -> dict[str, Any]:
    """Return the arguments of ``full_graph.train`` that minibatches do not have."""
    return {"train_features": settings.train_features, "cuda_graph": settings.cuda_graph}
