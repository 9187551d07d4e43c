"""Panels around a ring: everybody gets every panel, in any admissible order of turns, however slow some ranks
are.
"""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import ledger, progress
from distgnn.arrays import backend as backends
from distgnn.arrays.tuning import TUNING, Tuning
from distgnn.comm import flight
from distgnn.comm.group import Comm
from distgnn.comm.relay import Relay, _segment, upstream
from distgnn.operators import make_grid

from .test_group import StagedBackend

ORDERS = {"as they come": lambda comm, roots: range(len(roots)), "own first": upstream}


def content(stage: int, size: int) -> np.ndarray:
    return np.arange(size, dtype=np.float64) + 1000.0 * stage


def run(comm, roots, sizes, order, overlap, delay=0.0) -> list[tuple[int, np.ndarray]]:
    """Return (stage, panel) in the order taken, through as few buffers as the order allows.

    Each buffer has the largest size.
    """
    xp = comm.backend.xp
    turns = list(ORDERS[order](comm, roots))
    most = max(Counter(roots).values(), default=0)
    buffers = TUNING.relay_buffers if order == "as they come" else max(TUNING.relay_buffers, most + 1)
    room = [comm.backend.empty((max(sizes, default=0),), np.float64) for _ in range(buffers)]
    own = {
        stage: xp.asarray(content(stage, sizes[stage]))
        for stage, root in enumerate(roots)
        if root == comm.rank
    }

    def panel(stage, buffer):
        return own[stage] if stage in own else room[buffer][: sizes[stage]]

    taken = []
    with Relay(comm, roots, turns, panel, "H", overlap=overlap, buffers=buffers) as panels:
        for stage, array in zip(turns, panels, strict=True):
            for _ in range(3):
                time.sleep(delay)
                progress.poll()
            taken.append((stage, comm.backend.to_host(array).copy()))
    assert not progress.pending()
    return taken


@pytest.mark.ranks(1)
def test_the_number_of_buffers_is_read_when_a_relay_is_made(comm, backend, monkeypatch):
    monkeypatch.setattr(TUNING, "relay_buffers", 3)
    group = dg.Grid(comm, backend=backend).along("rows")
    assert Relay(group, [], [], lambda stage, buffer: None, "H").free == [0, 1, 2]


def test_segments_are_larger_on_a_device(monkeypatch):
    sizes = [1 << 10, 1 << 22, 1 << 26, 1 << 27, 1 << 30]
    assert [_segment(size, False) for size in sizes] == [1 << 18, 1 << 18, 1 << 22, 1 << 22, 1 << 22]
    assert [_segment(size, True) for size in sizes] == [_segment(size, False) for size in sizes]
    monkeypatch.setattr(TUNING, "device_segment", Tuning.device_segment)
    assert [_segment(size, True) for size in sizes] == [1 << 24, 1 << 24, 1 << 24, 1 << 25, 1 << 26]


@pytest.mark.ranks(1, 2)
def test_a_rank_of_a_gpu_takes_no_naps(comm, backend, monkeypatch):
    """Unless ranks outnumber the cores of a node."""
    naps = list[float]()
    monkeypatch.setattr(progress.time, "sleep", naps.append)
    monkeypatch.setattr(progress, "PATIENCE", 0)
    for cores in (64, 1):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        group, looks = dg.Grid(comm, backend=backend).along("rows"), iter(range(9))
        naps.clear()  # of the calls that made the grid, which no kernel waits for
        with group.flight("receive", "H") as flight:
            flight.computed = None
            flight.until(lambda looks=looks: next(looks) == 8)
        assert any(naps) == (not backend.on_device or cores < comm.Get_size()), cores


