"""Inputs as public reports have them, written anew: benchmarks/results/inputs.md has the reports."""

from __future__ import annotations

import gzip

import pytest

from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions

from .importing import refused

#: What a file holds, its name, options, and its edges between ids.
READ = {
    "addresses with #": (b"http://a/x#1 b\nb c#\n", "e.txt", {}, [("http://a/x#1", "b"), ("b", "c#")]),
    "names with #": (b"a#1 b\n#b a#1\n", "e.edgelist", {}, [("a#1", "b"), ("#b", "a#1")]),
    "names with blanks": (b"(1, 2)|(3, 4)\n(3, 4)|b\n", "e.txt", {}, [("(1, 2)", "(3, 4)"), ("(3, 4)", "b")]),
    "packed": (gzip.compress(b"0 3\n1 2\n"), "e.tsv.gz", {}, [("0", "3"), ("1", "2")]),
    "empty last fields": (b"a\tb\t\nb\tc\t\n", "e.tsv", {}, [("a", "b"), ("b", "c")]),
    "triples": (b"a,likes,b\nb,likes,c\n", "e.csv", {"source_column": "0", "target_column": "2"},
                [("a", "b"), ("b", "c")]),
    "a header of triples": (b"h,r,t\nb,likes,c\n", "e.csv", {"source_column": "h", "target_column": "t"},
                            [("b", "c")]),
    "a header before weights": (b"b,c,rating\nb,d,0.5\n", "e.csv", {}, [("b", "d")]),
    "write_edgelist": (b"0 1 {}\n1 2 {}\n", "e.txt", {}, [("0", "1"), ("1", "2")]),
    "thousands": (b'source,target\n"1,234",5\n', "e.csv", {}, [("1,234", "5")]),
    "far apart": (b"3,4\n9,236440\n", "e.csv", {}, [("3", "4"), ("9", "236440")]),
    "64 bits": (b"45670945678,2\n2,9000000000000000001\n", "e.csv", {},
                [("45670945678", "2"), ("2", "9000000000000000001")]),
    "leading zeros": (b"06520,6520\n6520,7\n", "e.csv", {}, [("06520", "6520"), ("6520", "7")]),
    "R": (b'"from" "to"\n"1" "a" "b"\n"2" "b" "c"\n', "e.txt", {}, [("a", "b"), ("b", "c")]),
    "quotes of R": (b'"a","b"\n1,"f(c(\\"a\\",\\"b\\"))"\n', "e.csv", {"ids": "text"},
                    [("1", 'f(c("a","b"))')]),
    "index of pandas": (b",source,target\n0,5,6\n1,6,7\n", "e.csv", {"ids": "integers"},
                        [("5", "6"), ("6", "7")]),
    "Gephi": (b"Source,Target,Type,Weight\nA,B,Undirected,0.5\n", "e.csv", {"weights": True}, [("A", "B")]),
}  # fmt: skip
REFUSED = {
    "dates": (b"a\tb\t10-10-2016\nb\tc\t20-10-2016\n", "e.tsv", "cannot tell source and target among 3"),
    "one %": (b"%MatrixMarket matrix coordinate pattern general\n3 3 1\n2 1\n", "e.mtx", "%%MatrixMarket"),
    "dictionaries": (b'1,2,{"weight": 1, "color": "green"}\n', "e.csv", "cannot tell source and target"),
    "adjacency lists": (b"0 1 2\n1 2\n2\n", "e.txt", "line 2: bad line .* 2 fields"),
    "METIS": (b"3 2\n2\n1 3\n2\n", "e.txt", "line 2: bad line .* 1 fields"),
    "empty ends": (b"source,target\na,b\nb,\n", "e.csv", "line 3, column target: nothing"),
    "an array of JSON": (b'[{"source": 1, "target": 2}]\n', "e.csv", "is JSON; name it .jsonl"),
    "%g": (b"1932581 1.93258e+06\n", "e.txt", "line 1, column 1: '1.93258e.06', which may be a rounded"),
}


@pytest.mark.parametrize("kind", READ)
def test_what_people_have_is_read(tmp_path, kind) -> None:
    data, name, options, expected = READ[kind]
    (tmp_path / name).write_bytes(data)
    source = open_source(tmp_path / name, ImportOptions(**options))
    ids = [*map(str, range(source.n))] if source.ids is None else source.ids.tolist()
    ids = [one.decode() if isinstance(one, bytes) else str(one) for one in ids]
    edges = [(ids[s], ids[t]) for src, dst, _ in source.edges() for s, t in zip(src, dst, strict=True)]
    assert sorted(edges) == sorted(expected)
    assert source.n == len({end for edge in expected for end in edge})


@pytest.mark.parametrize("kind", REFUSED)
def test_what_could_be_two_things_is_refused(tmp_path, kind) -> None:
    data, name, message = REFUSED[kind]
    (tmp_path / name).write_bytes(data)
    refused(tmp_path / name, message)
