"""Numbers that are not finite end training, on all ranks at once, before they are kept.

Every update is looked at through squared norms: a dot product for each gradient and each parameter, taken
where the numbers are and read at once. On a GPU the kernel of the step looks at every square. A norm is not
finite where a number is not, nor where squares overflow, which Adam and the next products would make of it.
Then optimiser state is finite, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.arrays import backend, blocking
from distgnn.arrays.canonical import check_real
from distgnn.errors import ArgumentError, TrainingError
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features

Array = Any

#: Decorates what ends with an error of ours where numbers overflow: NumPy need not warn as well.
QUIETLY = np.errstate(over="ignore", invalid="ignore", divide="ignore")
HINT = "try a smaller lr or normalized features"
_TOO_LARGE = "not finite, or too large to square"
_KINDS = {"weight": "weights", "bias": "bias", "features": "trained features"}
_KINDS |= {"gain": "layer norm's gain", "shift": "layer norm's shift"}


class NotFiniteError(TrainingError):
    """The loss, a gradient or a parameter is not finite; raised on every rank.

    Attributes:
        problem: what is wrong, in a few words. layer: from 0. epoch: from 1, or None where none is known.
    """

    def __init__(self, problem: str, layer: int, epoch: int | None = None) -> None:
        place = f"layer {layer}" if epoch is None else f"epoch {epoch}, layer {layer}"
        super().__init__(f"{place}: {problem}; {HINT}", epoch)
        self.problem, self.layer = problem, layer

    def in_epoch(self, epoch: int) -> NotFiniteError:
        """Return the same error with the epoch that it came in."""
        return NotFiniteError(self.problem, self.layer, epoch)

    def __reduce__(self) -> tuple[type[NotFiniteError], tuple[str, int, int | None]]:
        return type(self), (self.problem, self.layer, self.epoch)


class Watch:
    """The numbers that an update reads and writes, as far as this rank holds them.

    Args:
        parameters: those of :meth:`Optimizer.step`, the same on every rank.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.parameters = parameters
        #: as backward makes gradients: what is not finite spreads from the first of them to the others
        self.order = sorted(range(len(parameters)), key=self._backward)
        self.suspects: list[int] = []
        self.squares: list[Array] = []
        self.bad: Array = None

    def looked(self, bad: Array) -> None:
        """Take what a kernel saw: int32 (2 parameters), 1 for bad gradients, then for bad parameters."""
        self.bad = bad

    def gradient(self, index: int, numbers: Array) -> None:
        """Look at a part of the gradient of parameter `index`."""
        self._look(self.order.index(index), numbers)

    def parameter(self, index: int, numbers: Array) -> None:
        """Look at a part of the updated parameter."""
        self._look(len(self.order) + self.order.index(index), numbers)

    def check(self) -> None:
        """Raise NotFiniteError, the same on every rank, where any rank saw a number that is not finite.

        WireOverflowError: where one did not fit into 16 bits. Collective.

        Cost: on a GPU one wait for it; one number from every rank, not charged.
        """
        if not self.parameters:
            return
        seen = [2 * len(self.order)]  # more than any suspect
        if self.squares:
            on = backend.of(self.squares[0])
            finite = np.isfinite(on.to_host(on.xp.stack(self.squares)))
            seen += [suspect for suspect, good in zip(self.suspects, finite, strict=True) if not good]
        if self.bad is not None:
            marks = backend.of(self.bad).to_host(self.bad).reshape(2, len(self.order))
            seen += [row * len(self.order) + self.order.index(i) for row, i in np.argwhere(marks).tolist()]
        grid = self.parameters[0].matrix.grid
        if grid.narrow is not None and (overflow := grid.narrow.overflow()):
            seen.append(overflow)  # below all suspects, which it may have made
        first = grid.world.lowest(min(seen))
        if first == seen[0]:
            return
        if first < 0:
            raise grid.narrow.error(first)
        updated, place = divmod(first, len(self.order))
        p = self.parameters[self.order[place]]
        what = _KINDS.get(p.kind, p.kind) if updated else f"the gradient of the {_KINDS.get(p.kind, p.kind)}"
        problem = f"the update leaves {what}" if updated else f"{what} is"
        raise NotFiniteError(f"{problem} {_TOO_LARGE}", p.layer)

    def _look(self, suspect: int, numbers: Array) -> None:
        self.suspects.append(suspect)
        self.squares.append(backend.module(numbers).vdot(numbers, numbers))

    def _backward(self, index: int) -> tuple[bool, int]:
        p = self.parameters[index]
        return p.kind == "features", -p.layer


def all_finite(block: Array) -> bool:
    """Tell whether all numbers of a block are finite."""
    return _first_bad(block) is None


def check_features(X: Features) -> None:
    """Raise ArgumentError, on every rank, where a feature is not finite.

    Collective; one pass over own rows.
    """
    with X.grid.world.together():
        check_real("X", X.dtype)
        if (bad := _first_bad_feature(X)) is not None:
            value, row, column = bad
            row += X.row_range[0]
            node = X.layout.rows.ids(row, row + 1)[0]
            where = f"node {node}, column {column + X.col_range[0]}"
            raise ArgumentError("X", value, f"is a feature of {where}; features must be finite")


def _first_bad_feature(X: Features) -> tuple[float, int, int] | None:
    """Return a feature that is not finite, its row and its column in the block."""
    if not isinstance(X, SparseFeatures):
        place = _first_bad(X.block)
        return None if place is None else (float(X.block[place]), *place)
    place = _first_bad(X.block.data[:, None])
    if place is None:
        return None
    entry, _ = place
    return float(X.block.data[entry]), int(X.row_numbers[entry]), int(X.block.indices[entry])


def _first_bad(block: Array) -> tuple[int, int] | None:
    """Return row and column of a number that is not finite. Nothing of the block's size is made."""
    xp = backend.module(block)
    with np.errstate(all="ignore"):
        for part in blocking.passes(block):
            flat = block[part].reshape(-1)
            if not bool(xp.isfinite(xp.vdot(flat, flat))):
                bad = xp.argwhere(~xp.isfinite(block[part]))
                if len(bad):
                    return int(bad[0, 0]) + part.start, int(bad[0, 1])
    return None