@pytest.mark.ranks(1, 3, 4, 6)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_every_rank_takes_every_panel(comm, backend, overlap, order, monkeypatch):
    """Roots with several panels, with none, panels of no elements and of many segments."""
    monkeypatch.setattr(TUNING, "relay_segment", 256)
    monkeypatch.setattr(TUNING, "largest_segment", 256)
    monkeypatch.setattr(TUNING, "relay_at_a_time", 3)
    grid = dg.Grid(comm, backend=backend, rows=comm.Get_size())
    group = grid.along("rows")
    for seed in range(4):
        random = np.random.default_rng(seed)
        roots = sorted(random.integers(0, group.size, 2 * group.size + 1).tolist())
        sizes = random.choice([0, 1, 31, 32, 33, 500], len(roots)).tolist()
        taken = run(group, roots, sizes, order, overlap)
        assert sorted(stage for stage, _ in taken) == list(range(len(roots)))
        for stage, panel in taken:
            np.testing.assert_array_equal(panel, content(stage, sizes[stage]))
    grid.free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_slow_ranks_do_not_mix_panels_up(comm, backend, overlap, order, monkeypatch):
    """A rank that lags is sent panels of two roots at once; tags keep them apart, buffers wait for it."""
    monkeypatch.setattr(TUNING, "relay_segment", 512)
    grid = dg.Grid(comm, backend=backend, rows=comm.Get_size())
    group = grid.along("rows")
    roots = [0, 1, *range(group.size)]
    for slow in range(group.size):
        for stage, panel in run(
            group, sorted(roots), [700] * len(roots), order, overlap, 0.002 * (group.rank == slow)
        ):
            np.testing.assert_array_equal(panel, content(stage, 700))
    grid.free()


@pytest.mark.ranks(1, 4)
def test_the_ledger_charges_what_broadcasts_cost(comm, backend):
    grid = dg.Grid(comm, backend=backend, rows=comm.Get_size())
    group = grid.along("rows")
    roots, sizes = list(range(group.size)), [10 * (root + 1) for root in range(group.size)]
    for overlap in (True, False):
        with dg.Ledger(timing=True) as counted:
            run(group, roots, sizes, "own first", overlap)
        assert counted.words == sum(sizes) - sizes[group.rank]
        assert (counted.messages, counted.calls) == (group.size - 1, group.size)
        assert (counted.flight > 0) == (group.size > 1)
    grid.free()


@pytest.mark.ranks(3)
def test_few_segments_are_under_way_however_large_the_panel(comm, backend, monkeypatch):
    monkeypatch.setattr(TUNING, "relay_segment", 8)
    monkeypatch.setattr(TUNING, "largest_segment", 64)
    grid = dg.Grid(comm, backend=backend, rows=comm.Get_size())
    group = grid.along("rows")
    own, room = (backend.asarray(content(number, 2000)) for number in (7, 0))
    relay = Relay(group, [0], [0], lambda stage, buffer: room if group.rank else own, "H")
    most, look = 0, relay.flight.look

    def counted():
        nonlocal most
        most = max(most, len(relay.flight.requests))
        return look()

    monkeypatch.setattr(relay.flight, "look", counted)
    with dg.Ledger() as ledger, relay as panels:
        for panel in panels:
            np.testing.assert_array_equal(backend.to_host(panel), content(7, 2000))
    assert 0 < most <= 2 * TUNING.relay_at_a_time
    assert [(e["matrix"], e["words"]) for e in ledger.entries()] == [("H", 2000 * (group.rank > 0))]
    grid.free()


@pytest.mark.ranks(1, 3)
def test_an_order_that_could_wait_in_a_circle_is_refused(comm):
    """Ranks that have as many panels as buffers could all wait for a free buffer of their successor."""
    group, roots = Comm(comm, backends.get("numpy")), [0, 0, 1, 2]
    with pytest.raises(ValueError, match="2 panels of one rank needs 3 buffers; got 2"):
        Relay(group, roots, [3, 2, 0, 1], lambda stage, buffer: None, "H", buffers=2)
    Relay(group, roots, range(4), lambda stage, buffer: None, "H", buffers=2)


def test_a_group_of_one_copies_nothing():
    on = StagedBackend()
    group = Comm(MPI.COMM_SELF, on)
    group.direct = False
    own = content(0, 100)
    with Relay(group, [0, 0], [0, 1], lambda stage, buffer: own, "H") as panels:
        assert all(panel is own for panel in panels)
    assert on.copies == 0


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("overlap", [True, False])
def test_staged_panels(comm, overlap, monkeypatch):
    monkeypatch.setattr(TUNING, "relay_segment", 256)
    group = Comm(comm, StagedBackend())
    group.direct = False
    roots = list(range(group.size))
    for stage, panel in run(group, roots, [700] * len(roots), "own first", overlap):
        np.testing.assert_array_equal(panel, content(stage, 700))


