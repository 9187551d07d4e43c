"""Room for a network in the memory there is: known from numbers alone, before anything is allocated.

Counted is what every algorithm must hold, over all ranks together: a training that is refused could not have
run. What messages, panels and padding take comes on top, and is known to the dry runs of ``plan/``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.errors import UserError
from distgnn.nn import optim
from distgnn.report.numbers import size
from distgnn.train.checkpoint import OWN
from distgnn.train.settings import Settings

#: Bytes of a rank that are not worth a question to the others.
LITTLE = 64 << 20
MUCH = 1 << 60
RANKS = 1 << 20  #: More are no answer.
#: Bytes of Python's objects for a layer, on each rank.
OBJECTS = 8 << 10


@dataclass(frozen=True)
class Needs:
    """Numbers by which a network's least memory is known.

    Attributes:
        n, nonzeros: of the graph; itemsize: bytes of a number; ranks: of the run.
        copies: of the weights among all ranks.
        states: numbers per weight: itself, its gradient, the state of the optimiser.
        kept: whether the input of every layer is kept for the backward pass.
        recompute: as of the settings, where the inputs are kept.
        features: numbers held for each feature, beside the input of the first layer.
        feature_nnz: entries of sparse features; None: they are dense.
    """

    n: int
    nonzeros: int
    itemsize: int
    ranks: int
    copies: int
    states: int = 1
    kept: bool = False
    recompute: int = 0
    features: int = 0
    feature_nnz: int | None = None

    def bytes(self, widths: Sequence[int]) -> int:
        """Return the bytes of all ranks together, for a network of these widths."""
        layers = [*pairwise(widths)]
        weights = self.copies * self.states * sum(above * below for above, below in layers)
        stored, dense = self.nonzeros, [*widths]
        if self.feature_nnz is not None and self.feature_nnz <= TUNING.densest_features * self.n * widths[0]:
            stored, dense = stored + self.feature_nnz, [0, *widths[1:]]
        passes = max(above + min(above, below) for above, below in pairwise(dense))
        every = self.recompute if self.recompute > 1 else len(layers)
        begins = range(0, len(layers), every)  # of layers whose inputs are there together
        kept = max(sum(dense[:at:every]) + sum(dense[at : at + every + 1]) for at in begins)
        passes = kept if self.kept else passes
        numbers = weights + self.n * (passes + self.features * widths[0])
        return numbers * self.itemsize + stored * (self.itemsize + 4) + self.ranks * len(layers) * OBJECTS


def of_training(
    s: Settings, n: int, nonzeros: int, ranks: int, feature_nnz: int | None = None
) -> Needs:  # fmt: skip
    """Return the needs of a training; its settings are resolved. ``feature_nnz``: as of :class:`Needs`."""
    needs = of_predicting(str(s.model), s.dtype, str(s.algorithm), n, nonzeros, ranks, feature_nnz)
    states = 2 + len(optim.make(s.optimizer, s.lr, s.decays, s.momentum).slots) + (s.keep_best == "val")
    features = states if s.train_features else 0
    needs = replace(needs, feature_nnz=None) if s.train_features else needs
    known = s.model in OWN
    kept = known and not s.samples
    return replace(needs, states=states * known, kept=kept, recompute=s.recompute, features=features)


def of_predicting(
    model: str, dtype: str, algorithm: str, n: int, nonzeros: int, ranks: int, feature_nnz: int | None = None
) -> Needs:  # fmt: skip
    """Return the needs of a forward pass. Layers of other people hold what they like."""
    copies = 1 if algorithm == "3d" else ranks
    itemsize, states = np.dtype(dtype).itemsize, int(model in OWN)
    return Needs(n, nonzeros, itemsize, ranks, copies, states, feature_nnz=feature_nnz)


def check_room(grid: Grid, needs: Needs, widths: Sequence[int], refuse: Callable[[str], UserError]) -> None:
    """Raise the error that `refuse` makes of a problem where the needs are beyond the memory. Collective.

    Of a little nothing is asked, and no message sent.

    Args:
        refuse: makes the error of a line that says what is needed, what there is, and what would fit.
    """
    if (needed := needs.bytes(widths)) <= LITTLE * grid.size:
        return
    there = sum(grid.world.gather_objects(grid.share_of_memory()))
    if needed > there:
        ranks = f"{grid.size} ranks have" if grid.size > 1 else "there are"
        problem = f"takes {written(needed)} of memory at least, and {ranks} {size(there)}"
        raise refuse(f"{problem}; {would_fit(needs, widths, there)}{enough(needs, widths, there)}")


def written(needed: int) -> str:
    """Write bytes, which may be more than any number of units."""
    return size(needed) if needed <= MUCH else f"more than {size(MUCH)}"


def would_fit(needs: Needs, widths: Sequence[int], there: int) -> str:
    """Tell which hidden width, or how many layers, would need no more."""
    first, *hidden, last = widths
    if not hidden or needs.bytes([first, last]) > there:
        return "more nodes would do"
    width = most(lambda width: needs.bytes([first, *[width] * len(hidden), last]) <= there, max(hidden))
    ways = [f"hidden={width}"] if width else []
    if len(hidden) > 1:
        layers = most(lambda count: needs.bytes([first, *hidden[:count], last]) <= there, len(hidden))
        ways.append(f"layers={layers + 1}")
    return f"{' or '.join(ways)} may fit" if ways else "more nodes would do"


def enough(needs: Needs, widths: Sequence[int], there: int) -> str:
    """Tell how many ranks with memory as these have it would do; nothing, where no number would."""

    def short(ranks: int) -> bool:
        copies = ranks if needs.copies == needs.ranks else needs.copies
        return replace(needs, ranks=ranks, copies=copies).bytes(widths) * needs.ranks > there * ranks

    ranks = most(short, RANKS) + 1
    return f"; {ranks} ranks with as much each may do" if ranks <= RANKS else ""


def most(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to a limit that fits; 0: none does."""
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
