"""Partitioners: which part owns which row of A and H, so that little of H travels and no part sends much more
than another.

A *part vector* is int32 (n,): the part of every node. `partition` makes one, `measure` says what it costs
without running a product, `read_part_vector` takes one that another program wrote. Sparsity-aware products
(``sparsity-aware.txt`` section 4) move exactly what `measure` counts.

================ ====================================================================================================
method           minimises
================ ====================================================================================================
random           nothing: an even cut of the random order, the baseline
metis            edges between parts (METIS, ``pip install distgnn[partition]``)
metis-volume     total volume, as METIS estimates it (the same package, ``objtype=vol``)
hypergraph       total volume exactly, as connectivity - 1 (Mt-KaHyPar, ``pip install distgnn[partition]``)
volume           total volume, and what the busiest part sends and receives (own refinement, in C)
================ ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.partition import hypergraph, metis, random, volume
from distgnn.partition.pattern import Pattern
from distgnn.partition.quality import Quality, largest_over_mean, measure
from distgnn.partition.vectors import read_part_vector

IMBALANCE = 1.10  # most non-zeros of a part, relative to the average

METHODS: dict[str, Callable[[Pattern, int, int, float], np.ndarray]] = {
    "random": random.partition,
    "metis": metis.edge_cut,
    "metis-volume": metis.communication_volume,
    "hypergraph": hypergraph.partition,
    "volume": volume.partition,
}

#: What a method needs, called to raise the UserError that says so.
NEEDS: dict[str, Callable[[], Any]] = {
    "metis": metis.package,
    "metis-volume": metis.package,
    "hypergraph": hypergraph.package,
    "volume": volume.kernels,
}

__all__ = [
    "IMBALANCE", "METHODS", "Pattern", "Quality", "Wanted", "check", "check_names", "largest_over_mean",
    "measure", "parse", "partition", "read_part_vector",
]  # fmt: skip


def partition(
    A: Any, parts: int, method: str = "volume", seed: int = 0, imbalance: float = IMBALANCE
) -> np.ndarray:
    """The part of every row of A: int32 (n,), in 0..parts-1. In this process, with all of A in memory.

    Args:
        A: (n, n) sparse, anything SciPy turns into CSR; row i holds the columns from which node i gathers.
            Need not be symmetric; only the positions of its entries count. A `Pattern` saves the conversion.
        parts: how many; some may come out empty.
        method: one of METHODS.
        seed: the same seed gives the same parts.
        imbalance: bound on the non-zeros of a part, relative to the average, which a partitioner may miss
            where rows are long.

    Raises:
        UserError: an unknown method, fewer than one part or more than nodes, or a package or extension that
            is not installed.
    """
    pattern = A if isinstance(A, Pattern) else Pattern.of(A)
    check(method, parts, pattern.n)
    return METHODS[method](pattern, parts, seed, imbalance)


def check(method: str, parts: int, n: int | None = None) -> None:
    """The UserError that `partition` would raise for its arguments, or for what is not installed, if any.

    Args:
        n: number of nodes, where it is known already.
    """
    if method not in METHODS:
        problem = f"no such method; expected one of {', '.join(METHODS)}"
        raise ArgumentError("partition", f"{method}:{parts}", problem)
    _check_parts(method, parts, n)
    if method in NEEDS:
        NEEDS[method]()


def _check_parts(name: str, parts: int, n: int | None) -> None:
    if parts < 1:
        raise ArgumentError("partition", f"{name}:{parts}", "expected at least one part")
    if n is not None and parts > n:
        problem = f"more parts than the {n} nodes of this graph; expected at most {n}"
        raise ArgumentError("partition", f"{name}:{parts}", problem)


@dataclass(frozen=True)
class Wanted:
    """One partition that a user asked for as METHOD:K or FILE:K."""

    method: str
    parts: int

    @property
    def file(self) -> bool:
        return self.method not in METHODS

    @property
    def name(self) -> str:
        """Of the order that it makes."""
        return f"{'file' if self.file else self.method}-{self.parts}"

    def check(self, n: int | None = None) -> None:
        """The UserError that `make` would raise, as far as it is known before."""
        if not self.file:
            check(self.method, self.parts, n)
        elif not Path(self.method).is_file():
            known = ", ".join(METHODS)
            problem = f"no such method or file; methods are {known}"
            raise ArgumentError("partition", f"{self.method}:{self.parts}", problem)
        else:
            _check_parts(self.method, self.parts, n)

    def make(self, pattern: Pattern, seed: int) -> np.ndarray:
        """The part vector, int32 (n,)."""
        if not self.file:
            return partition(pattern, self.parts, self.method, seed)
        self.check(pattern.n)
        return read_part_vector(self.method, pattern.n, self.parts)


def parse(text: str) -> list[Wanted]:
    """ "volume:8,metis:8", or the name of a file with a part per node in place of a method.

    Raises:
        UserError: not so written, or two of them would make orders of the same name.
    """
    wanted = []
    for word in text.split(","):
        method, colon, parts = word.strip().rpartition(":")
        if not colon or not parts.isdecimal() or not method:
            raise ArgumentError("partition", word, "expected METHOD:K or FILE:K, such as volume:8")
        wanted.append(Wanted(method, int(parts)))
    check_names(wanted)
    return wanted


def check_names(wanted: Sequence[Wanted]) -> None:
    """UserError where two would make orders of the same name."""
    names = [one.name for one in wanted]
    for name in names:
        if names.count(name) > 1:
            problem = f"{names.count(name)} orders would be named {name}; give each once"
            raise ArgumentError("partition", name, problem)
