"""`prepare`: from a Source to a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.partition import Wanted
from distgnn.store.source import Source
from distgnn.store.write.arguments import check_arguments, check_shards, is_store
from distgnn.store.write.checks import check_source
from distgnn.store.write.finish import Summary
from distgnn.store.write.ranks import of, shared_directory
from distgnn.store.write.steps import Preparation


def prepare(
    source: Source, out: str | os.PathLike[str], *, order: Sequence[str] = ("random",), seed: int = 0,
    shards: tuple[int, int] | None = None, normalize: str = "gcn", self_loops: bool = True,
    dtype: str = "float32", force: bool = False, partitions: Sequence[Wanted] = (), comm: Any = None,
) -> Summary:  # fmt: skip
    """Write the store `out` (a directory, by custom NAME.dg) from a Source, in this process alone or by all
    ranks of `comm`.

    A[i, j] is the weight of edge j -> i (1 without weights), and of i -> j too unless the source is directed;
    of repeated edges the largest weight counts. `self_loops` adds A[i, i] = 1 where there is no such entry.
    With d the row sums,

        gcn     A[i, j] d_i^-1/2 d_j^-1/2, symmetric as A is (Kipf and Welling; CAGNET section III)
        row     A[i, j] d_i^-1
        none    A[i, j]

    and 0 in place of 0^-1/2 and 0^-1.

    In a team each rank takes a share of the edges and the features (see `Source.edge_share`), sorts it into
    buckets on disk, one for every file, and writes its share of the files from what all ranks have put there.
    Rank 0 makes partitions. The store is the same to the byte, whatever the number of ranks.

    Memory, of each rank: a few arrays of one number per node, and a few hundred MB for the shard in work,
    whatever the number of edges; with partitions, on rank 0 all of A's structure too, and what the
    partitioner takes. Disk, besides the store: 8 bytes per entry (16 with weights) and the features again.

    Args:
        order: the orders to write (`orders.KNOWN`); the first is the default, and features and labels are
            stored in it (as its layer 0 takes them).
        seed: of the random permutations.
        shards: rows and columns of the grid of shards, each at most n; by default from the sizes.
        dtype: of A's values, float32 or float64 (features are always float32).
        force: replace an existing store once the new one is complete.
        partitions: further orders, by partition (``distgnn.partition``), each with the partition vector of
            its parts.
        comm: mpi4py communicator of the ranks that do this together, which share a file system and have the
            same source and arguments; collective then. None: this process, without MPI.

    Raises:
        UserError: bad arguments or data, or `out` exists; on all ranks. Nothing is left behind then, nor
            after any other exception.
    """
    team = of(comm, out)
    with team.together():
        check_arguments(
            out, order=order, normalize=normalize, dtype=dtype, force=force, partitions=partitions
        )
        check_source(source)
        for wanted in partitions:
            wanted.check(source.n)
        if shards is not None:
            check_shards(*shards, source.n)
    with shared_directory(team, out, force=force, replaceable=is_store) as folder:
        summary = Summary(str(out))
        work = Preparation(source, folder, np.dtype(dtype), normalize, self_loops, seed, summary, team)
        return work.run(order, shards, partitions)
    raise AssertionError("unreachable: the directory is there or that has raised")
