"""`prepare`: from a Source to a store.

A[i, j] is the weight of edge j -> i (1 without weights), and of i -> j too unless the source is directed;
of repeated edges the largest weight counts. `self_loops` adds A[i, i] = 1 where there is no such entry.
With d the row sums, and 0 in place of 0^-1/2 and 0^-1,

    gcn     A[i, j] d_i^-1/2 d_j^-1/2, symmetric as A is (Kipf and Welling; CAGNET section III)
    row     A[i, j] d_i^-1
    none    A[i, j]

Each rank sorts a share of the edges and features (see `Source.edge_share`) into buckets on disk, one for
every file, and then writes a share of the files. Rank 0 makes partitions. Memory of each rank: a few
arrays of n numbers and a few hundred MB for a shard; with partitions, on rank 0 also A's structure and
what the partitioner takes. Disk, besides the store: 8 bytes per entry (16 with weights) and the features.
Features of which at most about a quarter are not 0 are kept as CSR (``write/features.py``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.partition import Wanted
from distgnn.store.source import Source
from distgnn.store.write.arguments import check_arguments, check_shards, check_source, is_store
from distgnn.store.write.finish import Summary
from distgnn.store.write.ranks import of, shared_directory, task
from distgnn.store.write.steps import Preparation


def prepare(
    source: Source, out: str | os.PathLike[str], *, order: Sequence[str] = ("random",), seed: int = 0,
    shards: tuple[int, int] | None = None, normalize: str = "gcn", self_loops: bool = True,
    dtype: str = "float32", force: bool = False, partitions: Sequence[Wanted] = (), comm: Any = None,
) -> Summary:  # fmt: skip
    """Write the store `out` (a directory, by custom NAME.dg) from a Source.

    The module's docstring describes the steps and the memory.

    Args:
        source: the graph, as importers and generators give it.
        order: the orders to write (`orders.KNOWN`); the first is the default, in which features and labels
            are stored (as its layer 0 takes them).
        seed: seed of random permutations.
        shards: rows and columns of the grid of shards, each at most n.
        normalize: "gcn", "row" or "none", see the module.
        self_loops: add A[i, i] = 1 to every node without a self-loop.
        dtype: dtype of A's values, float32 or float64 (features are float32, but those of arrays as
            :func:`distgnn.prepare` says).
        force: replace an existing store once the new one is complete.
        partitions: further orders by partition (``distgnn.partition``), with the partition vectors of parts.
        comm: mpi4py communicator of ranks that share files and arguments; None: this process, without MPI.

    Raises:
        UserError: bad arguments or data, `out` exists, or ranks disagree; on all ranks. After any exception
            no file is left.
    """
    with task(comm) as ours:
        team = of(ours, out)
        given: Any = {"order": order, "normalize": normalize, "dtype": dtype, "force": force}
        others = {"partitions": partitions, "seed": seed, "shards": shards, "self_loops": self_loops}
        team.agree(given | others | {"out": out} | _facts(source))
        with team.together():
            check_arguments(out, partitions=partitions, **given)
            _check(source, shards, partitions)
        summary = Summary(str(out), read=list(source.readings), left=list(source.left))
        with shared_directory(team, out, force=force, replaceable=is_store) as folder:
            work = Preparation(source, folder, np.dtype(dtype), normalize, self_loops, seed, summary, team)
            work.run(order, shards, partitions)
        return summary


def _check(source: Source, shards: tuple[int, int] | None, partitions: Sequence[Wanted]) -> None:
    """Raise UserError where source, partitions and shards do not fit together."""
    check_source(source)
    for wanted in partitions:
        wanted.check(source.n)
    if shards is not None:
        check_shards(*shards, source.n)


def _facts(source: Source) -> dict[str, Any]:
    """Return facts of the source that ranks compare; the edges are too many."""
    names = (
        "n",
        "directed",
        "direction_open",
        "width",
        "feature_type",
        "feature_entries",
        "classes",
        "multilabel",
        "regression",
        "labels",
        "split",
        "ids",
    )
    return {f"the source's {name}": getattr(source, name) for name in names}
