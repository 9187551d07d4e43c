"""Which GPU each rank of a node takes, and that two ranks on one are noticed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mpi4py import MPI

from distgnn.arrays.backend import Backend
from distgnn.comm.agree import ranges

log = logging.getLogger(__name__)


class Sight(NamedTuple):
    """What a rank of a node sees: its rank in the world, the PCI bus ids of its devices in their order, which
    may be one alone where the launcher shows every rank another, and the device that it is bound to.
    """

    rank: int
    devices: Sequence[str]
    bound: int | None


def bind(backend: Backend, node: MPI.Intracomm) -> str:
    """Bind this process to a device, once for good, and warn of those that several ranks share. Collective
    over the ranks of a node. Returns the device's name for the log.
    """
    mine = Sight(MPI.COMM_WORLD.Get_rank(), backend.devices(), backend.bound)
    if not mine.devices:
        return backend.bind(0)
    ranks = sorted(node.allgather(mine))
    taken = assign(ranks)
    device = taken[ranks.index(mine)]
    users: dict[str, list[int]] = {}
    for rank, index in zip(ranks, taken, strict=True):
        users.setdefault(rank.devices[index], []).append(rank.rank)
    sharing = users[mine.devices[device]]
    if len(sharing) > 1 and mine.rank == sharing[0] and any(rank.bound is None for rank in ranks):
        log.warning("%s share the GPU %s", ranges(sharing), mine.devices[device])
    return backend.bind(device)


def assign(ranks: Sequence[Sight]) -> list[int]:
    """The device of each rank, by its place among those that the rank sees: the one that it is bound to, else
    one that the fewest ranks before it have.
    """
    users = Counter(rank.devices[rank.bound] for rank in ranks if rank.bound is not None)
    taken = []
    for _, devices, bound in ranks:
        device = bound
        if device is None:
            device = min(range(len(devices)), key=lambda index: users[devices[index]])
            users[devices[device]] += 1
        taken.append(device)
    return taken
