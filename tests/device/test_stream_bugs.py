"""Mistakes with streams, which give right numbers on a host and on a GPU most of the time. Each is planted;
the stand-in for CuPy reports it. Unchanged, the program has none.
"""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn import gallery
from distgnn.arrays.backend import DONE
from distgnn.arrays.cupy_backend import CupyBackend
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm
from distgnn.comm.staging import Staging
from distgnn.nn import GCN, Adam
from distgnn.operators import make_grid
from distgnn.train.full_graph import train


def work(comm) -> None:
    """Train with panels around the ring, rows that are needed, sums, and a few small messages."""
    A = gallery.rmat(64, degree=8).A.astype(np.float32)
    labels, split = np.arange(64, dtype=np.int32) % 3, np.ones(64, np.uint8)
    for options in ({"sparsity_aware": False}, {"sparsity_aware": True}):
        grid = make_grid(comm, "1d", backend="cupy")
        model = GCN(dg.distribute(A, grid, "1d", **options), [8, 8, 3])
        H = dg.scatter(np.ones((64, 8), np.float32), model.input_layout)
        list(train(model, H, model.targets(labels, split), Adam(0.01), 2))
        dg.gather(H)
        grid.free()
    grid = dg.Grid(comm, backend="cupy", rows=comm.size)
    queued = grid.backend.zeros((64, 8), np.float32)
    queued += 1
    grid.world.allreduce(queued)
    queued *= 2
    for root in (0, 0, 1):
        grid.world.bcast(queued, root)
    grid.free()


def no_wait_for_the_stream(patch) -> None:
    patch.setattr(CupyBackend, "synchronize", lambda self: None)


def no_look_at_events(patch) -> None:
    from cupy.cuda import Event

    patch.setattr(Event, "done", True)


def no_event_between_streams(patch) -> None:
    patch.setattr(CupyBackend, "follow", lambda self, mark: None)


def copies_that_do_not_wait_for_kernels(patch) -> None:
    carry = CupyBackend.carry
    patch.setattr(CupyBackend, "carry", lambda self, source, target, after: carry(self, source, target, DONE))


def staging_memory_sent_before_it_is_filled(patch) -> None:
    fill = Comm.fill

    def at_once(self, wire, array, computed):
        fill(self, wire, array, computed)
        return DONE

    patch.setattr(Comm, "fill", at_once)


def staging_memory_lent_again_too_early(patch) -> None:
    give_back = Staging.give_back
    patch.setattr(Staging, "give_back", lambda self, array, read=DONE: give_back(self, array))


@pytest.mark.ranks(2)
def test_the_program_has_no_hazard(comm, stand_in, monkeypatch):
    monkeypatch.setattr(TUNING, "relay_segment", 64)
    with stand_in.observed() as seen:
        work(comm)
    assert seen.hazards == []
    assert seen.counts["launches"] > 100


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("stand_in", "plant"),
    [
        ("cupy", no_wait_for_the_stream),
        ("cupy", no_look_at_events),
        ("cupy-staged", no_event_between_streams),
        ("cupy-staged", copies_that_do_not_wait_for_kernels),
        ("cupy-staged", staging_memory_sent_before_it_is_filled),
        ("cupy-staged", staging_memory_lent_again_too_early),
    ],
    indirect=["stand_in"],
)
def test_a_planted_bug_is_reported(comm, stand_in, plant, monkeypatch):
    monkeypatch.setattr(TUNING, "relay_segment", 64)
    with stand_in.observed() as seen, monkeypatch.context() as patch:
        plant(patch)
        work(comm)
    stand_in.reset()
    assert comm.allreduce(len(seen.hazards)) > 0
