"""Arrays borrowed in passes alike: in few buffers, by their life times, and never on each other."""

from bisect import bisect_left, insort

import numpy as np
import pytest

from distgnn.arrays import life_times
from distgnn.arrays.life_times import Life
from distgnn.arrays.workspace import MOST_SHOWN, Workspace
from distgnn.ledger import Ledger

WIDE, NARROW = 4096, 512
#: Borrowed (name, bytes) and given back (name) in a network whose last layer is narrow.
SHRINKING = [
    ("H1", WIDE), ("Y1", WIDE), ("H2", WIDE), "Y1", ("Y2", NARROW), ("Z2", NARROW), "Y2", ("S2", NARROW),
    "Z2", ("dH2", WIDE), "H2", "S2", ("S1", WIDE), "dH2", "H1", "S1",
]  # fmt: skip


def passed(workspace, events, key="pass"):
    """Go through a pass, each array full of its own number; check that none writes to another."""
    lent = {}
    with workspace.repeated(key):
        for number, event in enumerate(events):
            if isinstance(event, tuple):
                lent[event[0]] = number % 251, workspace.borrow((event[1],), np.uint8)
                lent[event[0]][1][...] = number % 251
            else:
                expected, array = lent.pop(event)
                assert bool((array == expected).all()), event
                workspace.give_back(array)
    assert not lent


def one_by_one(events):
    """Return the bytes of buffers lent whole: the smallest that fits, else one in place of the largest."""
    free, lent, most, held = [], {}, 0, 0
    for event in events:
        if isinstance(event, tuple):
            index = bisect_left(free, event[1])
            fits = index < len(free)
            gone = free.pop(index) if fits else free.pop() if free else 0
            lent[event[0]] = gone if fits else event[1]
            held += lent[event[0]] - gone
            most = max(most, held)
        else:
            insort(free, lent.pop(event))
    return most


def live(events):
    """Return the most bytes that are in use at a time."""
    lent, most = {}, 0
    for event in events:
        lent.update([event] if isinstance(event, tuple) else [(event, 0)])
        most = max(most, sum(lent.values()))
    return most


def network(widths):
    """List the events of a network in which each layer takes the narrower of its sides through A."""
    forward, backward, layers = [], [], len(widths) - 1
    for k, (below, above) in enumerate(zip(widths, widths[1:], strict=False)):
        if k == 0:
            forward += [(f"Z{k}", above)]
            backward = [f"dZ{k}", *backward]
        elif above <= below:  # Z = A (H W), with H kept
            forward += [(f"Y{k}", above), (f"Z{k}", above), f"Y{k}"]
            of_H = [f"H{k}"]
            backward = [(f"S{k}", above), f"dZ{k}", (f"dZ{k - 1}", below), *of_H, f"S{k}", *backward]
        else:  # Z = (A H) W, with T kept
            forward += [(f"T{k}", below), f"H{k}", (f"Z{k}", above)]
            backward = [(f"dT{k}", below), f"dZ{k}", f"T{k}", (f"dZ{k - 1}", below), f"dT{k}", *backward]
    names = {f"Z{k}": f"H{k + 1}" for k in range(layers - 1)} | {f"Z{layers - 1}": f"dZ{layers - 1}"}
    rename = lambda e: (names.get(e[0], e[0]), e[1]) if isinstance(e, tuple) else e  # noqa: E731
    return [rename(event) for event in [*forward, *backward]]


def test_arrays_in_use_at_a_time_are_apart():
    rng = np.random.default_rng(1)
    for _ in range(200):
        ends = np.sort(rng.integers(0, 40, (int(rng.integers(1, 25)), 2)))
        lives = [Life(int(rng.integers(1, 5000)), int(a), int(b) + 1) for a, b in ends]
        sizes, places = life_times.plan(lives)
        for life, (size, (buffer, start)) in zip(lives, places, strict=True):
            assert size == life.size and start % life_times.ALIGNMENT == 0 and start + size <= sizes[buffer]
        for i, (a, (_, (m, x))) in enumerate(zip(lives, places, strict=True)):
            for b, (_, (n, y)) in list(zip(lives, places, strict=True))[:i]:
                both = a.first < b.last and b.first < a.last
                assert not (both and m == n and x < y + b.size and y < x + a.size)


def test_a_narrow_matrix_takes_no_wide_buffer(backend):
    workspace = Workspace(backend)
    assert live(SHRINKING) == 3 * WIDE + NARROW < one_by_one(SHRINKING)
    for _ in range(3):
        with Ledger() as ledger:
            passed(workspace, SHRINKING)
        assert ledger.peak["layers"] == live(SHRINKING)
    assert workspace.borrowed == live(SHRINKING)


def test_an_array_that_is_kept_longer_than_shown_stays(backend):
    workspace = Workspace(backend)
    for late in (False, True, True):
        with workspace.repeated("pass"):
            first = workspace.borrow((WIDE,), np.uint8)
            first[...] = 1
            if not late:
                workspace.give_back(first)
            second = workspace.borrow((WIDE,), np.uint8)
            second[...] = 2
            assert not late or bool((first == 1).all())
            workspace.give_back(second)
            workspace.give_back(first)


def test_no_network_needs_more_than_with_whole_buffers(backend):
    rng = np.random.default_rng(2)
    for _ in range(60):
        events = network((256 * rng.integers(1, 33, int(rng.integers(2, 9)))).tolist())
        workspace = Workspace(backend)
        for _ in range(3):
            passed(workspace, events)
        assert workspace.borrowed <= one_by_one(events)


def test_a_pass_that_strays_is_shown_anew(backend):
    workspace, other = Workspace(backend), network([2048, 1024, 4096, 512])
    for events in (SHRINKING, SHRINKING, other, other, other, SHRINKING):
        passed(workspace, events)
    for _ in range(MOST_SHOWN + 2):  # never the same: as outside a pass
        passed(workspace, SHRINKING)
        passed(workspace, other)
    with pytest.raises(ZeroDivisionError), workspace.repeated("pass"):
        workspace.give_back(workspace.borrow((8,), np.uint8))
        1 / 0
    passed(workspace, SHRINKING, "another")
    passed(workspace, SHRINKING, "another")


def test_what_outlives_its_pass_is_not_lent_again(backend):
    workspace = Workspace(backend)
    for _ in range(3):
        with workspace.repeated("pass"):
            kept = workspace.borrow((WIDE,), np.uint8)
        kept[...] = 7
        passed(workspace, SHRINKING, "next")
        assert bool((kept == 7).all())
        with workspace.repeated("pass"):
            other = workspace.borrow((WIDE,), np.uint8)
            other[...] = 9
        assert bool((kept == 7).all())
        workspace.give_back(kept)
        workspace.give_back(other)
