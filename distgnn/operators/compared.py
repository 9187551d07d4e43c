"""Comparison of an operation and its operands on all ranks, where the program asks for it."""

from __future__ import annotations

from typing import Any, Protocol


class Operand(Protocol):
    """A matrix on a grid."""

    @property
    def grid(self) -> Any:
        """The grid."""
        ...

    def as_operand(self) -> str:
        """Return what ranks compare of the matrix."""
        ...


def compare(operation: str, **operands: Operand) -> int:
    """Compare an operation on all ranks of the grid of its operands, see ``comm/checks.py``. Collective.

    Returns the number of the call, 0 where nothing is compared.

    Raises:
        DisagreementError: ranks make different calls, or with different operands. On every rank.
    """
    checks = next(iter(operands.values())).grid.checks
    if checks is None:
        return 0
    checks.compare(operation, **{name: X.as_operand() for name, X in operands.items()})
    return int(checks.number)
