"""Flags given twice: lists add up, all others are refused."""

from __future__ import annotations

import pytest

from distgnn.cli import parse
from distgnn.errors import UserError


def test_lists_add_up() -> None:
    words = "prepare a b --partition volume:4 --order random --partition=metis:4 --order original"
    args = parse(words.split())
    assert (args.partition, args.order) == ("volume:4,metis:4", "random,original")


def test_lists_replace_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTGNN_ORDER", "double")
    assert parse(["prepare", "a", "b"]).order == "double"
    assert parse("prepare a b --order random --order original".split()).order == "random,original"


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("train s --lr 0.1 --lr=0.2", "--lr"),
        ("train s --epochs 3 --epochs 3", "--epochs"),
        ("train s --bias --no-bias", "--no-bias"),
        ("prepare a b --seed 1 --seed 2", "--seed"),
        ("prepare a b -v --verbose", "--verbose"),
    ],
)
def test_other_flags_are_refused(words: str, flag: str) -> None:
    with pytest.raises(UserError, match=f"{flag} is given twice"):
        parse(words.split())


def test_values_that_look_alike_are_no_flags() -> None:
    assert parse("train s --log lr --lr 0.1".split()).lr == 0.1
