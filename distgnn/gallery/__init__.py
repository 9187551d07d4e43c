"""Generated graphs of any size.

`rmat`, `sbm` and `road` return whole graphs; `RMat`, `PlantedPartition` and `RoadMap` are the same graphs in
chunks, which `write` streams to disk.
"""

from distgnn.gallery.directory import write
from distgnn.gallery.graph import GeneratedGraph
from distgnn.gallery.matrices import Graph, in_memory, rmat, road, sbm
from distgnn.gallery.rmat_graph import RMat
from distgnn.gallery.road_graph import RoadMap
from distgnn.gallery.sbm_graph import PlantedPartition

__all__ = [
    "GeneratedGraph", "Graph", "PlantedPartition", "RMat", "RoadMap", "in_memory", "rmat", "road", "sbm",
    "write",
]  # fmt: skip
