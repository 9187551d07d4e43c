"""Matrix-based sampling in bulk (Tripathy, Yelick and Buluç, MLSys 2024).

The steps are: ``P = Q A``, sample the rows of P, extract. A sampler takes k minibatches at once, stacks their
Q (section 4.1.4), and multiplies by any :class:`Graph`, replicated or partitioned. Nodes go in and come out
by id, whatever the order of a stored graph. Every random number is a function of (seed, epoch, minibatch,
layer, vertex or draw), so a sample depends neither on the bulk in which it was drawn, nor on ranks.
"""

from distgnn.sampling.block import Block, Sample
from distgnn.sampling.cluster import Cluster
from distgnn.sampling.fetch import Features
from distgnn.sampling.graph import Graph
from distgnn.sampling.layerwise import FastGCN, Ladies
from distgnn.sampling.rows import sample_rows
from distgnn.sampling.sage import GraphSage
from distgnn.sampling.saint import Saint
from distgnn.sampling.sampler import Sampler
from distgnn.sampling.shadow import Shadow
from distgnn.sampling.spgemm import Partitioned, Replicated

__all__ = [
    "Block", "Cluster", "FastGCN", "Features", "Graph", "GraphSage", "Ladies", "Partitioned",
    "Replicated", "Saint", "Sample", "Sampler", "Shadow", "sample_rows",
]  # fmt: skip
