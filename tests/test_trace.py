"""`train --trace` on several ranks, and tracks that keep what was under way at once apart."""

from __future__ import annotations

import json

import pytest

from distgnn import trace
from distgnn.ledger import Event
from gcn.stores import events as log_events
from gcn.stores import run, small_store


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "3d"])
def test_a_trace_shows_what_every_rank_did_in_every_epoch(comm, shared_tmp_path, name):
    P, path, log = comm.Get_size(), shared_tmp_path / "trace.json", shared_tmp_path / "run.jsonl"
    store = small_store(shared_tmp_path, comm)
    run(comm, store, "--algorithm", name, "--epochs", 3, "--eval-every", 0, "--trace", path, "--log", log)
    comm.Barrier()
    if comm.Get_rank() > 0:
        return
    written = json.loads(path.read_text())["traceEvents"]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in written if e["ph"] == "M"}
    assert {names[rank, None] for rank in range(P)} == {f"rank {rank}" for rank in range(P)}
    timed = [e for e in written if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and (e["pid"], e["tid"]) in names for e in timed)
    for rank in range(P):
        epochs = [e for e in timed if e["pid"] == rank and e["tid"] == trace.EPOCHS]
        assert [e["name"] for e in epochs] == ["epoch 1", "epoch 2", "epoch 3"]
        products = [e for e in timed if e["pid"] == rank and e["name"] == "spmm"]
        for epoch in epochs:
            inside = [e for e in products if epoch["ts"] <= e["ts"] <= epoch["ts"] + epoch["dur"]]
            assert inside and all(e["tid"] == trace.COMPUTE for e in inside)
        assert any(e["pid"] == rank and e["tid"] == trace.WAITED for e in timed) == (P > 1)
    # rank 0's epochs, by the log and by the trace
    seconds = [e["seconds"] for e in log_events(log, "epoch")]
    drawn = [e["dur"] / 1e6 for e in timed if e["pid"] == 0 and e["tid"] == trace.EPOCHS]
    assert drawn == pytest.approx(seconds, abs=1e-6)


def test_messages_under_way_at_once_are_on_tracks_of_their_own():
    spans = [(0, 4), (1, 2), (3, 5), (4, 6), (0.5, 9)]
    found = trace.records(3, [Event("comm", "bcast", "rows", *span, True) for span in spans])
    by_track: dict[int, list[tuple[float, float]]] = {}
    for record in found:
        assert record["pid"] == 3 and record["tid"] >= trace.UNDER_WAY
        by_track.setdefault(record["tid"], []).append((record["ts"], record["ts"] + record["dur"]))
    assert len(by_track) == 3  # no more than are under way at once
    for lane in by_track.values():
        for (_, stop), (start, _) in zip(sorted(lane), sorted(lane)[1:], strict=False):
            assert stop <= start


@pytest.mark.ranks(2, 4)
def test_clocks_of_one_machine_are_aligned(comm, backend):
    """perf_counter is one clock for all processes of a machine, so what alignment finds is its error: far below an epoch."""
    from distgnn.comm import Comm

    assert abs(trace.clock_offset(Comm(comm, backend))) < 0.05


@pytest.mark.ranks(1)
def test_only_the_latest_events_are_written_where_there_are_too_many(comm, backend, tmp_path, monkeypatch):
    from distgnn.comm import Comm

    monkeypatch.setattr(trace, "MOST_EVENTS", 2)
    happened = [Event("spmm", "spmm", "", start, start + 0.5, False) for start in (1.0, 2.0, 3.0)]
    trace.write(tmp_path / "t.json", Comm(comm, backend), happened, [(1, 0.5, 1.6), (2, 1.7, 3.6)])
    written = json.loads((tmp_path / "t.json").read_text())
    assert written["otherData"] == {"earlier events left out": True}
    assert [e["name"] for e in written["traceEvents"] if e["ph"] == "X"] == ["epoch 2", "spmm", "spmm"]
