"""`train --trace` on several ranks, and tracks that keep what was under way at once apart."""

from __future__ import annotations

import json
import time

import pytest

from distgnn.files import output
from distgnn.ledger import Event
from distgnn.report import trace
from train.stores import events as log_events
from train.stores import run, small_store


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "3d"])
@pytest.mark.slow
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
        waited = [e for e in timed if e["pid"] == rank and e["tid"] == trace.WAITED]
        assert bool(waited) == (P > 1)
        ended = log_events(log, "end")[0]["ledger"]
        flops = sum(e["flops"] for e in ended if e["rank"] == rank and e["operation"] == "spmm")
        assert sum(e["args"].get("flops", 0) for e in products) == flops
        sums = [e for e in ended if e["rank"] == rank and e["operation"] == "allreduce"]
        traced = sum(e["args"]["words"] for e in waited if e["name"] == "allreduce" and "words" in e["args"])
        assert abs(traced - sum(e["words"] for e in sums)) <= sum(e["calls"] for e in sums)  # each is rounded
    assert 0 <= json.loads(path.read_text())["otherData"]["clocks' error in microseconds"]
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


@pytest.mark.ranks(4)
def test_clocks_of_one_machine_are_aligned(comm, backend):
    """perf_counter is one clock for all processes of a machine, so what alignment finds is its error: less
    than it says.
    """
    from distgnn.comm.group import Comm

    ahead, error = trace.clock_offset(Comm(comm, backend))
    assert abs(ahead) <= error


@pytest.mark.ranks(3, 4)
def test_clocks_that_differ_are_put_right(comm, backend, monkeypatch):
    """Every rank's clock is an hour further, and one rank is late at all barriers but one."""
    from distgnn.comm.group import Comm

    real, calls = trace.time.perf_counter, iter(range(100))
    late = {2 * i for i in range(trace.ROUNDS)} - {14} if comm.Get_rank() == 1 else ()

    def clock():
        if next(calls) in late:
            time.sleep(0.003)
        return real() + 3600 * comm.Get_rank()

    monkeypatch.setattr(trace.time, "perf_counter", clock)
    ahead, error = trace.clock_offset(Comm(comm, backend))
    assert abs(ahead - 3600 * comm.Get_rank()) <= error + 1e-9


@pytest.mark.ranks(1, 3)
def test_what_was_there_stays_where_a_trace_cannot_be_written(comm, backend, shared_tmp_path, monkeypatch):
    """Rank 0 fails before it has heard everybody; no rank waits for it, and no rank goes on as if there were
    a trace.
    """
    from distgnn.comm.group import Comm
    from distgnn.errors import UserError

    path = shared_tmp_path / "trace.json"
    if comm.Get_rank() == 0:
        path.write_text("old")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output.os, "replace", full)
    if comm.Get_rank() == 0:
        monkeypatch.setattr(output.os, "chmod", full)
    with pytest.raises(UserError, match="No space left on device"):
        trace.write(path, Comm(comm, backend), [Event("spmm", "spmm", "", 1.0, 2.0, False)], [])
    comm.Barrier()
    assert [entry.name for entry in shared_tmp_path.iterdir()] == ["trace.json"] and path.read_text() == "old"


@pytest.mark.ranks(2, 3)
def test_a_trace_of_ranks_without_events_is_json(comm, backend, shared_tmp_path):
    from distgnn.comm.group import Comm

    group, path = Comm(comm, backend), shared_tmp_path / "trace.json"
    for busy in (0, 1, 2):  # a rank that does not exist: nobody has any
        events = [Event("spmm", "spmm", "", 5.0, 6.0, False)] if comm.Get_rank() == busy else []
        assert not trace.write(path, group, events, [])
        comm.Barrier()
        found = [e["pid"] for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
        assert found == [busy] * (busy < comm.Get_size())
        comm.Barrier()


@pytest.mark.ranks(1)
def test_only_the_latest_events_are_written_where_there_are_too_many(comm, backend, tmp_path, monkeypatch):
    from distgnn.comm.group import Comm

    monkeypatch.setattr(trace, "MOST_EVENTS", 2)
    happened = [Event("spmm", "spmm", "", start, start + 0.5, False) for start in (1.0, 2.0, 3.0)]
    assert trace.write(tmp_path / "t.json", Comm(comm, backend), happened, [(1, 0.5, 1.6), (2, 1.7, 3.6)])
    written = json.loads((tmp_path / "t.json").read_text())
    assert written["otherData"]["earlier events left out"] is True
    assert [e["name"] for e in written["traceEvents"] if e["ph"] == "X"] == ["epoch 2", "spmm", "spmm"]
