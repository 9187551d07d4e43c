"""The question whether settings leave a choice to a plan; a run with a given grid needs no planner."""

from __future__ import annotations

import os
from dataclasses import replace

from mpi4py import MPI

from distgnn.comm.agree import agree
from distgnn.comm.session import joined
from distgnn.errors import ArgumentError
from distgnn.store.read.distributed import identity
from distgnn.store.read.store import Store
from distgnn.train.defaults import from_files
from distgnn.train.resolve import resolved
from distgnn.train.settings import AUTO, Settings
from distgnn.train.ways import arrangements, ways


def left_open(comm: MPI.Intracomm, settings: Settings, store: Store | str | os.PathLike[str]) -> bool:
    """Return whether settings leave a choice for a run on all ranks of ``comm`` and this store. Collective.

    Raises:
        ArgumentError: settings that a run would refuse, or ranks that disagree in them or in the store; on
            every rank.
    """
    agree(joined(comm), identity(store) | settings.shared())
    return is_open(from_files(settings, store), comm.Get_size())


def is_open(settings: Settings, ranks: int) -> bool:
    """Return whether there is something to plan for so many ranks.

    Raises:
        ArgumentError: settings that a run would refuse.
    """
    if settings.samples or AUTO in (settings.algorithm, settings.order):
        return not settings.samples
    return len(list(arrangements(to_plan(settings, ranks), ranks))) > 1


def to_plan(settings: Settings, ranks: int) -> Settings:
    """Return the settings to plan with: resolved, and without a grid or an order "auto". The algorithm "auto"
    stays, and only with it is open whether blocks are sent whole.

    Raises:
        ArgumentError: settings that a run would refuse.
    """
    grid = None if settings.grid == AUTO else settings.grid
    s = replace(settings, grid=grid, order=None if settings.order == AUTO else settings.order)
    if s.algorithm != AUTO:
        return resolved(s, ranks)
    resolved(replace(s, algorithm="1.5d"), ranks)  # numbers, and what excludes what
    if not list(ways(s, ranks)):
        name = "replication" if s.grid is None else "grid"
        problem = f"no algorithm can do this on {ranks} ranks; leave it out, or name an algorithm"
        raise ArgumentError(name, getattr(s, name), problem)
    return s
