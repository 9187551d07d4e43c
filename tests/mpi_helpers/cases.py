"""Choice of the cases of a test, before pytest makes tests of them: every rank chooses alike."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from mpi4py import MPI

from mpi_helpers import gpu

#: Of each test on the stand-in: how many cases at most in a launch, of cheap tests (those on one rank, and of
#: `comm`) and of others, and on how many ranks.
CHEAP_CASES, MOST_CASES = 2, 1
RANKS = {gpu.AWARE: (1, 2, 3, 4), gpu.STAGED: (2, 3, 4)}
QUICK_RANKS = 4  # at most


def choose(metafunc: pytest.Metafunc) -> None:
    """Leave the cases of a test that are run; one, if none is: pytest would take a test without cases for one
    without parameters.
    """
    cases, test = metafunc._calls, metafunc.definition
    found = on_stand_in(test, cases)
    if metafunc.config.getoption("quick"):
        suitable = [case for case in found if quick(test, case.params, case.marks)]
        found = [by_name(test.nodeid, suitable)] if suitable else []
    elif metafunc.config.getoption("each_value"):
        above, most = metafunc.config.getoption("ranks_above"), MPI.COMM_WORLD.Get_size()
        here = [case for case in found if above < size(case.params) <= most]
        found = covering(in_turn(test.nodeid, here)) if here else []
    metafunc._calls = found or cases[:1]


def on_stand_in(test: pytest.Item, cases: Sequence[Any]) -> list[Any]:
    """Choose the cases of a test that run on the stand-in: few, and none that is slow.

    At most a few cases of each test, those that have the most values of its parameters, on two, three or four
    ranks by its name. On a GPU, and on NumPy, all cases are taken.
    """
    if gpu.real():
        return [*cases]
    left_out: set[int] = set()
    for backend, ranks in RANKS.items():
        of_it = [case for case in cases if case.params.get("backend") == backend]
        left_out |= {id(case) for case in of_it}
        some = [case for case in of_it if size(case.params) in ranks and not slow(test, case.marks)]
        if some:
            first = by_name(test.nodeid, sorted({size(case.params) for case in some}))
            some.sort(key=lambda case, first=first: size(case.params) != first)  # type: ignore[misc]
            cheap = first == 1 or test.path.parent.name == "comm"
            left_out -= {id(case) for case in covering(some)[: CHEAP_CASES if cheap else MOST_CASES]}
    return [case for case in cases if id(case) not in left_out]


def quick(test: pytest.Item, params: dict[str, Any], marks: Sequence[Any] = ()) -> bool:
    """Tell whether a case may be the one of its test that runs with ``--quick``: on few ranks, not slow; and
    in ``tests/device`` alone on the stand-in.
    """
    stands_in = params.get("backend", gpu.NUMPY) != gpu.NUMPY and not gpu.real()
    elsewhere = stands_in and test.path.parent.name != "device"
    return size(params) <= QUICK_RANKS and not slow(test, marks) and not elsewhere


def slow(test: pytest.Item, marks: Sequence[Any] = ()) -> bool:
    """Tell whether a test, or a case with these marks, is slow."""
    return test.get_closest_marker("slow") is not None or any(mark.name == "slow" for mark in marks)


def parameters(item: pytest.Item) -> dict[str, Any]:
    """Return the parameters of a test that pytest made."""
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def size(params: dict[str, Any]) -> int:
    """Return the size of the ``comm`` of a test."""
    found = params.get("comm", 1)
    return found if isinstance(found, int) else 1


def by_name(test: str, choices: Sequence[Any]) -> Any:
    """Return one of these, another for another test."""
    return choices[zlib.crc32(test.encode()) % len(choices)]


def in_turn(test: str, cases: Sequence[Any]) -> list[Any]:
    """Order cases so that their first ones have one size after the other, and a value another size in another
    test.
    """
    sizes = sorted({size(case.params) for case in cases})
    start, groups = zlib.crc32(test.encode()), [[c for c in cases if size(c.params) == s] for s in sizes]
    places = {id(case): (place, (number - place - start) % len(sizes))
              for number, group in enumerate(groups) for place, case in enumerate(group)}  # fmt: skip
    return sorted(cases, key=lambda case: places[id(case)])


def covering(cases: Sequence[Any]) -> list[Any]:
    """Choose cases that together have all values of the parameters; those with the most new ones first."""
    values = {id(case): {("", "")} | {(key, repr(value)) for key, value in case.params.items()}
              for case in cases}  # fmt: skip
    known: set[tuple[str, str]] = set()
    chosen = []
    for news in range(max(map(len, values.values())), 0, -1):
        for case in cases:
            if len(values[id(case)] - known) >= news:
                known |= values[id(case)]
                chosen.append(case)
    return chosen
