"""Edges between words: plain text is read without a Python object for each field, and every file once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source, plain_text, text, word_numbers
from distgnn.store.importers.plain_text import plain_rows
from distgnn.store.importers.text import Table
from distgnn.store.importers.word_numbers import WordNumbers, hashed
from distgnn.store.source import ImportOptions

from .importing import adjacency, refused, write

WORDS = np.dtype([("source", object), ("target", object)])
WEIGHTED = np.dtype([("source", object), ("_1", object), ("target", object), ("weight", np.float64)])


def slowly(path: Path, dtype: np.dtype, delimiter: str | None, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    with monkeypatch.context() as patched:
        patched.setattr(text, "plain_rows", lambda *block: None)
        return np.concatenate([*Table(path, dtype, "words", delimiter)])


PLAIN = [
    (b"a,b\nbob,alice\nlonger than all,c\n".replace(b" ", b"-"), WORDS, ","),
    (b"a,b\r\nc,d\r\n", WORDS, ","),
    (b"a\tb\nc\td", WORDS, "\t"),
    ("zoë;日本\nbob;zoë\n".encode(), WORDS, ";"),
    (b"a b\nc d\n", WORDS, " "),
    (b"a,x,b,1.5\nc,,d,-2e3\n", WEIGHTED, ","),
]


@pytest.mark.parametrize(("content", "dtype", "mark"), PLAIN)
def test_plain_text_is_read_as_the_other_is(content, dtype, mark, tmp_path, monkeypatch) -> None:
    path = tmp_path / "e.csv"
    path.write_bytes(content)
    rows, expected = plain_rows(content, dtype, None, mark), slowly(path, dtype, mark, monkeypatch)
    assert rows is not None and rows.dtype.names == expected.dtype.names
    for name in expected.dtype.names:
        assert rows[name].tolist() == expected[name].tolist()


ODD = [b'"a",b\n', b"a, b\n", b"#a,b\n", b"a,\n", b"a,b,c\n", b"a\n", b"a,b\n\nc,d\n", b"a\x00,b\n"]
ODD += [b"a\x1c,b\n", "a\u3000,b\n".encode(), "a\x85,b\n".encode(), b"x" * 1025 + b",b\n"]
ODD += [b"a,b\nc\rd,e\n", b"a,b\n,\nc,d\n", b"a\nb\n"]


@pytest.mark.parametrize("content", ODD)
def test_other_text_is_left_to_the_reader_of_numpy(content) -> None:
    assert plain_rows(content, WORDS, None, ",") is None
    assert plain_rows(b"a,b,c,x\n", WEIGHTED, None, ",") is None


def test_plain_files_of_words_are_parsed_once_without_objects(tmp_path, monkeypatch) -> None:
    """In many blocks, with and without a header, and with columns that are left."""
    rng = np.random.default_rng(1)
    names = np.array([f"n{k:x}" + "y" * (k % 23) for k in range(300)])
    ends = names[rng.integers(0, 300, (2, 4000))]
    found, order = np.unique(ends, return_inverse=True)
    order = order.reshape(2, -1)
    expected = np.zeros((len(found), len(found)))
    expected[order[1], order[0]] = 1
    monkeypatch.setattr(LIMITS, "text_bytes", 8000)
    opened = []
    blocks = text.blocks
    monkeypatch.setattr(text, "blocks", lambda *given: (opened.append(1), blocks(*given))[1])
    monkeypatch.setattr(np, "loadtxt", lambda *given, **more: pytest.fail("read by numpy.loadtxt"))
    for header, middle, passes in (("source,target\n", ",", 1), ("", ",", 2), ("src,when,dst,x\n", ",7,", 1)):
        last = ",z" if "when" in header else ""
        lines = "".join(f"{a}{middle}{b}{last}\n" for a, b in ends.T)
        opened.clear()
        source = open_source(write(tmp_path / "e.csv", header + lines), ImportOptions(directed=True))
        assert source.ids.tolist() == [name.encode() for name in found]
        assert source.ids.dtype.itemsize == max(map(len, names))
        assert (adjacency(source) == expected).all() and (adjacency(source) == expected).all()
        assert len(opened) == passes, header


def test_the_temporary_file_is_gone(tmp_path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    path = write(tmp_path / "e.csv", "a,b\nb,c\n")
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    source = open_source(path, ImportOptions(scratch=str(scratch)))
    assert not list(scratch.iterdir()) and adjacency(source).sum() == 4
    del source
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_numbers_of_words() -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"{k:x}" * (1 + k % 5) for k in rng.integers(0, 30000, 100_000)]).astype("S")
    numbers = WordNumbers("e.csv", 1 << 40)
    parts = np.array_split(words, [3, 5000, 5001, 70000])
    given = np.concatenate([numbers.of(part.astype(f"S{max(map(len, part.tolist()))}")) for part in parts])
    assert (numbers.words()[given] == words).all() and numbers.count == len(np.unique(words))
    _, first = np.unique(given, return_index=True)
    assert (np.diff(first) > 0).all()  # in the order in which they come
    assert numbers.of(words[:0]).tolist() == []


def test_words_are_hashed_alike_in_any_room() -> None:
    words = np.array([b"a", b"longer-word", b"12345678"])
    assert (hashed(words.astype("S16")) == hashed(words.astype("S40"))).all()


def test_words_of_one_hash_are_refused(tmp_path, monkeypatch) -> None:
    def same(words: np.ndarray) -> np.ndarray:
        return np.char.str_len(words).astype(np.uint64)

    monkeypatch.setattr(word_numbers, "hashed", same)
    source = open_source(write(tmp_path / "e.csv", "a,bb\nbb,ccc\n"))
    assert source.ids.tolist() == [b"a", b"bb", b"ccc"]
    refused(write(tmp_path / "e.csv", "a,bb\nbb,cc\n"), "e.csv: two ids have the same 64-bit hash")


def test_too_many_long_words(monkeypatch) -> None:
    numbers = WordNumbers("e.csv", 100)
    numbers.of(np.array([b"a", b"b"]))
    with pytest.raises(UserError, match="e.csv: 14 ids of up to 8 bytes are too many for memory"):
        numbers.of(np.array([b"%d" % k for k in range(12)]))


def test_blocks_are_gathered_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr(plain_text, "ROWS", 2)
    rows = plain_rows(b"a,bbbbbbbbb\ncc,d\nee,f\ng,h\nii,j\n", WORDS, None, ",")
    assert rows["source"].tolist() == [b"a", b"cc", b"ee", b"g", b"ii"]
    assert rows["target"].tolist() == [b"bbbbbbbbb", b"d", b"f", b"h", b"j"]
