"""Stages: every long work has one, and says at its end that all of it is done."""

from __future__ import annotations

import pytest

import distgnn as dg
from distgnn import stages
from distgnn.cli import main


class Heard:
    """Remembers how stages began and ended."""

    def __init__(self):
        self.open, self.over, self.steps, self.stopped = [], {}, [], []

    def begun(self, stage):
        self.open.append(stage)

    def advanced(self, stage):
        assert stage is self.open[-1] or stage in self.open
        self.steps.append((stage.name, stage.done, stage.note))

    def ended(self, stage):
        self.open.remove(stage)
        self.over[stage.name] = stage.done, stage.total
        self.stopped += [stage.name] if stage.stopped else []


def test_items_advance_a_stage_and_an_error_ends_it():
    heard = Heard()
    with stages.watched(heard):
        assert list(stages.followed(["a", "bcd"], "read", 4, "B", len)) == ["a", "bcd"]
        with pytest.raises(ZeroDivisionError), stages.stage("outer"), stages.stage("inner", 2) as advance:
            advance(1, "half")
            raise ZeroDivisionError
    assert heard.steps == [("read", 1, ""), ("read", 4, ""), ("inner", 1, "half")]
    assert heard.over == {"read": (4, 4), "inner": (1, 2), "outer": (0, None)} and not heard.open
    assert heard.stopped == ["inner", "outer"]
    list(stages.followed("abc", "unheard"))
    assert "unheard" not in heard.over


def test_a_loop_that_ends_early_has_stopped_its_stage():
    heard = Heard()
    with stages.watched(heard):
        items = stages.followed("abc", "read", 3)
        next(items), next(items)
        items.close()
    assert heard.over == {"read": (1, 3)} and heard.stopped == ["read"]


def test_every_long_stage_is_heard_to_its_end(tmp_path, monkeypatch):
    """Generating, importing, partitioning, writing, loading, training."""
    monkeypatch.chdir(tmp_path)
    heard, quiet = Heard(), ("--quiet",)
    (tmp_path / "e.csv").write_text("".join(f"{i},{(7 * i + 1) % 60}\n" for i in range(60)))
    (tmp_path / "parts").write_text("".join(f"{i % 2}\n" for i in range(200)))
    with stages.watched(heard):
        assert main(["generate", "sbm", "g", "--nodes", "200", "--features", "8", *quiet]) == 0
        orders = "--order", "random,original", "--partition", "parts:2", "--shards", "2x2"
        assert main(["prepare", "g", "g.dg", *orders, *quiet]) == 0
        assert main(["train", "g.dg", "--epochs", "3", "--verify", *quiet]) == 0
    expected = {
        "draw edges",
        "draw features",
        "read features",
        "import edges",
        "sort and write shards",
        "write values",
    }
    expected |= {"write nodes", "reorder as orders/original", "read structure", "partition file-parts-2"}
    expected |= {"verify g.dg", "load matrix", "load features", "load labels", "load split", "train"}
    assert expected - {"partition file-parts-2"} <= heard.over.keys()
    assert any(name.startswith("partition ") for name in heard.over) and not heard.open
    odd = {name: ends for name, ends in heard.over.items() if ends[1] is not None and ends[0] != ends[1]}
    assert not odd
    with stages.watched(heard):
        dg.prepare
        assert main(["prepare", "e.csv", "e.dg", *quiet]) == 0
    assert heard.over["read e.csv"] == ((tmp_path / "e.csv").stat().st_size,) * 2
