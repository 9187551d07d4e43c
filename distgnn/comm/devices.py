"""Choice of a GPU for each rank of a node, and a warning where two ranks share one."""

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
    """The devices that a rank of a node sees.

    Attributes:
        rank: this rank in the world.
        devices: PCI bus ids in the order of the devices; one alone where the launcher shows every rank
            another.
        bound: the device that the rank is bound to, by its place in ``devices``; None if it is bound to none.
    """

    rank: int
    devices: Sequence[str]
    bound: int | None


def bind(backend: Backend, node: MPI.Intracomm) -> str:
    """Bind this process to a device, once for good, and return the device's name for the log.

    Warns of devices that several ranks share. Collective over the ranks of a node.
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
    """Assign a device to each rank; return its place among the devices that the rank sees.

    A rank gets the device that it is bound to, else one that the fewest ranks before it have.
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
