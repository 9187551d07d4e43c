"""Minibatches divided among ranks, the graph too or not: the samples are those of one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

from chosen_grids import wide_grid
from distgnn.arrays.backend import get
from distgnn.errors import DisagreementError
from distgnn.operators import grids, make_grid
from distgnn.sampling import Cluster, FastGCN, GraphSage, Ladies, Partitioned, Replicated, Saint, Shadow
from distgnn.train import Minibatches

N = 60


def matrix() -> np.ndarray:
    return np.where(np.random.default_rng(0).random((N, N)) < 0.1, 0.3, 0)


def samplers(G: Any) -> list[Any]:
    return [
        *(GraphSage(G, [4, 3]), Ladies(G, [9, 8]), FastGCN(G, [9, 8]), Saint(G, 12, 2)),
        Shadow(G, [3, 2], 2),
        *(Cluster(G, 2, np.arange(N) % 5, rescale=rescale) for rescale in (False, True)),
    ]


def edges(samples: list[Any]) -> list[Any]:
    """Return the edges of a minibatch's blocks, in global ids."""
    return [
        [
            (
                *(part.tolist() for part in (block.rows, block.cols, block.indptr, block.indices)),
                block.data.tolist(),
            )
            for block in sample.blocks
        ]
        for sample in samples
    ]


@pytest.mark.ranks(1, 3, 8)
def test_samples_do_not_depend_on_ranks(comm: MPI.Intracomm) -> None:
    batches = Minibatches(np.arange(0, N, 2), 4).epoch(5)  # 8 minibatches, the last of 2 nodes
    bounds = np.linspace(0, len(batches), comm.size + 1).astype(int)
    first, last = bounds[comm.rank], bounds[comm.rank + 1]
    for sampler in samplers(Replicated(sp.csr_array(matrix()))):
        own = edges(sampler.sample(batches[first:last], epoch=5, first=int(first)))
        everything = [one for part in comm.allgather(own) for one in part]
        assert everything == edges(sampler.sample(batches, epoch=5))


def compare(comm: MPI.Intracomm, backend: Any, A: sp.csr_array, entries: int | None) -> None:
    """Compare samples on every 1.5D grid; each rank has its own minibatches, the last two of several none."""
    batches = Minibatches(np.arange(0, N, 2), 4).epoch(5)
    each = -(-len(batches) // max(comm.size - 2, 1))
    first = each * comm.rank
    mine = batches[first : first + each]
    whole = Replicated(A, backend=backend)
    expected = [edges(sampler.sample(mine, epoch=5, first=first)) for sampler in samplers(whole)]
    for sizes in grids("1.5d", comm.size):
        grid = make_grid(comm, "1.5d", sizes, backend=backend)
        for sampler, known in zip(
            samplers(Partitioned(grid, A, entries=entries, backend=backend)), expected, strict=True
        ):
            found = sampler.sample(mine, epoch=5, first=first)
            assert all(type(sample.blocks[0].data) is type(backend.zeros((1,), float)) for sample in found)
            assert edges(found) == known
        grid.free()


@pytest.mark.ranks(1, 2, 3, 4, 6, 12)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.slow
def test_samples_of_a_partitioned_graph_are_those_of_a_replicated_one(
    comm: MPI.Intracomm, directed: bool
) -> None:
    """The undirected graph in bounded row blocks."""
    A = sp.csr_array(matrix() if directed else np.maximum(matrix(), matrix().T))
    compare(comm, get("numpy"), A, None if directed else 12)


@pytest.mark.ranks(3, 4)
def test_a_partitioned_graph_is_sampled_where_it_is(comm: MPI.Intracomm, backend: Any) -> None:
    compare(comm, backend, sp.csr_array(matrix()), None)


@pytest.mark.ranks(4)
def test_samplers_that_disagree(comm: MPI.Intracomm) -> None:
    last, G = comm.rank == comm.size - 1, Partitioned(wide_grid(comm, "1.5d"), sp.csr_array(matrix()))
    with pytest.raises(DisagreementError, match="ranks disagree: the sampler's seed is 0"):
        GraphSage(G, [4, 3], seed=int(last))
    with pytest.raises(DisagreementError, match="ranks disagree: the sampler's fanout is 9,8"):
        Ladies(G, [9, 7 if last else 8])
    with pytest.raises(DisagreementError, match="ranks disagree: importance is zou"):
        Ladies(G, [9], importance="nothing" if last else "zou")
    with pytest.raises(DisagreementError, match="ranks disagree: sampler is "):
        FastGCN(G, [9]) if last else Ladies(G, [9])
    with pytest.raises(DisagreementError, match="ranks disagree: renormalize is True"):
        Cluster(G, 2, np.arange(N) % 5, renormalize=not last)


@pytest.mark.ranks(3, 4)
def test_weights_that_one_rank_cannot_draw_from_are_refused_on_all(comm: MPI.Intracomm) -> None:
    A = sp.csr_array(matrix())
    A.data[: A.indptr[1]] = 1e200  # vertex 0, whose squares are infinite
    with np.errstate(over="ignore"):
        sampler = Ladies(Partitioned(wide_grid(comm, "1.5d", "numpy"), A), [9, 8])
    with pytest.raises((ValueError, RuntimeError), match="weights that are negative or not finite"):
        sampler.sample([[0, 1] if comm.rank == 1 else [5, 6]])
    assert len(sampler.sample([[5, 6]], epoch=1)) == 1  # still in step
