"""All-to-allv in parts: everybody gets what was sent, however slow some ranks are, and the ledger charges
what is received.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

import distgnn as dg
from distgnn import progress
from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Workspace
from distgnn.comm.exchange import Exchange
from distgnn.comm.group import Comm
from distgnn.comm.pieces import Pieces, rooms
from distgnn.comm.staging import staging

from .test_group import StagedBackend


def content(source, destination, size):
    return np.arange(size, dtype=np.float64) + 1000 * source + 100_000 * destination


def sizes_between(ranks, seed):
    return np.random.default_rng(seed).choice([0, 1, 2, 31, 500], (ranks, ranks))


def run(comm, sizes, overlap, delay=0.0):
    """Exchange parts in the order rank + 1, rank + 2, ..., and compare each as it arrives."""
    on, size = comm.backend, comm.size
    after = [(comm.rank + step) % size for step in range(1, size)]
    receives = [(source, on.empty((int(sizes[source, comm.rank]),), np.float64)) for source in after]
    with Exchange(comm, receives, "H", overlap) as parts:
        for destination in reversed(after):
            parts.send(
                on.asarray(content(comm.rank, destination, sizes[comm.rank, destination])), destination
            )
        for source, array in receives:
            parts.wait([source])
            with parts.driven():
                for _ in range(3):
                    time.sleep(delay)
                    progress.poll()
                expected = content(source, comm.rank, sizes[source, comm.rank])
                np.testing.assert_array_equal(on.to_host(array), expected)
    assert not progress.pending()
    assert not parts.flight.requests and not parts.queue and not parts.sending
    if not comm.direct:  # copies whose reader is late are given back when memory is borrowed next
        on.finish()
        staged = staging(on)
        staged.give_back(staged.borrow((1,), np.float64))
        staged.memory.clear()
        assert staged.memory.borrowed == 0  # none is lent


@pytest.fixture(params=["plain", "pieces", "staged"])
def group(request, comm, backend, monkeypatch):
    if backend.on_device and request.param == "staged":
        pytest.skip("forced on host arrays")
    made = Comm(comm, StagedBackend() if request.param == "staged" else backend)
    made.direct = request.param != "staged"
    if request.param == "pieces":
        monkeypatch.setattr(Comm, "count_limit", 7)
    return made


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("overlap", [True, False])
def test_every_rank_receives_every_part(group, overlap):
    for seed in range(3):
        run(group, sizes_between(group.size, seed), overlap)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("overlap", [True, False])
def test_slow_ranks_do_not_mix_exchanges_up(comm, backend, overlap, monkeypatch):
    """Fast ranks are two exchanges ahead of what a slow one has received."""
    monkeypatch.setattr(TUNING, "exchange_sends", 1)
    group = Comm(comm, backend)
    for slow in range(group.size):
        for seed in range(3):
            run(group, sizes_between(group.size, seed), overlap, 0.002 * (group.rank == slow))


def shape_between(source, destination, seed):
    heights, widths = (500, 1, 0, 77), (7, 3, 40)
    return heights[(source + 2 * destination + seed) % 4], widths[(2 * source + destination) % 3]


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("numbers", "at_a_time"), [(64, 1), (1500, 2), (1 << 16, 4)])
def test_rows_are_packed_and_unpacked_in_pieces(comm, in_turn, overlap, numbers, at_a_time, monkeypatch):
    """Columns of a matrix go to columns of another; plain arrays are cut alike. Above the eager limit."""
    monkeypatch.setattr(TUNING, "packed_numbers", numbers)
    monkeypatch.setattr(TUNING, "packed_at_a_time", at_a_time)
    host = dg.backend.Backend()
    group, workspace = Comm(comm, host), Workspace(host)
    me, others, dtype = group.rank, group.others(), np.dtype(np.float64)
    into = lambda out, cut: lambda rows, room: out.__setitem__((rows, cut), room)  # noqa: E731
    out_of = lambda X, cut: lambda rows, room: room.__setitem__(..., X[rows, cut])  # noqa: E731
    for seed in range(4):
        there = {r: shape_between(me, r, seed) for r in others}
        here = {q: shape_between(q, me, seed) for q in others}
        sent = {r: content(me, r, 50 * h).reshape(h, 50) for r, (h, _) in there.items()}
        came = {q: np.zeros((h, 60)) for q, (h, _) in here.items()}
        packed = {r: Pieces((h, w), dtype, out_of(sent[r], slice(2, 2 + w))) for r, (h, w) in there.items()}
        unpacked = {q: Pieces((h, w), dtype, into(came[q], slice(5, 5 + w))) for q, (h, w) in here.items()}
        plain = {q: np.zeros(shape) for q, shape in here.items()}
        copied = {r: sent[r][:, 2 : 2 + w].copy() for r, (_, w) in there.items()}
        for sends, receives, moved in ((copied, unpacked, unpacked), (packed, plain, packed)):
            with workspace.lending() as borrow:
                few = rooms(borrow, [*moved.values()], in_turn)
                how = {"in_pieces": in_turn, "rooms": few, "narrow": True}
                with Exchange(group, [*receives.items()], "H", overlap, **how) as parts:
                    time.sleep(0.002 * (me == seed % group.size))
                    for r in reversed(others):
                        parts.send(sends[r], r)
                    with parts.driven():
                        parts.wait(others)
            assert not in_turn or len(few) <= at_a_time
        for q, (height, width) in here.items():
            expected = content(q, me, 50 * height).reshape(height, 50)[:, 2 : 2 + width]
            np.testing.assert_array_equal(plain[q], expected)
            np.testing.assert_array_equal(came[q][:, 5 : 5 + width], expected)
            assert not came[q][:, :5].any() and not came[q][:, 5 + width :].any()
    assert not progress.pending()


@pytest.mark.ranks(1, 3, 4)
def test_the_ledger_charges_what_is_received(comm, backend):
    group = Comm(comm, backend)
    sizes = sizes_between(group.size, 5)
    np.fill_diagonal(sizes, 0)
    for overlap in (True, False):
        with dg.Ledger(timing=True) as counted:
            run(group, sizes, overlap)
        mine = sizes[:, group.rank]
        assert (counted.words, counted.bytes, counted.messages) == (
            mine.sum(),
            8 * mine.sum(),
            np.count_nonzero(mine),
        )
        assert [entry["operation"] for entry in counted.entries() if entry["calls"]] == ["alltoallv"]
        assert (counted.flight > 0) == bool(mine.any())


@pytest.mark.ranks(4)
def test_giving_up_on_every_rank_leaves_nothing_registered(comm, backend):
    group = Comm(comm, backend)
    array = backend.zeros((5,), np.float32)
    with (
        pytest.raises(KeyError),
        Exchange(group, [((group.rank + 1) % group.size, array)], "H") as parts,
        parts.driven(),
    ):
        assert progress.pending()
        raise KeyError
    assert not progress.pending()
    comm.Barrier()
