"""One rule for each guess about tables: separators, comments, headers, columns, indices, missing values."""

from __future__ import annotations

import bz2
import json
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.importers.coded import Coder
from distgnn.store.importers.dialect import Dialect
from distgnn.store.importers.text import Cleaned
from distgnn.store.source import ImportOptions, Source

from .importing import adjacency, all_features, refused, write

RING = "source,target\n0,1\n1,2\n2,3\n3,4\n4,5\n5,0\n"


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    return write(tmp_path / "ring.csv", RING)


def opened(path: Path, **options: object) -> Source:
    return open_source(path, ImportOptions(**{name: str(value) for name, value in options.items()}))


def edges(source: Source) -> list[tuple[str, str]]:
    """List the edges by the ids of their ends."""
    ids = range(source.n) if source.ids is None else source.ids.tolist()
    names = [one.decode() if isinstance(one, bytes) else str(one) for one in ids]
    return [(names[s], names[t]) for src, dst, _ in source.edges() for s, t in zip(src, dst, strict=True)]


@pytest.mark.parametrize(
    ("separator", "given", "plain"),
    [
        ("\t", b'a\t\t"b"\n', b'a\t\t"b"\n'),  # tabs are no blanks where they part fields
        ("\t", b'a\t "b" \tc\n', b'a\t"b"\tc\n'),
        (",", b'a, "b c" ,d\n', b'a,"b c",d\n'),
        (",", b" \t\na,b\n  \nc,d\n", b"\na,b\n\nc,d\n"),
        (" ", b" 1\t 2  \r\n3   4 ", b"1 2\r\n3 4"),
        (" ", b'"a  b"\t 1\n', b'"a  b" 1\n'),
    ],
)
def test_plain_bytes_of_a_dialect(separator, given, plain) -> None:
    assert Dialect(separator).clean(given) == plain == Dialect(separator).clean(plain)


