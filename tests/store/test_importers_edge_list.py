"""Edge lists: separators, headers, weights, columns, the number of nodes, and every kind of bad line."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions
from loops import each

from .importing import adjacency, refused, truncate, write, write_gz

PATH_OF_THREE = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])


SPELLINGS = [
    "0,1\n1,2\n",
    "0,1\n1,2",
    "0\t1\n1\t2\n",
    "0 1\n1 2\n",
    "  0   1 \n1  2\n",
    "0;1\n1;2\n",
    "id_1,id_2\n0,1\n1,2\n",
    '"from node","to node"\r\n0, 1\r\n1, 2\r\n',
    "# a comment\n# 3 nodes, 2 edges\n0 1\n\n1 2\n",
    "# comment before the header\nsource\ttarget\n0\t1\n1\t2\n",
    "% sym unweighted\n%\n  % 2 3 3\n0 1\n1 2\n",
    "% a comment, with commas\r\n%\r\nsource,target\r\n0,1\r\n1,2\r\n",
    "\ufeff0,1\n1,2\n",
    "\ufeffa,b\n0,1\n1,2\n",
    '"0","1"\n"1","2"\n',
    "0,1\n1,0\n1,2\n2,1\n",
    "0,1\n0,1\n1,2\n",
]


def test_spellings_of_one_graph(tmp_path):
    for content in SPELLINGS:
        source = open_source(write(tmp_path / "small.csv", content))
        assert source.n == 3 and not source.directed and source.width == 0 and source.labels is None
        assert np.array_equal(adjacency(source), PATH_OF_THREE)
        assert source.features(np.array([2, 0])).shape == (2, 0)


def test_gzip_is_recognised_by_content(tmp_path):
    for name in ("a.csv.gz", "a.csv"):
        assert np.array_equal(adjacency(open_source(write_gz(tmp_path / name, "0,1\n1,2\n"))), PATH_OF_THREE)


def test_blocks_join_lines(tmp_path, monkeypatch):
    edges = np.random.default_rng(0).integers(0, 1000, (500, 2))
    path = write(tmp_path / "a.txt", "".join(f"{a} {b}\n" for a, b in edges))
    for size in (1, 7, 64, 1000):
        monkeypatch.setattr(LIMITS, "text_bytes", size)
        source = open_source(path, ImportOptions(directed=True))
        pieces = list(source.edges())
        assert np.array_equal(np.concatenate([piece[0] for piece in pieces]), edges[:, 0])
        assert np.array_equal(np.concatenate([piece[1] for piece in pieces]), edges[:, 1])


def test_directed_on_request(tmp_path):
    path = write(tmp_path / "a.csv", "0,1\n1,2\n2,2\n")
    matrix = adjacency(open_source(path, ImportOptions(directed=True)))
    assert np.array_equal(matrix, [[0, 0, 0], [1, 0, 0], [0, 1, 1]])  # A[dst, src]


def test_weights_only_on_request(tmp_path):
    path = write(tmp_path / "a.csv", "src,dst,w\n0,1,0.5\n1,2,3e-1\n")
    assert np.array_equal(adjacency(open_source(path)), PATH_OF_THREE)
    assert np.allclose(
        adjacency(open_source(path, ImportOptions(weights=True))), [[0, 0.5, 0], [0.5, 0, 0.3], [0, 0.3, 0]]
    )


def test_both_directions_listed_once(tmp_path):
    path = write(tmp_path / "a.csv", "0,1,2\n1,0,2\n1,1,5\n")
    source = open_source(path, ImportOptions(weights=True))
    assert sum(len(edges[0]) for edges in source.edges()) == 2 == source.edge_count
    assert np.array_equal(adjacency(source), [[0, 2], [2, 5]])
    uneven = write(tmp_path / "b.csv", "0,1,2\n1,0,3\n")
    assert sum(len(edges[0]) for edges in open_source(uneven, ImportOptions(weights=True)).edges()) == 2


def test_columns_by_name_and_number(tmp_path):
    path = write(tmp_path / "a.csv", 'when,to,"a, name",from,weight\nmonday,1,x,0,2\ntuesday,2,"y, z",1,4\n')
    for names in (("from", "to"), ("3", "1")):
        options = ImportOptions(source_column=names[0], target_column=names[1], directed=True, weights=True)
        assert np.array_equal(adjacency(open_source(path, options)), [[0, 0, 0], [2, 0, 0], [0, 4, 0]])
    refused(path, "source_column=nobody", "when, to, a, name, from, weight", source_column="nobody")
    refused(path, "two of|two columns", source_column="to", target_column="to")
    refused(write(tmp_path / "b.csv", "when,p,q,r\nmay,0,1,2\n"), "4 columns", "source_column=")


def test_weights_asked_for_where_none_are(tmp_path):
    refused(write(tmp_path / "a.csv", "0,1\n"), "weights=True", "third column", weights=True)


BAD_LINES = [
    ("0,1\n1,2,3\n", 2, "bad line '1,2,3', which has 3 fields; expected 2"),
    ("0,1\n1\n", 2, "bad line '1', which has 1 fields; expected 2"),
    ("0,1\n1,\n", 2, "column 1: nothing; expected a node id"),
    ("0,1\n,1\n", 2, "column 0: nothing; expected a node id"),
    ("0,1\n1.5,2\n", 2, "column 0: '1.5'; expected a node id"),
    ("a,b\n0,1\n1.5,2\n", 3, "column a: '1.5'; expected a node id, a whole number .* or ids=text"),
    ("a,b\n# note\n\n0,1\n2;3\n", 2, "bad line '# note', .*; comments=# would skip such lines"),
    ("% a b\n0 1\n% 1\n", 3, "column 0: '%'; expected a node id"),
    ("0 1\n1 2 # fine\n3 four\n", 2, "bad line '1 2 # fine', .*; comments=# would skip what is behind #"),
    ("0,1\n-1,2\n", 2, "column 0: '-1'; expected a node id, .* of at least 0, or ids=integers"),
    ("0,1\n1,NULL\n", 2, "column 1: 'NULL'; expected a node id"),
    ("a,b\n0,1\n1,2\na,b\n2,3\n", 4, "repeats the header; expected one header, in the first line"),
]


def test_bad_line_is_named(tmp_path):
    for content, line, shown in BAD_LINES:
        refused(write(tmp_path / "a.csv", content), f"a.csv, line {line}(:|, ).*{shown}")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("0,1,1\n1,2,nan\n", "line 2, column 2: 'nan'; expected a finite number as weight"),
        ("0,1,1\n1,2,inf\n", "line 2, column 2: 'inf'"),
        ("0,1,1\n1,2\n", "line 2: bad line '1,2'"),
        ("a,b,w\n0,1,1\n1,2,x\n", "line 3, column w: 'x'; expected a finite number as weight"),
    ],
)
def test_bad_weights_are_named(tmp_path, content, shown):
    refused(write(tmp_path / "a.csv", content), shown, weights=True, weight_column="2")


def test_ids_are_numbers_only_if_every_one_is(tmp_path):
    """CiteSeer has ids of both kinds: numbers and words."""
    for content, first in (
        ("0,1\n1,x\n2,3\n", "'x'"),
        ("0,x\n1,2\n", "'x'"),
        ("0,1\n0x1,2\n", "'0x1'"),
        ("0,1\n" * 100_000 + "1,seven\n", "'seven'"),
        ("0,1\n" * 100_000 + "1,007\n", "'007'"),
        ("0,1\n1,99999999999999999999999\n", "'99999999999999999999999'"),
    ):
        path = write(tmp_path / "a.csv", content)
        source = open_source(path)
        assert source.ids is not None and source.ids.dtype.kind == "S"
        (note,) = [note for note in source.notes if "ids are words" in note]
        assert f"such as {first}" in note and "ids=integers would refuse others" in note
        if "007" not in content and "0x" not in content:  # which are numbers
            refused(path, "expected a node id, a whole number", ids="integers")


def test_ids_that_leave_most_numbers_unused(tmp_path):
    path = write(tmp_path / "a.csv", "98101,98102\n2134,98101\n2134,10001\n")
    source = open_source(path)
    assert source.n == 4 and source.ids.tolist() == [2134, 10001, 98101, 98102]
    (note,) = source.notes
    assert "4 ids up to 98102 leave more than half of the numbers unused; ids=numbers keeps" in note
    assert open_source(path, ImportOptions(ids="numbers")).n == 98103
    np.save(tmp_path / "x.npy", np.ones((4, 2)))
    refused(path, "rows without ids, .* node_list=FILE .*ids=numbers keeps", features=str(tmp_path / "x.npy"))
    assert open_source(write(tmp_path / "b.csv", "0,1\n2,5\n")).ids is None


def test_negative_and_large_ids_say_so(tmp_path):
    above = write(tmp_path / "b.csv", "0,1\n3,1099511627776\n")
    refused(above, "line 2, column 1: '1099511627776'; .*at most 1099511627775", ids="numbers")
    # 2**39 nodes and two edges: no numbering of nodes, and no arrays of that size are made
    far = write(tmp_path / "c.csv", "0,1\n3,549755813888\n")
    x, y = write(tmp_path / "x.json", '{"0": [1]}'), write(tmp_path / "y.csv", "0,a\n")
    for more in ({}, {"features": str(x)}, {"labels": str(y)}):
        refused(far, "line 2, column 1: '549755813888'; .*at most", ids="numbers", **more)
    np.save(tmp_path / "x.npy", np.ones((4, 1)))
    refused(far, "4 rows of features", features=str(tmp_path / "x.npy"), ids="numbers")


def test_bad_line_far_into_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "text_bytes", 1000)
    lines = [f"{k},{k + 1}" for k in range(2000)]
    lines[1234] = "7,8,eight"
    assert "line 1235: bad line '7,8,eight'" in refused(write(tmp_path / "a.csv", "\n".join(lines)))


def test_damaged_files(tmp_path):
    refused(tmp_path / "none.csv", "none.csv", "no such file")
    whole = write_gz(tmp_path / "a.csv.gz", "".join(f"{k},{k * 7919 % 5000}\n" for k in range(5000)))
    refused(truncate(whole, 0.7), "a.csv.gz", "truncated or damaged")
    corrupt = write_gz(tmp_path / "b.csv.gz", "".join(f"{k},{k * 7919 % 5000}\n" for k in range(5000)))
    data = bytearray(corrupt.read_bytes())
    data[len(data) // 2] ^= 255
    corrupt.write_bytes(data)
    refused(corrupt, "b.csv.gz")
    returns = tmp_path / "d.csv"
    returns.write_bytes(b"a,b\r1,2\r0,1\r")  # as spreadsheets of old wrote
    assert np.array_equal(adjacency(open_source(returns)), PATH_OF_THREE)
    binary = tmp_path / "c.csv"
    binary.write_bytes(bytes(range(128, 256)) * 10)
    refused(binary, "c.csv", "UTF-8")


def test_one_endless_line(tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "text_bytes", 64)
    monkeypatch.setattr(LIMITS, "line_bytes", 256)
    refused(write(tmp_path / "a.csv", "0,1\n" + "1" * 1000), "line 2", "is this a text file")


def test_empty_list_needs_a_number_of_nodes(tmp_path):
    for content in ("", "src,dst\n", "# nothing\n"):
        path = write(tmp_path / "a.csv", content)
        refused(path, "no edges", "how many nodes")
        np.save(tmp_path / "x.npy", np.ones((3, 2)))
        source = open_source(path, ImportOptions(features=str(tmp_path / "x.npy")))
        assert source.n == 3 and not adjacency(source).any()
        labels = write(tmp_path / "y.csv", "0,a\n1,b\n")
        assert open_source(path, ImportOptions(labels=str(labels))).n == 2


def test_gzip_of_a_header_alone(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b""))
    refused(path, "no edges")


def test_weights_that_are_left_out_are_noted(tmp_path):
    path = write(tmp_path / "a.csv", "0,1,2.5\n1,2,1\n")
    (note,) = open_source(path).notes
    assert note == f"{path}: its edges have weights, which are left out; weights=True takes them"
    assert open_source(path, ImportOptions(directed=True)).notes == [note]
    assert open_source(path, ImportOptions(weights=True)).notes == []
    assert open_source(write(tmp_path / "b.csv", "0,1,1\n1,2,1\n")).notes == []


def test_ids_that_begin_at_one_are_noted(tmp_path):
    path = write(tmp_path / "a.csv", "1,2\n2,3\n")
    (note,) = open_source(path).notes
    assert note.startswith(f"{path}: node 0 has no edges; ids here begin at 1") and "subtract 1" in note
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    array = str(tmp_path / "x.npy")
    advice = "subtract 1 from them, or give ids=integers and node_list=FILE"
    refused(path, f"3 rows of features for a graph of 4 nodes .*{advice}", features=array)
    nodes = str(write(tmp_path / "n.txt", "1\n2\n3\n"))
    assert open_source(path, ImportOptions(ids="integers", node_list=nodes, features=array)).n == 3
    np.save(tmp_path / "x.npy", np.ones((4, 2)))
    labels = write(tmp_path / "l.csv", "id,label\n" + "".join(f"{k},a\n" for k in range(4)))
    for known in ({"features": str(tmp_path / "x.npy")}, {"labels": str(labels)}):  # node 0 is meant
        notes = open_source(path, ImportOptions(**known)).notes
        assert not any("begin at 1" in note for note in notes)
    labels = write(tmp_path / "l.csv", "id,label\n" + "".join(f"{k},a\n" for k in range(3)))  # from 0
    notes = open_source(path, ImportOptions(labels=str(labels))).notes
    assert any("begin at 1" in note for note in notes)
    for made in (
        {"features": "degree"},
        {"labels": "degree:1"},
        {"features": "onehot", "labels": "degree:1"},
    ):
        assert any("begin at 1" in note for note in open_source(path, ImportOptions(**made)).notes), made
    assert open_source(write(tmp_path / "b.csv", "0,2\n2,3\n")).notes == []
    (note,) = open_source(tmp_path / "b.csv", ImportOptions(labels="degree:4")).notes
    assert "4 classes for 4 labelled nodes; some may be empty" in note


@each("text, nodes, options", [
    ("ann,bob\n1,bob\n2,ann\n", [b"1", b"2", b"ann", b"bob"], {}),
    ("1:007\n7:1\n", [b"007", b"1", b"7"], {"separator": ":"}),
    ("9007199254740993,1.0\n2,9007199254740992\n", [1, 2, 2**53, 2**53 + 1], {"ids": "integers"}),
])  # fmt: skip
def test_no_two_nodes_become_one_and_no_edge_is_lost(tmp_path, text, nodes, options) -> None:
    """A first line of words that come again, leading zeros behind any separator, ids beyond 2^53."""
    source = open_source(write(tmp_path / "g.csv", text), ImportOptions(**options))
    assert source.names.names.tolist() == nodes
    rows = text.splitlines()
    assert sum(len(src) for src, *_ in source.stream()) == len(rows)


def test_lines_of_blanks_are_none(tmp_path) -> None:
    for end in ("\n", "\r\n"):
        lines = ["source,target", " ", "0,1", "\t", "1,2", "  "]
        source = open_source(write(tmp_path / "g.csv", end.join(lines) + end), ImportOptions())
        assert adjacency(source).tolist() == PATH_OF_THREE.tolist()
