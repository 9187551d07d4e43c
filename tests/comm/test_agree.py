"""Facts that all ranks must share: found unequal wherever the odd rank is, and named in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import distgnn as dg
from distgnn import ledger
from distgnn.comm import facts
from distgnn.comm.agree import RankFacts, agree, disagreement, ranges, text, together
from distgnn.errors import ArgumentError, DisagreementError


def told(values: list[str | None], hosts: str = "", sources: dict[int, str] | None = None) -> str:
    """Return the error of ranks with these values of x, on hosts of one letter, by sources."""
    everybody = [
        RankFacts(
            {} if value is None else {"x": value},
            hosts[rank] if hosts else "a",
            {"x": sources[rank]} if sources and rank in sources else {},
        )
        for rank, value in enumerate(values)
    ]
    return str(disagreement(everybody))


def test_the_error_names_values_ranks_and_hosts() -> None:
    line = told(["0.01", "0.1", "0.01", "0.01"], "abaa")
    assert line == "ranks disagree: x is 0.01 on ranks 0, 2-3 and 0.1 on rank 1 (host b)"
    assert told(["1", "2", "2"], "abc") == "ranks disagree: x is 2 on ranks 1-2 and 1 on rank 0 (host a)"
    assert told(["", None], "ab") == "ranks disagree: x is empty on rank 0 and not there on rank 1 (host b)"
    assert told(["1", "2", "3"], "abb").endswith("1 on rank 0, 2 on rank 1 (host b) and 3 on rank 2 (host b)")
    assert told(["1", "2"], "ab", {0: "f.toml", 1: "X_LR"}).endswith(
        "is 1 on rank 0 (set by f.toml) and 2 on rank 1 (host b, set by X_LR)"
    )


def test_the_error_of_many_ranks_stays_short() -> None:
    line = told([str(rank % 2) for rank in range(2048)], "abcdefgh" * 256)
    assert (
        line.endswith("1 on ranks 1, 3, 5, 7, 9, 11 and more, 1024 in all (host b, d, f and 1 more)")
        and "0 on ranks 0, 2, 4, 6, 8, 10 and more, 1024 in all and" in line
    )
    assert len(told(list(map(str, range(2048))))) < 150
    many = [RankFacts({name: str(rank) for name in "abcde"}, "h", {}) for rank in range(2)]
    assert str(disagreement(many)).endswith("; 2 more differ")
    assert ranges([3, 4, 5, 9]) == "ranks 3-5, 9"


def test_flags_of_another_command_are_not_named_beside_it() -> None:
    train, info = ({"command": "train", "--lr": "1"}, {"command": "info", "--json": "no"})
    error = disagreement([RankFacts(train, "a", {}), RankFacts(info, "a", {})])
    assert (error.argument, error.value) == ("command", "train")
    assert "--" not in str(error)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((16, 8), [16, 8]),
        (Path("x/y"), "x/y"),
        (np.float32, np.dtype("float32")),
        (np.int64(3), 3),
        (np.arange(6).reshape(2, 3).T, np.ascontiguousarray(np.arange(6).reshape(2, 3).T)),
        ({"rows": 2}, {"rows": np.int32(2)}),
        (object(), object()),
    ],
)
def test_equal_values_of_different_types_agree(one: object, other: object) -> None:
    assert text(one) == text(other)


def test_different_values_differ() -> None:
    values = [None, True, 1, 2, "", "a", [], [1, 2], {"a": 1}, np.arange(2), np.arange(2.0), np.zeros(0)]
    assert len({text(value) for value in values}) == len(values)


@pytest.mark.ranks(1, 2, 3, 12)
def test_ranks_agree_or_all_of_them_hear(comm) -> None:
    agree(comm, {"lr": 0.01, "A": np.arange(5)})
    for odd in range(comm.Get_size() if comm.Get_size() > 1 else 0):
        mine = {"seed": 0, "lr": 0.1 if comm.Get_rank() == odd else 0.01}
        with pytest.raises(DisagreementError, match=rf"ranks disagree: lr is .*0\.1 on rank {odd}") as error:
            agree(comm, mine)
        assert error.value.argument == "lr"
        assert len(set(comm.allgather(str(error.value)))) == 1


@pytest.mark.ranks(2)
def test_the_order_of_facts_does_not_count(comm) -> None:
    facts = {"a": 1, "b": 2}
    agree(comm, facts if comm.Get_rank() else dict(reversed(facts.items())))


@pytest.mark.ranks(3)
def test_an_error_of_one_rank_names_its_host(comm) -> None:
    with pytest.raises((KeyError, RuntimeError)) as error:
        with together(comm):
            if comm.Get_rank():
                raise KeyError(comm.Get_rank())
    expected = "rank 1 on host .* failed with KeyError: 1" if comm.Get_rank() == 0 else f"^{comm.Get_rank()}$"
    error.match(expected)


@pytest.mark.ranks(4)
def test_library_calls_disagree_on_all_ranks(comm) -> None:
    last = comm.Get_rank() == comm.Get_size() - 1
    grid = dg.Grid(comm, rows=comm.Get_size())
    A = dg.distribute(np.eye(8), grid, "1d")

    def calls():
        yield "grid", lambda: dg.Grid(comm, **({"rows": 1} if last else {"rows": comm.Get_size()}))
        yield "algorithm", lambda: dg.operators.make_grid(comm, "2d" if last else "1d")
        yield "replication", lambda: dg.operators.make_grid(comm, "1.5d", replication=2 if last else 1)
        yield (
            "row_parts",
            lambda: dg.distribute(
                np.eye(8),
                grid,
                "1d",
                row_parts=np.linspace(0, 8, comm.Get_size() + 1, dtype=int) // (1 + last),
            ),
        )
        yield "widths", lambda: dg.nn.GCN(A, [3, 4 + last, 2])
        yield "seed", lambda: dg.nn.GCN(A, [3, 4, 2], seed=int(last))

    for name, call in calls():
        with pytest.raises(ArgumentError, match=f"ranks disagree: {name} is "):
            call()


@pytest.mark.ranks(2)
def test_code_and_environment_of_library_users(comm, monkeypatch) -> None:
    if comm.Get_rank():
        monkeypatch.setenv("DISTGNN_HOST_ISA", "generic")
    with pytest.raises(ArgumentError, match="DISTGNN_HOST_ISA is not set on rank 0 and generic on rank 1"):
        dg.Grid(comm)
    monkeypatch.undo()
    other = {"distgnn's code": f"0.0.{comm.Get_rank()}"}
    monkeypatch.setattr(facts, "_fixed", lambda: other)
    with pytest.raises(ArgumentError, match="distgnn's code is 0.0.0 on rank 0 and 0.0.1 on rank 1"):
        dg.Grid(comm)


@pytest.mark.ranks(2)
def test_agreement_is_not_charged(comm) -> None:
    grid = dg.Grid(comm)
    with ledger.Ledger() as counted:
        grid.world.agree({"a": 1})
        with grid.world.together():
            pass
    assert counted.calls == 0
