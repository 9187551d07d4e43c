"""Choice of a GPU for each rank of a node, and a warning where two ranks share one."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mpi4py import MPI

from distgnn.arrays.backend import Backend
from distgnn.comm.agree import ranges, together
from distgnn.comm.communicator import Communicator

log = logging.getLogger(__name__)
PCI = Path("/sys/bus/pci/devices")


class Sight(NamedTuple):
    """The devices that a rank of a node sees.

    Attributes:
        rank: this rank in the world.
        devices: PCI bus ids in the order of the devices; one alone where the launcher shows every rank
            another.
        bound: the device that the rank is bound to, by its place in ``devices``; None if it is bound to none.
        near: whether each device is near the cores of the rank; empty where that is not known.
    """

    rank: int
    devices: Sequence[str]
    bound: int | None
    near: Sequence[bool] = ()


def bind(backend: Backend, devices: Sequence[str], comm: Communicator, node: MPI.Intracomm) -> str:
    """Bind this process to a device, once for good, and return the device's name for the log.

    Warns of devices that several ranks share. Collective over ``comm``, whose ranks have equal backends.

    Args:
        devices: what the backend sees, of which no rank has any, or all; node: the ranks of ``comm`` on this
            node.
    """
    if not devices:
        return backend.bind(0)
    mine = Sight(MPI.COMM_WORLD.Get_rank(), devices, backend.bound, list(map(is_near, devices)))
    ranks = sorted(node.allgather(mine))
    taken = assign(ranks)
    device = taken[ranks.index(mine)]
    users: dict[str, list[int]] = {}
    for rank, index in zip(ranks, taken, strict=True):
        users.setdefault(rank.devices[index], []).append(rank.rank)
    sharing = users[mine.devices[device]]
    if len(sharing) > 1 and mine.rank == sharing[0] and any(rank.bound is None for rank in ranks):
        log.warning("%s share the GPU %s", ranges(sharing), mine.devices[device])
    with together(comm):  # a device may fail on one rank alone
        return backend.bind(device)
    raise AssertionError("unreachable: together() raises")


def assign(ranks: Sequence[Sight]) -> list[int]:
    """Assign a device to each rank; return its place among the devices that the rank sees.

    A rank gets the device that it is bound to, else one that the fewest ranks have, and of these one near its
    cores. Ranks that are near few devices choose first.
    """
    users = Counter(rank.devices[rank.bound] for rank in ranks if rank.bound is not None)
    taken = {place: rank.bound for place, rank in enumerate(ranks) if rank.bound is not None}
    choosing = sorted(set(range(len(ranks))) - taken.keys(), key=lambda place: (_choice(ranks[place]), place))
    for place in choosing:
        devices, near = ranks[place].devices, ranks[place].near or [True] * len(ranks[place].devices)
        taken[place] = min(range(len(devices)), key=lambda i: (users[devices[i]], not near[i]))
        users[devices[taken[place]]] += 1
    return [taken[place] for place in range(len(ranks))]


def _choice(rank: Sight) -> int:
    """Count the devices that are as good as any for a rank."""
    return sum(rank.near) or len(rank.devices)


def is_near(device: str, folder: Path = PCI) -> bool:
    """Tell whether a device, by its PCI bus id, is near a core of this process; True where nobody says."""
    domain, _, rest = device.lower().partition(":")
    try:
        cores = _numbers((folder / f"{domain[-4:]}:{rest}" / "local_cpulist").read_text())
        return not cores or not cores.isdisjoint(os.sched_getaffinity(0))
    except (OSError, ValueError, AttributeError):
        return True


def _numbers(text: str) -> set[int]:
    """Parse a list of numbers such as 0-3,8."""
    spans = [span.partition("-") for span in text.strip().split(",") if span]
    return {n for first, _, last in spans for n in range(int(first), int(last or first) + 1)}
