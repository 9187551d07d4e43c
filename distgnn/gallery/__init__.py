"""Generated graphs of any size, and matrices of awkward shapes.

`rmat`, `sbm` and `road` return whole graphs; `RMat`, `PlantedPartition` and `RoadMap` are the same graphs in
chunks, which `write` streams to disk. `awkward` returns small matrices that every operator is tested on.
"""

from distgnn.gallery.awkward_shapes import awkward
from distgnn.gallery.directory import write
from distgnn.gallery.graph import GeneratedGraph
from distgnn.gallery.matrices import Graph, in_memory, rmat, road, sbm
from distgnn.gallery.rmat_graph import RMat
from distgnn.gallery.road_graph import RoadMap
from distgnn.gallery.sbm_graph import PlantedPartition

__all__ = [
    "GeneratedGraph", "Graph", "PlantedPartition", "RMat", "RoadMap", "awkward", "in_memory", "rmat", "road",
    "sbm", "write",
]  # fmt: skip
