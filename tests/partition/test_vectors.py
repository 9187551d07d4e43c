"""Part vectors of other programs, and how partitions are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distgnn import UserError
from distgnn.partition import parse, read_part_vector


def test_text_and_npy(tmp_path: Path) -> None:
    (tmp_path / "g.part.3").write_text("0\n2\n2\n0\n")
    np.save(tmp_path / "p.npy", np.array([0, 2, 2, 0]))
    for name in ("g.part.3", "p.npy"):
        part = read_part_vector(tmp_path / name, 4, 3)
        assert part.dtype == np.int32 and part.tolist() == [0, 2, 2, 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p", "0\n1\n", "has 2 numbers for the 4 nodes of this graph; expected one per node"),
        ("p", "0 1 3 1", "node 2 is in part 3; expected 0..2"),
        ("p", "0 1 -1 1", "node 2 is in part -1; expected 0..2"),
        ("p", "0 1 x 1", "not readable as one whole number per node"),
        ("p.npy", "no array", "not readable as one whole number per node"),
        ("missing", None, "not readable as one whole number per node"),
    ],
)
def test_bad_files(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read_part_vector(tmp_path / name, 4, 3)


def test_floating_numbers_are_no_parts(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.zeros(4))
    with pytest.raises(UserError, match="holds float64; expected whole numbers"):
        read_part_vector(tmp_path / "p.npy", 4, 3)


def test_several_are_asked_for_at_once() -> None:
    assert [one.name for one in parse("volume:8, metis:4,a/b.part.8:16")] == [
        "volume-8",
        "metis-4",
        "file-16",
    ]
    for text, message in (
        ("volume", "partition=volume: expected METHOD:K or FILE:K, such as volume:8"),
        ("volume:x", "expected METHOD:K"),
        ("", "expected METHOD:K"),
        (":4", "expected METHOD:K"),
        ("metis:4,metis:4", "2 orders would be named metis-4"),
        ("a:4,b:4", "2 orders would be named file-4"),
    ):
        with pytest.raises(UserError, match=message):
            parse(text)
