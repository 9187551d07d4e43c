"""Comparison of the calls of all ranks of a grid before each begins, for programs with ``DISTGNN_CHECK=1``.

Ranks that multiply two matrices in different orders exchange messages that fit, and get wrong numbers. With
the check, each product, each other operation on matrices, and each collective of the whole grid has a number,
and ranks compare what call has it.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol

from distgnn.comm.agree import agree
from distgnn.comm.links import Links
from distgnn.comm.waiting import call_of, called_at

VARIABLE = "DISTGNN_CHECK"
#: Numbers of calls between one renewal of communicators and the next.
NUMBERS = 1_000_000


class Checks:
    """The comparison of calls on one grid. Collective.

    Args:
        links: of the grid.

    Attributes:
        number: of the latest call that all ranks made.
        matrices: how many sparse matrices were made.
    """

    def __init__(self, links: Links) -> None:
        self.links, self.number, self.matrices = links, -NUMBERS, 0
        links.join("checks", lambda world: world.Dup(), self)

    def connect(self, mpi: Any) -> None:
        """Use this communicator, and compare the collectives of the whole grid, from now on."""
        self.mpi, self.number = mpi, (self.number // NUMBERS + 1) * NUMBERS
        self.links.current.compare = self._compare_collective

    def end(self) -> None:
        """End nothing: the communicator is all there is."""

    def compare(self, call: str, **operands: object) -> None:
        """Compare a call and its operands on all ranks. Collective.

        Cost: an all-reduce of 64 bytes, which is not charged.

        Raises:
            DisagreementError: ranks make different calls, or with different operands. On every rank.
        """
        self.number += 1
        name, site = f"call {self.number} on this grid", called_at(threading.get_ident())
        facts = {name: call} | {f"{operand} of {name}": text for operand, text in operands.items()}
        agree(self.mpi, facts, dict.fromkeys(facts, site) if site else None, "called at")

    def next_matrix(self) -> int:
        """Return the number of a sparse matrix that all ranks make."""
        self.matrices += 1
        return self.matrices

    def _compare_collective(self, operation: str) -> None:
        self.compare(f"{operation} in {call_of(threading.get_ident())}")


def checks(links: Links) -> Checks | None:
    """Return the comparison of calls on a grid, if the environment asks for it. Collective."""
    asked = os.environ.get(VARIABLE, "").lower() not in ("", "0", "no", "false", "off")
    return Checks(links) if asked and links.session is not None else None


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
    """Compare an operation on all ranks of its operands' grid, where the program asks for it. Collective.

    Returns the number of the call, 0 where nothing is compared.

    Raises:
        DisagreementError: ranks make different calls, or with different operands. On every rank.
    """
    checks = next(iter(operands.values())).grid.checks
    if checks is None:
        return 0
    checks.compare(operation, **{name: X.as_operand() for name, X in operands.items()})
    return int(checks.number)
