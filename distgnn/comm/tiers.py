"""Two tiers of a group of ranks: those on one node, and those at one place of every node.

What is summed over the group is summed inside each node first, then across nodes, each rank the parts of its
place. So a number crosses the network once per node, not once per rank. Four ranks on two nodes, and the
part of rank 0:

    node 0   rank 0   a        a+b        a+b+c+d
             rank 1   b
    node 1   rank 2   c        c+d
             rank 3   d
                         inside     across

An all-reduce then goes the same way back: across nodes, then inside each. Words and messages are as many as
without tiers; :class:`~distgnn.comm.charges.Charges` says who sends them. The order of a sum is that of the
ranks, inside a node and across nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tiers:
    """The tiers of a group, as a rank sees them.

    Attributes:
        nodes: the ranks of each node, as many on every node.
        inside: those on this rank's node; across: those at this rank's place of every node.
    """

    nodes: tuple[tuple[int, ...], ...]
    inside: tuple[int, ...]
    across: tuple[int, ...]

    def shares(self, rank: int) -> dict[int, int]:
        """Return by rank how many parts of a sum come from it, in each direction."""
        shares = dict.fromkeys(self.inside, len(self.nodes)) | dict.fromkeys(self.across, 1)
        return {other: share for other, share in shares.items() if other != rank}


def tiers(nodes: Sequence[int], rank: int) -> Tiers | None:
    """Return the tiers of a group, or None where one has a single node, or nodes of one or unequal ranks.

    Args:
        nodes: the node of each rank of the group; rank: this one.
    """
    if len(set(nodes)) == 1:
        return None
    members: dict[int, list[int]] = {}
    for other, node in enumerate(nodes):
        members.setdefault(node, []).append(other)
    together, inside = tuple(map(tuple, members.values())), tuple(members[nodes[rank]])
    if len(inside) == 1 or len(set(map(len, together))) > 1:
        return None
    place = inside.index(rank)
    return Tiers(together, inside, tuple(sorted(ranks[place] for ranks in together)))


def around(nodes: Sequence[int]) -> list[int]:
    """Order the ranks of a group around a ring that leaves every node once."""
    if len(set(nodes)) == 1:
        return [*range(len(nodes))]
    first: dict[int, int] = {}
    for rank, node in enumerate(nodes):
        first.setdefault(node, rank)
    return sorted(range(len(nodes)), key=lambda rank: (first[nodes[rank]], rank))
