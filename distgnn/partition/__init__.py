"""Partitioners: they assign rows of A and H to parts, so that few rows of H travel and no part sends many.

A *part vector* is int32 (n,): the part of every node. `partition` makes one, `measure` counts its costs
without running a product, `read_part_vector` reads one that another program wrote. Sparsity-aware products
(``sparsity-aware.txt`` section 4) move exactly what `measure` counts.

Every method is a file that names its objective. METIS, KaMinPar and Mt-KaHyPar come with the extra
`partition`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError, offered
from distgnn.partition import auto, hypergraph, kaminpar, metis, random, volume
from distgnn.partition.packages import need
from distgnn.partition.pattern import Pattern
from distgnn.partition.quality import Quality, largest_over_mean, measure
from distgnn.partition.vectors import read_part_vector

IMBALANCE = 1.10  # most non-zeros of a part, relative to the average

METHODS: dict[str, Callable[[Pattern, int, int, float], np.ndarray]] = {
    "auto": auto.partition,
    "random": random.partition,
    "metis": metis.partition,
    "metis-volume": partial(metis.partition, volume=True),
    "kaminpar": kaminpar.partition,
    "hypergraph": hypergraph.partition,
    "volume": volume.partition,
}

__all__ = [
    "IMBALANCE", "METHODS", "Pattern", "Quality", "Wanted", "check_names", "largest_over_mean", "measure",
    "parse", "partition", "read_part_vector",
]  # fmt: skip


def partition(
    A: Any, parts: int, method: str = "auto", seed: int = 0, imbalance: float = IMBALANCE
) -> np.ndarray:
    """Assign every row of A to a part: int32 (n,), in 0..parts-1. In this process, with all of A in memory.

    Args:
        A: (n, n) sparse, anything SciPy turns into CSR; row i holds the columns from which node i gathers.
            Need not be symmetric; only the positions of its entries count. A `Pattern` saves the conversion.
        parts: the number of parts; some may come out empty.
        method: one of METHODS, or a file with the part of every node. "auto" is `volume`, or a cut of edges
            from ``auto.LARGE`` non-zeros on, where that would take minutes: `kaminpar`, or `metis` without.
        seed: the same seed gives the same parts, of `kaminpar` on one thread (``OMP_NUM_THREADS=1``).
        imbalance: bound on the non-zeros of a part, relative to the average. Long rows may exceed it.

    Raises:
        ArgumentError: an unknown method, fewer than one part or more than nodes, or a package that is not
            installed.
        UserError: a bad file, or `volume` without the compiled host kernels.
    """
    return Wanted(method, parts).make(A if isinstance(A, Pattern) else Pattern.of(A), seed, imbalance)


@dataclass(frozen=True)
class Wanted:
    """A partition that was asked for, as METHOD:K or FILE:K."""

    method: str
    parts: int
    #: The argument that errors name.
    argument: str = field(default="partition", compare=False)

    @property
    def file(self) -> bool:
        """True if the parts come from a file."""
        return self.method not in METHODS

    @property
    def name(self) -> str:
        """The name of its order."""
        return f"{'file' if self.file else self.method}-{self.parts}"

    def check(self, n: int | None = None) -> None:
        """Raise the errors of `make` that are known before. n: the number of nodes, if known."""
        problem = None
        if self.file and not Path(self.method).is_file():
            problem = f"no such method or file; {offered(self.method, METHODS)}"
        elif self.parts < 1:
            problem = "expected at least one part"
        elif n is not None and self.parts > n:
            problem = f"more parts than the {n} nodes of this graph; expected at most {n}"
        if problem:
            raise ArgumentError(self.argument, f"{self.method}:{self.parts}", problem)
        need(self.method, self.argument)

    def make(self, pattern: Pattern, seed: int, imbalance: float = IMBALANCE) -> np.ndarray:
        """Make the part vector, int32 (n,)."""
        self.check(pattern.n)
        if not imbalance >= 1:
            raise ArgumentError("imbalance", imbalance, "expected 1 or more, the largest part over the mean")
        if self.file:
            return read_part_vector(self.method, pattern.n, self.parts)
        return METHODS[self.method](pattern, self.parts, seed, imbalance)


def parse(text: str, argument: str = "partition") -> list[Wanted]:
    """Parse "volume:8,metis:8"; in place of a method there may be the name of a file with a part per node.

    argument: that has this text, for errors.

    Raises:
        ArgumentError: another text, or two partitions whose orders would have the same name.
    """
    wanted = []
    for word in text.split(","):
        method, _, parts = word.strip().rpartition(":")
        if not method or not parts.isdecimal():
            raise ArgumentError(argument, word, "expected METHOD:K or FILE:K, such as volume:8")
        wanted.append(Wanted(method, int(parts), argument))
    check_names(wanted)
    return wanted


def check_names(wanted: Sequence[Wanted]) -> None:
    """Raise ArgumentError if two of the partitions would make orders of the same name."""
    names = [partition.name for partition in wanted]
    for name in names:
        if names.count(name) > 1:
            problem = f"{names.count(name)} orders would be named {name}; give each once"
            raise ArgumentError(wanted[0].argument, ",".join(names), problem)