def test_empty_fields_between_tabs(ring, tmp_path) -> None:
    rows = "".join(f'{node}\t\t"{"ab"[node % 2]}"\n' for node in range(6))
    labels = write(tmp_path / "labels.tsv", f"id\tnote\tlabel\n{rows}")
    assert opened(ring, labels=labels).labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_pandas_is_not_imported(tmp_path) -> None:
    from pyarrow import parquet, table

    write(tmp_path / "words.csv", "a,b\nb,c\n")
    write(tmp_path / "numbers.csv", RING)
    parquet.write_table(table({"source": [0, 1], "target": [1, 2], "weight": [1.0, 2.0]}), tmp_path / "e.pq")
    program = (
        "import sys\nfrom pathlib import Path\nfrom distgnn.store.importers import open_source\n"
        f"for path in sorted(Path({str(tmp_path)!r}).iterdir()):\n"
        "    assert [*open_source(path).edges()]\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


CITIES = [("New York, NY", "Boston, MA"), ("Boston, MA", "Chicago, IL"), ("Chicago, IL", "New York, NY")]
DIALECTS = [
    ("e.tsv", "\t", ""), ("e.csv", ";", ""), ("e.txt", "\t", ""), ("e.csv", ",", '"'), ("e.txt", " ", '"'),
    ("e.csv", ", ", '"'), ("e.csv", "|", ""), ("e.txt", "  \t ", '"'), ("e.csv", "  ;  ", '"'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mark", "quote"), DIALECTS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_and_quotes_are_those_of_the_whole_file(tmp_path, name, mark, quote, end) -> None:
    lines = [mark.join(f"{quote}{one}{quote}" for one in pair) for pair in CITIES]
    for begin in ("", f"from{mark}to{end}", "\ufeff", f"# a, b\tc; d{end}"):
        path = tmp_path / name
        path.write_bytes((begin + end.join(lines) + end).encode())
        assert edges(opened(path)) == CITIES, begin


def test_two_separators_are_a_question(tmp_path) -> None:
    path = write(tmp_path / "e.csv", "a;b,c;d\nc;d,a;x\n")
    refused(
        path,
        "comma or semicolon could part the columns; expected one of separator=comma, separator=semicolon",
    )
    assert edges(opened(path, separator="comma")) == [("a;b", "c;d"), ("c;d", "a;x")]
    refused(path, "separator=pipes: expected one character, or tab, comma", separator="pipes")
    path = write(tmp_path / "e.txt", "a b,c d\nc d,e f\n")
    refused(path, "comma or blank could part the columns")
    assert edges(opened(path, separator=",")) == [("a b", "c d"), ("c d", "e f")]


def test_comments_come_before_the_rows(tmp_path) -> None:
    path = write(tmp_path / "e.csv", "# an, old, file\n#from,to\n%\na,b\n\n#ai,b\nb,#ai\n")
    source = opened(path)
    assert edges(source) == [("a", "b"), ("#ai", "b"), ("b", "#ai")] or source.n == 3
    assert "lines before the rows left out" in source.readings[0]
    tags = "#ai,#python\n#python,data\ndata,#ai\n"
    for header in ("", "tag,other\n"):
        assert edges(opened(write(path, header + tags))) == [
            ("#ai", "#python"), ("#python", "data"), ("data", "#ai")
        ]  # fmt: skip
    behind = write(path, "0,1\n# more\n1,2 # the last\n")
    refused(behind, "line 2: bad line '# more', which has 1 fields; expected 2; comments=# would skip")
    assert edges(opened(behind, comments="#")) == [("0", "1"), ("1", "2")]
    hashes = write(path, "# x,y\ny,z\n")
    assert edges(opened(hashes, comments="none")) == [("# x", "y"), ("y", "z")]


def test_a_line_that_names_the_separator(tmp_path) -> None:
    path = write(tmp_path / "e.csv", "sep=;\nfrom;to\na,1;b\nb;c,1\n")
    assert edges(opened(path)) == [("a,1", "b"), ("b", "c,1")]
    assert "1 line before the rows left out" in opened(path).readings[0]


def test_a_second_header_has_a_line(tmp_path) -> None:
    for text, line in (
        ("source,target\n0,1\nsource,target\n1,2\n", 3),
        ("source,target\na,b\nb,a\nsource,target\n", 4),
    ):
        refused(
            write(tmp_path / "e.csv", text), f"e.csv, line {line}: repeats the header; expected one header"
        )


@pytest.mark.parametrize("word", ["NULL", "\\N", "nan", "None", "NA", ""])
def test_missing_ends_have_a_line_unless_a_list_has_them(tmp_path, word) -> None:
    path = write(tmp_path / "e.csv", f"source,target\na,b\nb,{word}\nc,{word}\n")
    refused(path, "e.csv, line 3, column target: .*expected a node id")
    numbers = write(tmp_path / "n.csv", f"source,target\n0,1\n1,{word}\n")
    refused(numbers, "n.csv, line 3, column target: .*expected a node id")
    if word:
        nodes = write(tmp_path / "nodes.csv", f"id\n{word}\na\nb\nc\n")
        assert opened(path, node_list=nodes).ids.tolist()[0] == word.encode()


def test_lists_of_konect(tmp_path) -> None:
    path = write(tmp_path / "out.txt", "% sym weighted\n% 3 3 3\n1 2 3 1082040961\n2 3 1 1082040962\n")
    assert edges(opened(path, ids="integers")) == [("1", "2"), ("2", "3")]
    weighted = adjacency(open_source(path, ImportOptions(weights=True, ids="integers")))
    assert (weighted[0, 1], weighted[1, 2]) == (3, 1)
    refused(write(path, "% bip unweighted\n1 1\n1 2\n"), "line 1 '% bip unweighted' says .* numbered apart")


INDEXED = [
    ",source,target\n1,0,1\n2,1,2\n7,2,0\n",
    '"","from","to"\n"1","0","1"\n"2","1","2"\n"7","2","0"\n',
    "Unnamed: 0,a,b\n1,0,1\n2,1,2\n7,2,0\n",
    '"a" "b"\n"1" 0 1\n"2" 1 2\n"7" 2 0\n',
]


@pytest.mark.parametrize("text", INDEXED)
def test_an_index_is_neither_node_nor_weight(tmp_path, text) -> None:
    path = write(tmp_path / "e.csv", text)
    assert edges(opened(path)) == [("0", "1"), ("1", "2"), ("2", "0")]
    refused(path, "weights=True, but it has no column of weights", weights=True)


TRIPLES = [
    "a\tlikes\tb\nb\tlikes\tc\n", "a -> b\nb -> c\n", "x,y,z\na,is,b\nb,is,c\n", "0 likes 1\n1 likes 2\n",
    "0,5,7\n1,7,9\n2,9,5\n3,5,2\n", "when,p,q,r\nmay,0,1,2\n",
]  # fmt: skip


def test_columns_that_could_be_nodes_are_a_question(tmp_path) -> None:
    for text in TRIPLES:
        path = write(tmp_path / "e.tsv", text)
        refused(path, "source_column=S and target_column=T")
        if "->" not in text and "9,5" not in text:
            assert len(edges(opened(path, source_column=1, target_column=2))) >= 1
    for names in ("head,relation,tail", "subject,predicate,object"):
        path = write(tmp_path / "kg.csv", f"{names}\nparis,capital_of,france\nberlin,capital_of,germany\n")
        assert edges(opened(path)) == [("paris", "france"), ("berlin", "germany")]


def test_weights_by_their_column(tmp_path) -> None:
    path = write(tmp_path / "e.csv", "a,b,km,hours\n0,1,10,2\n1,2,20,3\n")
    chosen = ImportOptions(source_column="a", target_column="b", weight_column="hours", weights=True)
    assert adjacency(open_source(path, chosen))[1, 0] == 2
    refused(
        path,
        "weight_column=miles: no such column",
        source_column="a",
        target_column="b",
        weight_column="miles",
    )


INDICES = [
    (",a,b\n3,30,31\n1,10,11\n0,0,1\n5,50,51\n4,40,41\n2,20,21\n", True),
    ("user_id,a,b\n3,30,31\n1,10,11\n0,0,1\n5,50,51\n4,40,41\n2,20,21\n", True),
    ('"","a","b"\n"1",0,1\n"2",10,11\n"3",20,21\n"4",30,31\n"5",40,41\n"6",50,51\n', True),
    ('"a" "b"\n"1" 0 1\n"2" 10 11\n"3" 20 21\n"4" 30 31\n"5" 40 41\n"6" 50 51\n', True),
    ("k,a,b\n0,0,1\n1,10,11\n2,20,21\n3,30,31\n4,40,41\n5,50,51\n", True),
    ("0,0,1\n1,10,11\n2,20,21\n3,30,31\n4,40,41\n5,50,51\n", True),
    ("who,a,b\n3,30,31\n1,10,11\n0,0,1\n5,50,51\n4,40,41\n2,20,21\n", False),
    (",a,b\n13,30,31\n11,10,11\n10,0,1\n15,50,51\n14,40,41\n12,20,21\n", False),
]


def test_an_index_of_features_has_ids_or_is_left(ring, tmp_path) -> None:
    for text, known in INDICES:
        path = write(tmp_path / "x.csv", text)
        if known:
            assert all_features(opened(ring, features=path)).tolist() == [
                [10 * k, 10 * k + 1] for k in range(6)
            ]
        else:
            refused(ring, "may be ids, row numbers or features; id_column=NAME", features=str(path))
            names = "a,b" if text[0] == "," else "who,a,b"
            assert opened(ring, features=path, feature_columns=names).width == len(names.split(","))
    ids = opened(ring, features=write(tmp_path / "x.csv", INDICES[6][0]), id_column="who")
    assert all_features(ids)[3].tolist() == [30, 31]


@pytest.mark.parametrize("way", ["same", "absolute", "link", "folder"])
def test_one_file_by_several_names_has_each_column_once(ring, tmp_path, monkeypatch, way) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{k},{k + 1},2,{k % 3 + 1},{k % 2}\n" for k in range(6))
    write(tmp_path / "nodes.csv", "id,a,b,split,label\n" + rows)
    os.symlink("nodes.csv", "link.csv")
    (tmp_path / "d").mkdir()
    other = {
        "same": "nodes.csv",
        "absolute": tmp_path / "nodes.csv",
        "link": "link.csv",
        "folder": "d/../nodes.csv",
    }[way]
    for given in ({"labels": other, "split": "nodes.csv"}, {"labels": "nodes.csv", "split": other}):
        source = opened(ring, features="nodes.csv", **given)
        assert (
            source.width == 2
            and source.labels.tolist() == [0, 1] * 3
            and source.split.tolist() == [1, 2, 3] * 2
        )


def test_chosen_categorical_and_missing_features(ring, tmp_path) -> None:
    text = "id,age,city,income\n0,1,Rome,10\n1,,Oslo,NaN\n2,3,Rome,30\n3,5, Oslo ,NA\n4,7,,50\n5,9,Rome,70\n"
    path = write(tmp_path / "x.csv", text)
    refused(
        ring, "line 2, column city: 'Rome'; expected a finite number; .*categorical=NAME", features=str(path)
    )
    told = "line 3, column age: nothing; expected a finite number; missing=mean or missing=zero"
    refused(ring, told, features=str(path), feature_columns="age")
    zero = all_features(opened(ring, features=path, categorical="city", missing="zero"))
    mean = all_features(opened(ring, features=path, categorical="city", missing="mean"))
    city = [[0, 1], [1, 0], [0, 1], [1, 0], [0, 0], [0, 1]]
    assert zero[:, 1:3].tolist() == mean[:, 1:3].tolist() == city
    assert zero[:, 0].tolist() == [1, 0, 3, 5, 7, 9] and mean[:, 0].tolist() == [1, 5, 3, 5, 7, 9]
    assert zero[:, 3].tolist() == [10, 0, 30, 0, 50, 70] and mean[:, 3].tolist() == [10, 40, 30, 40, 50, 70]
    assert all_features(opened(ring, features=path, feature_columns="income,age", missing="zero"))[
        2
    ].tolist() == [30, 3]
    refused(ring, "missing=drop: expected mean, zero or refuse", features=str(path), missing="drop")
    refused(
        ring,
        "feature_columns=id,age: id has ids, labels or parts",
        features=str(path),
        feature_columns="id,age",
    )
    np.save(tmp_path / "x.npy", np.ones((6, 2)))
    for name, value in (("missing", "zero"), ("feature_columns", "0"), ("categorical", "0")):
        refused(
            ring, f"{name}={value}: .* table of features", features=str(tmp_path / "x.npy"), **{name: value}
        )


def test_labels_define_nodes_without_edges(tmp_path) -> None:
    path = write(tmp_path / "e.csv", "bob,zoe\nzoe,al\n")
    for name, content in (
        ("y.csv", "id,label\nzoe,3\nmia,4\nbob,5\n"),
        ("y.json", '{"zoe": 3, "mia": 4, "bob": 5}'),
    ):
        source = opened(path, labels=write(tmp_path / name, content))
        assert source.ids.tolist() == [b"al", b"bob", b"mia", b"zoe"] and source.labels[0] == -1
        assert "1 of its nodes have no edges, such as 'mia'" in source.notes[0]
    nodes = str(write(tmp_path / "n.txt", "zoe\nbob\nal\n"))
    refused(
        path, "y.csv, line 3: node 'mia' is not in the graph", labels=str(tmp_path / "y.csv"), node_list=nodes
    )


def test_line_breaks_between_quotes(tmp_path) -> None:
    path = write(tmp_path / "e.csv", 'source,target\n"a\nb",c\nc,"d\ne"\nc,c,c\n')
    refused(path, "e.csv, line 6: bad line 'c,c,c'")
    path = write(path, 'source,target\n"a\nb",c\nc,"d\ne"\n')
    assert edges(opened(path)) == [("a\nb", "c"), ("c", "d\ne")]
    labels = write(tmp_path / "y.csv", 'id,label\n"a\nb",x\nc,"y\nz"\n')
    assert opened(path, labels=labels).class_names == ["x", "y\nz"]


def test_json_lines(tmp_path) -> None:
    rows = [{"source": a, "target": b, "weight": k} for k, (a, b) in enumerate(CITIES, 1)]
    path = write(tmp_path / "e.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert edges(opened(path)) == CITIES
    refused(
        write(path, '{"source": 1, "target": 2}\n{"source": 3}\n'), "e.jsonl, line 2, column target: nothing"
    )
    refused(write(path, "source\n"), "e.jsonl: JSON parse error.*; expected an object of JSON in each line")


def test_other_packings(tmp_path) -> None:
    (tmp_path / "e.csv").write_bytes(bz2.compress(RING.encode()))
    assert opened(tmp_path / "e.csv").edge_count == 6
    (tmp_path / "e.csv").write_bytes(bz2.compress(RING.encode())[:-9])
    refused(tmp_path / "e.csv", "e.csv: truncated or damaged")


def test_rows_longer_than_a_batch(ring, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(LIMITS, "text_bytes", 64)
    rows = np.arange(6 * 40).reshape(6, 40)
    text = "\n".join(",".join(map(str, row)) for row in rows)
    assert all_features(opened(ring, features=write(tmp_path / "x.csv", text))).tolist() == rows.tolist()
    long = "0,1\n" * 50_000 + f"{'0' * 1000}1,1\n" + "1,2\n"
    assert len(edges(opened(write(tmp_path / "e.csv", long), ids="numbers"))) == 50_002


def test_numbers_of_words(monkeypatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr(LIMITS, "entries", 100)  # so that many batches are numbered one after another
    rng, found = np.random.default_rng(0), []
    words = [f" {k:x}" * (1 + k % 5) for k in rng.integers(0, 3000, 20_000).tolist()]
    coder = Coder("e.csv", 1 << 30, lambda codes, beside: found.append(codes))
    for lo in range(0, 20_000, 500):
        column = pa.array(words[lo : lo + 500])
        coder.add([column, column.dictionary_encode()] if lo % 1000 == 5 else [column, column[::-1]])
    coder.flush()
    codes, listed = np.concatenate(found), coder.words.to_pylist()
    assert [listed[k] for k in codes[:, 0]] == [word.strip() for word in words]
    assert len(set(listed)) == len(listed) and listed[0] == words[0].strip()
    assert [listed[k] for k in codes[:500, 1]] == [word.strip() for word in words[499::-1]]


def test_too_many_long_words(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(LIMITS, "unpacked_bytes", 100)
    monkeypatch.setattr(LIMITS, "unpacked_ratio", 1)
    path = write(tmp_path / "e.csv", f"{'x' * 1000},b\n" + "".join(f"n{k},b\n" for k in range(9)))
    refused(path, "e.csv: 11 ids of up to 1000 bytes are too many for memory")


def test_the_temporary_file_is_gone(tmp_path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    path = write(tmp_path / "e.csv", "a,b\nb,c\n")
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    source = open_source(path, ImportOptions(scratch=str(scratch)))
    assert not list(scratch.iterdir()) and adjacency(source).sum() == 4
    del source
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_zeros_and_repeats_of_matrices(tmp_path) -> None:
    import scipy.sparse as sp

    want = np.array([[0, 3, 0.0], [0, 0, 5], [0, 0, 0]])
    path = tmp_path / "a.mtx"
    head = "%%MatrixMarket matrix coordinate real general\n3 3 "
    for text in ("4\n1 2 1\n1 2 2\n2 3 5\n3 1 0\n", "2\n1 2 3\n2 3 5\n", "3\n2 3 5\n3 3 0\n1 2 3\n"):
        source = open_source(write(path, head + text), ImportOptions(weights=True))
        assert (adjacency(source) == want).all() and source.edge_count == 2
        assert open_source(path).edge_count == 2 and adjacency(open_source(path)).sum() == 2
        zeros = [left for left in source.left if "zeros of a.mtx, which are no edges" in left]
        assert len(zeros) == (" 0\n" in text)
    for kind in ("csr", "csc", "coo"):
        entries = ([1.0, 2, 5, 0], ([0, 0, 1, 2], [1, 1, 2, 0]))
        sp.save_npz(tmp_path / "a.npz", sp.coo_array(entries, shape=(3, 3)).asformat(kind))
        source = open_source(tmp_path / "a.npz", ImportOptions(weights=True, directed=True))
        assert (adjacency(source) == want).all() and source.edge_count == 2


def test_no_thread_reads_on_behind_an_error(tmp_path, monkeypatch) -> None:
    """A thread of Arrow would call Python: tables are read where they are asked for."""
    readers, lines = set(), Cleaned._lines

    def noted(self):
        for some in lines(self):
            readers.add(threading.get_ident())
            yield some

    monkeypatch.setattr(Cleaned, "_lines", noted)
    path = write(tmp_path / "e.csv", "0,1\n" * 400_000 + "1,2,3\n" + "4,5\n" * 400_000)
    refused(path, "line 400001: bad line")
    assert readers == {threading.get_ident()}


def test_quoted_line_breaks_at_the_ends_of_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(LIMITS, "text_bytes", 16)
    names = [f"a{k}\nb, c" for k in range(40)]
    text = "".join(f'"{a}","{b}"\n' for a, b in pairwise(names))
    source = open_source(write(tmp_path / "e.csv", text))
    assert source.ids.tolist() == sorted(name.encode() for name in names)
    assert sum(len(src) for src, *_ in source.stream()) == 39