@pytest.mark.ranks(3)
def test_a_relay_that_is_left_early_brings_all_panels(comm, backend):
    """One rank breaks after any number of panels; the next relay uses the same buffers."""
    grid = dg.Grid(comm, backend=backend, rows=comm.Get_size())
    group = grid.along("rows")
    rooms = [backend.empty((3000,), np.float64) for _ in range(TUNING.relay_buffers)]
    own = backend.asarray(content(group.rank, 3000))
    panel = lambda stage, buffer: own if stage == group.rank else rooms[buffer]  # noqa: E731
    for first in range(group.size + 1):
        roots = range(group.size)
        for takes in (first if group.rank == 1 else group.size, group.size):
            with Relay(group, roots, upstream(group, roots), panel, "H") as panels:
                for stage, array in zip(upstream(group, roots)[:takes], panels, strict=False):
                    np.testing.assert_array_equal(backend.to_host(array), content(stage, 3000))
            assert not progress.pending() and not flight.under_way()
    grid.free()


@pytest.mark.ranks(4)
@pytest.mark.abandons
def test_an_error_leaves_nothing_registered_and_no_memory_that_is_lent_again(comm, backend):
    grid = dg.Grid(comm, backend=backend, rows=comm.Get_size())
    group, addresses = grid.along("rows"), set()
    array = backend.zeros((5000,), np.float32)
    turns = upstream(group, range(group.size))

    def panel(stage, buffer):
        if stage == group.rank:
            return array
        addresses.add(backend.address(rooms[buffer]))
        return rooms[buffer]

    with pytest.raises(ZeroDivisionError), grid.workspace.rooms() as take:
        rooms = [take(f"panel {number}", (5000,), np.float32) for number in range(TUNING.relay_buffers)]
        with Relay(group, range(group.size), turns, panel, "H") as panels:
            next(panels)
            assert progress.pending()
            1 / 0
    assert not progress.pending() and grid.links.broken
    comm.Barrier()
    before = grid.world._mpi
    assert grid.world.mpi is not before  # so that no message meets one of the operation that failed
    if flight.under_way():
        with grid.workspace.rooms() as take:
            assert backend.address(take("panel 0", (5000,), np.float32)) not in addresses
    comm.Barrier()


@pytest.mark.ranks(2)
@pytest.mark.abandons
def test_a_flight_that_ends_with_messages_under_way_raises(comm):
    group = dg.Grid(comm, rows=2).along("rows")
    with pytest.raises(RuntimeError, match="probe of H over rows ended while 1 of its messages were under"):
        with group.flight("probe", "H") as unfinished:
            unfinished.receive(np.empty(3), 1 - group.rank, 0, lambda: None)
    assert not flight.under_way()  # a receive is cancelled


def test_upstream_begins_at_home_and_goes_against_the_direction_of_travel():
    class Group:
        rank, size, ring = 1, 4, (0, 1, 2, 3)

    assert upstream(Group, [0, 1, 1, 2, 3]) == [1, 2, 0, 4, 3]
    Group.ring = 0, 2, 1, 3  # of two nodes to which ranks are dealt in turns
    assert upstream(Group, [0, 1, 1, 2, 3]) == [1, 2, 3, 0, 4]


def test_time_inside_a_timed_region_is_taken_off_it():
    with dg.Ledger(trace=True) as found, ledger.timed("spmm", "spmm"):
        time.sleep(0.002)
        with ledger.timed("comm", "bcast", "rows"):
            time.sleep(0.02)
    assert found.seconds["comm"] > 0.019
    outer, inner = (next(e for e in found.events if e.phase == phase) for phase in ("spmm", "comm"))
    assert outer.start <= inner.start <= inner.stop <= outer.stop
    total = outer.stop - outer.start
    assert found.seconds["spmm"] + found.seconds["comm"] == pytest.approx(total, rel=1e-6)


def test_peak_is_the_moment_when_most_was_held():
    with dg.Ledger() as found:
        ledger.held("test layers", 100)
        ledger.held("test panels", 50)
        ledger.held("test layers", -100)
        ledger.held("test panels", 20)
    assert (found.peak["test layers"], found.peak["test panels"]) == (100, 50)
    ledger.held("test panels", -70)


def test_what_an_operator_holds_is_counted_as_long_as_it_lives(backend):
    A = sp.random_array((40, 40), density=0.2, rng=np.random.default_rng(0), format="csr", dtype=np.float32)
    grid = make_grid(MPI.COMM_SELF, "1d", backend=backend)
    with dg.Ledger() as found:
        before = found.peak.get("adjacency", 0)
    operator = dg.distribute(A, grid, "1d")
    with dg.Ledger() as found:
        held = found.peak["adjacency"] - before
    assert held == sum(block.buffer.nbytes for block in operator.algorithm.A.blocks) > 0
    del operator
    with dg.Ledger() as found:
        assert found.peak.get("adjacency", 0) == before
