"""Entries of one group of ranks in the ledger: words, messages and peers of each operation.

The charge of an operation is that of its bandwidth-optimal form (see ``ledger.py``), however it travels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.comm.tiers import tiers


class Charges:
    """The charges of one rank for operations in its group.

    Args:
        group: the group's name in the ledger.
        rank: this rank in the group; ranks: the group's ranks in the grid, by which the ledger knows peers.
        nodes: the node of each rank of the group.
    """

    def __init__(self, group: str, rank: int, ranks: Sequence[int], nodes: Sequence[int]) -> None:
        self.group, self.rank, self.ranks, self.size = group, rank, ranks, len(ranks)
        self._peers = (*ranks[rank + 1 :], *ranks[:rank])
        far = enumerate(nodes) if len(set(nodes)) > 1 else ()
        self._away = {ranks[other] for other, node in far if node != nodes[rank]}
        self.tiers = tiers(nodes, rank)

    def whole(
        self, operation: str, matrix: str, array: Any, root: int, words: int | None = None,
        shape: tuple[int, ...] = (), by: int | None = None, nbytes: int | None = None,
    ) -> None:  # fmt: skip
        """Charge a bcast or reduce of ``array`` on all ranks but the ``root``.

        Args:
            words: payload elements of a packed buffer of bytes; default: the array's.
            shape: see :func:`ledger.charge`.
            by: the rank of the group that hands it on; default: the root.
            nbytes: of the array on its way; default: where it is.
        """
        words, away = array.size if words is None else words, self.rank != root
        size, peers = _ratio(array.nbytes if nbytes is None else nbytes, words), (self.ranks[root],)
        far = away * words * (self.ranks[root if by is None else by] in self._away)
        self._charge(operation, matrix, away * words, size, int(away), peers, shape, far)

    def share(
        self, operation: str, matrix: str, array: Any, shape: tuple[int, ...] = (), by_tiers: bool = False,
        itemsize: int = 0,
    ) -> None:  # fmt: skip
        """Charge a reduce_scatter of ``array``, or an allreduce, which is that and an all-gather.

        Args:
            by_tiers: as ``tiers.py`` has it. Else all other ranks have equal shares.
            itemsize: bytes of a number on its way; default: where it is.
        """
        messages = (2 if operation == "allreduce" else 1) * (self.size - 1)
        words = _ratio(messages * array.size, self.size)
        peers: Any = self._peers
        if by_tiers and self.tiers and words:
            part, shares = Fraction(words, self.size - 1), self.tiers.shares(self.rank)
            peers = {self.ranks[r]: share * part for r, share in shares.items()}
        self._charge(operation, matrix, words, itemsize or array.itemsize, messages, peers, shape)

    def allgather(self, matrix: str, block: Any, parts: np.ndarray, itemsize: int = 0) -> None:
        """Charge an all-gather of row blocks, cut by the partition vector ``parts``.

        This rank's is ``block``; ``itemsize``: as of :meth:`share`.
        """
        row, sizes = math.prod(block.shape[1:]), np.diff(parts).tolist()
        peers = {self.ranks[other]: sizes[other] * row for other in others(self.rank, self.size)}
        words = (int(parts[-1]) - sizes[self.rank]) * row
        self._charge("allgather", matrix, words, itemsize or block.itemsize, self.size - 1, peers)

    def exchange(self, operation: str, matrix: str, receives: Sequence[tuple[int, Any]], nbytes: int) -> None:
        """Charge an all-to-all(v) in which this rank receives these arrays, each from the rank before it.

        ``nbytes``: of all of them on their way.
        """
        peers = {self.ranks[source]: array.size for source, array in receives}
        words = sum(peers.values())
        self._charge(operation, matrix, words, _ratio(nbytes, words), len(receives), peers)

    def converted(self, numbers: int) -> None:
        """Charge passes over so many numbers between float32 and 16 bits."""
        ledger.charge("spmm", "16 bits", touched=6 * numbers)

    def send(self, matrix: str) -> None:
        """Charge a call to send, whose words the receiver is charged."""
        self._charge("send", matrix, 0, 0, 0)

    def receive(self, matrix: str, array: Any, source: int) -> None:
        """Charge the receipt of ``array``."""
        self._charge("receive", matrix, array.size, array.itemsize, 1, (self.ranks[source],))

    def _charge(
        self, operation: str, matrix: str, words: Fraction | int, itemsize: Fraction | int, messages: int,
        peers: ledger.Peers | Mapping[int, Fraction | int] = (), shape: tuple[int, ...] = (),
        far: Fraction | int | None = None,
    ) -> None:  # fmt: skip
        if far is None:
            far = self._from_away(words, peers) if self._away and words else 0
        charged: Any = {"words": words, "itemsize": itemsize, "messages": messages, "shape": shape}
        ledger.charge("comm", operation, self.group, matrix, peers=peers, far=far, **charged)

    def _from_away(
        self, words: Fraction | int, peers: ledger.Peers | Mapping[int, Fraction | int]
    ) -> Fraction | int:
        if isinstance(peers, tuple):
            return Fraction(words * sum(peer in self._away for peer in peers), len(peers))
        return sum(some for peer, some in peers.items() if peer in self._away)


def others(rank: int, size: int) -> list[int]:
    """List the other ranks of a group, the next one first, as an exchange brings what they send."""
    return [*range(rank + 1, size), *range(rank)]


def _ratio(a: int, b: int) -> Fraction | int:
    """Return a / b, exactly; 0 where b is. Whole numbers are faster."""
    return 0 if not b else Fraction(a, b) if a % b else a // b
