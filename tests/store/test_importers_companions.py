"""Features and labels in files of their own, and seeded splits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions, parse_split, random_split

from .importing import all_features, refused, truncate, write, write_gz

X = np.array([[0, 1, 2], [3, 0, 0], [0, 0, 0], [0.5, 0, 0.25]])


@pytest.fixture
def edges(tmp_path):
    return write(tmp_path / "edges.csv", "0,1\n1,2\n3,0\n")


def opened(edges, **options):
    return open_source(edges, ImportOptions(**{key: str(value) for key, value in options.items()}))


def test_every_feature_format_gives_the_same_rows(edges, tmp_path):
    files = [
        tmp_path / name
        for name in ("a.npy", "f.npy", "h.npy", "b.npz", "c.npz", "csr.npz", "csc.npz", "coo.npz")
    ]
    np.save(files[0], X)
    np.save(files[1], np.asfortranarray(X.astype(np.float32)))
    np.save(files[2], X.astype(">f4"))
    np.savez(files[3], features=X)
    np.savez_compressed(files[4], X)
    for path in files[5:]:
        scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(X).asformat(path.stem))
    lines = [",".join(map(str, row)) for row in X]
    files.append(write(tmp_path / "plain.csv", "\n".join(lines)))
    files.append(write_gz(tmp_path / "named.csv.gz", "\n".join(["x,y,z", *lines])))
    rows = [f"{X[k, 0]}\t{k}\t{X[k, 1]}\t{X[k, 2]}\n" for k in (3, 0, 1)]  # node 2 has no row
    files.append(write(tmp_path / "ids.tsv", "y\tid\tx\tz\n" + "".join(rows)))
    for path in files:
        assert np.array_equal(all_features(opened(edges, features=path)), X.astype(np.float32)), path


def test_scratch_folder_is_left_empty(edges, tmp_path):
    np.savez_compressed(tmp_path / "x.npz", X)
    (tmp_path / "scratch").mkdir()
    source = opened(edges, features=tmp_path / "x.npz", scratch=tmp_path / "scratch")
    assert not list((tmp_path / "scratch").iterdir())
    assert np.array_equal(all_features(source), X.astype(np.float32))
    with pytest.raises(UserError, match="nowhere"):
        opened(edges, features=tmp_path / "x.npz", scratch=tmp_path / "nowhere")


def test_json_features_are_binary(edges, tmp_path):
    path = write(tmp_path / "x.json", json.dumps({"2": [4, 0], "0": [1], "1": []}))
    source = opened(edges, features=path)
    assert source.n == 4 and source.width == 5
    assert np.array_equal(all_features(source), [[0, 1, 0, 0, 0], [0] * 5, [1, 0, 0, 0, 1], [0] * 5])
    more = write(tmp_path / "more.json", json.dumps({"5": [0]}))
    assert opened(edges, features=more).n == 6


BAD_JSON = [
    '{"0": [1}',
    "[1, 2]",
    '{"a": [1]}',
    '{"-1": [1]}',
    '{"0": 1}',
    '{"0": [-1]}',
    '{"0": [1.5]}',
    '{"0": ["x"]}',
    '{"0": [NaN]}',
    '{"0": [true]}',
    '{"0": [1], "00": [2]}',
    '{"9999999999999999999": []}',
]


def test_bad_json_features(edges, tmp_path):
    for content in BAD_JSON:
        refused(edges, "x.json", features=str(write(tmp_path / "x.json", content)))


def test_features_that_are_not_finite(edges, tmp_path):
    for bad in (np.nan, np.inf, -np.inf, 1e300):
        values = X.copy()
        values[2, 1] = bad
        np.save(tmp_path / "x.npy", values)
        refused(edges, "x.npy", "feature 1 of node 2", features=str(tmp_path / "x.npy"))
        csv = write(tmp_path / "x.csv", "\n".join(",".join(map(str, row)) for row in values))
        refused(edges, "x.csv, line 3", features=str(csv))
        scipy.sparse.save_npz(tmp_path / "x.npz", scipy.sparse.csr_matrix(values))
        refused(edges, "x.npz", "feature 1 of node 2", features=str(tmp_path / "x.npz"))


def test_a_table_of_node_features_keeps_finite_sums(edges, tmp_path):
    values = np.full((4, 2), 3e38)
    np.save(tmp_path / "x.npy", values)
    assert np.array_equal(all_features(opened(edges, features=tmp_path / "x.npy")), values.astype(np.float32))


def test_rows_that_do_not_match_the_nodes(edges, tmp_path):
    np.save(tmp_path / "x.npy", X[:3])
    refused(edges, "x.npy: 3 rows of features", "graph of 4 nodes", features=str(tmp_path / "x.npy"))
    np.save(tmp_path / "more.npy", np.ones((6, 2)))
    assert opened(edges, features=tmp_path / "more.npy").n == 6
    np.save(tmp_path / "flat.npy", np.ones(4))
    refused(edges, "flat.npy", r"\(nodes, width\)", features=str(tmp_path / "flat.npy"))


def test_bad_feature_files(edges, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((4, 100)))
    refused(edges, "x.npy", "truncated", features=str(truncate(tmp_path / "x.npy", 0.9)))
    refused(edges, "x.npy", "not a complete NumPy", features=str(truncate(tmp_path / "x.npy", 0.01)))
    np.save(tmp_path / "o.npy", np.array([[{}], [None]]), allow_pickle=True)
    refused(edges, "o.npy", "Python objects", features=str(tmp_path / "o.npy"))
    np.save(tmp_path / "s.npy", np.array([["a"], ["b"]]))
    refused(edges, "s.npy", "expected numbers", features=str(tmp_path / "s.npy"))
    np.savez(tmp_path / "two.npz", a=X, b=X)
    refused(edges, "two.npz", "holds a, b", features=str(tmp_path / "two.npz"))
    refused(
        edges,
        "ragged.csv, line 2",
        "bad line '1,2', which has 2 fields; expected 3",
        features=str(write(tmp_path / "ragged.csv", "1,2,3\n1,2\n1,2,3\n1,2,3\n")),
    )
    refused(
        edges,
        "twice.csv, line 3: node 0 is listed twice",
        features=str(write(tmp_path / "twice.csv", "id,x\n0,1\n0,2\n")),
    )
    refused(
        edges, "half.csv, line 2", "a node id", features=str(write(tmp_path / "half.csv", "id,x\n0.5,1\n"))
    )
    refused(edges, "gone.npy", "no such file", features=str(tmp_path / "gone.npy"))
    refused(edges, "x.bin", "unknown format", features=str(tmp_path / "x.bin"))


def test_string_labels_are_sorted_into_classes(edges, tmp_path):
    path = write(
        tmp_path / "y.csv", 'id,page,class\n1,"Voice, The 中国",tv\n0,x,company\n2,"say ""hi""",tv\n3,,\n'
    )
    source = opened(edges, labels=path)
    assert source.class_names == ["company", "tv"] and source.classes == 2 and source.labels.dtype == np.int32
    assert source.labels.tolist() == [0, 1, 1, -1]


CLASSES = [
    (["10", "9", "9", "10"], ["9", "10"], [1, 0, 0, 1]),
    (["0", "-1", "2", "1"], ["0", "1", "2"], [0, -1, 2, 1]),
    (["b", "nan", "a", ""], ["a", "b"], [1, -1, 0, -1]),
    (["01", "1", "1", "1"], ["01", "1"], [0, 1, 1, 1]),
]


def test_order_of_classes(edges, tmp_path):
    for values, names, labels in CLASSES:
        path = write(tmp_path / "y.csv", "".join(f"{k},{value}\n" for k, value in enumerate(values)))
        source = opened(edges, labels=path)
        assert source.class_names == names and source.labels.tolist() == labels


def test_labels_and_parts_may_be_in_one_table(edges, tmp_path):
    path = write(tmp_path / "y.csv", "node,kind,part\n0,b,train\n1,a,val\n2,a,test\n3,b,train\n")
    source = opened(edges, labels=path, split=path)
    assert source.labels.tolist() == [1, 0, 0, 1] and source.split.tolist() == [1, 2, 3, 1]
    refused(edges, "the column of labels among node, kind, part", labels=str(path), split="0.5/0.2/0.3")


def test_the_summary_names_the_columns_that_were_taken(edges, tmp_path):
    path = write(tmp_path / "t.csv", "node,a,b,class,part\n0,1,2,x,train\n1,3,4,,val\n3,5,6,y,test\n")
    source = opened(edges, features=path, labels=path, split=path)
    assert source.readings == [
        "edges.csv (edges in column 0, column 1, ids are numbers)",
        "t.csv (features in a, b, ids in node)",
        "t.csv (labels in class, ids in node)",
        "t.csv (parts in part, ids in node)",
    ]
    assert all_features(source).tolist() == [[1, 2], [3, 4], [0, 0], [5, 6]]
    assert source.labels.tolist() == [0, -1, -1, 1] and source.split.tolist() == [1, 2, 0, 3]
    plain = opened(edges, features=write(tmp_path / "x.csv", "1 2\n3 4\n5 6\n7 8\n"))
    assert plain.readings[1] == "x.csv (features in column 0, column 1, in the order of the nodes)"


def test_label_columns(edges, tmp_path):
    path = write(tmp_path / "y.tsv", "colour\tnode\tyear\nred\t0\t1999\nblue\t3\t2001\n")
    assert opened(edges, labels=path, label_column="colour").labels.tolist() == [1, -1, -1, 0]
    told = "y.tsv: cannot tell the column of labels among colour, node, year; label_column=NAME"
    refused(edges, told, labels=str(path))
    assert opened(edges, labels=path, id_column="1", label_column="0").class_names == ["blue", "red"]
    refused(edges, "label_column=shape", "colour, node, year", labels=str(path), label_column="shape")
    refused(edges, "id_column=7", labels=str(path), id_column="7")
    plain = write(tmp_path / "p.csv", "0,red,1999\n3,blue,2001\n")
    refused(edges, "among no header and 3 columns; label_column=NAME .* number from 0", labels=str(plain))
    assert opened(edges, labels=plain, label_column="1").class_names == ["blue", "red"]
    write(path, "paper,f1,Class,f2\n0,5,red,6\n3,7,blue,8\n")
    assert opened(edges, labels=path).class_names == ["blue", "red"]


def test_words_for_nothing_are_no_label(edges, tmp_path):
    for word in ("NA", "n/a", "NULL", "none", "NAN", "-1.0", ""):
        path = write(tmp_path / "y.csv", f"id,label\n0,b\n1,{word}\n2,a\n3,nab\n")
        source = opened(edges, labels=path)
        assert source.class_names == ["a", "b", "nab"] and source.labels.tolist() == [1, -1, 0, 2]
        assert source.n == 4 and source.classes == 3
        note = f"{path}: {word} is taken for no label; write it otherwise if it is a class"
        assert (note in source.notes) == (word in ("NA", "n/a", "none"))


def test_parts_in_numbers_are_those_of_arrays_or_refused(edges, tmp_path):
    path, words = tmp_path / "s.csv", "cannot tell the parts from {}; expected train, val, test or none"
    assert opened(edges, split=write(path, "0,3\n1,1\n2,2\n3,0\n")).split.tolist() == [3, 1, 2, 0]
    for parts, found in (((0, 1, 2, 0), "0, 1, 2"), ((0, 1, 1, 0), "0, 1"), ((1, 3, 3, 1), "1, 3")):
        write(path, "id,split\n" + "".join(f"{k},{part}\n" for k, part in enumerate(parts)))
        refused(edges, words.format(found), "1 train, 2 val, 3 test", split=str(path))
    refused(edges, words.format("1"), split=str(write(path, "0,train\n1,val\n2,1\n3,test\n")))
    mixed = write(path, "0,train\n1,val\n2,0\n3,test\n")
    assert opened(edges, split=mixed).split.tolist() == [1, 2, 0, 3]
    np.save(tmp_path / "s.npy", np.array([0, 1, 3, 1]))  # 3 tells what 1 is
    assert opened(edges, split=tmp_path / "s.npy").split.tolist() == [0, 1, 3, 1]
    np.save(tmp_path / "s.npy", np.array([0, 1, 2, 1]))
    refused(edges, words.format("0, 1, 2"), split=str(tmp_path / "s.npy"))


def test_labels_of_unknown_nodes(edges, tmp_path):
    path = write(tmp_path / "y.csv", "id,label\n0,a\n4,b\n")
    source = opened(edges, labels=path)  # as features do, labels say that there are nodes without edges
    assert source.n == 5 and source.labels.tolist() == [0, -1, -1, -1, 1]
    assert "1 of its nodes have no edges, such as 4" in source.notes[0]
    complete = write(tmp_path / "z.csv", "id,label\n" + "".join(f"{k},a\n" for k in range(6)))
    assert opened(edges, labels=complete).n == 6  # a table of all nodes may add isolated ones
    np.save(tmp_path / "x.npy", X)
    refused(edges, "z.csv, line 6", "node 4", labels=str(complete), features=str(tmp_path / "x.npy"))


BAD_LABELS = [
    ("id,label\n0,a\nx,b\n", "line 3, column id: 'x'; expected a node id"),
    ("id,label\n0,a\n-1,b\n", "line 3, column id: '-1'; expected a node id"),
    ("id,label\n0,a\n1\n", "line 3: bad line '1'"),
    ("id,label\n0,a\n0,b\n", "line 3: node 0 is listed twice"),
    ("id,label\n0,\n1,\n", "every label is empty"),
    ("id\n0\n", "1 column"),
    ("", "0 column"),
]


def test_bad_labels(edges, tmp_path):
    for content, words in BAD_LABELS:
        refused(edges, "y.csv", words, labels=str(write(tmp_path / "y.csv", content)))


def test_companions_of_a_matrix(tmp_path):
    path = write(tmp_path / "a.mtx", "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 1\n2 1\n")
    np.save(tmp_path / "x.npy", X[:3])
    labels = write(tmp_path / "y.csv", "0 a\n2 b\n")
    source = opened(path, features=tmp_path / "x.npy", labels=labels, split="0.5/0.5/0")
    assert (
        source.labels.tolist() == [0, -1, 1]
        and sorted(source.split.tolist()) == [0, 1, 2]
        and source.split[1] == 0
    )
    np.save(tmp_path / "x.npy", X)
    refused(path, "4 rows of features for a graph of 3", features=str(tmp_path / "x.npy"))
    refused(
        path,
        "line 4: node 3 is not in the graph",
        labels=str(write(tmp_path / "y.csv", "".join(f"{k} a\n" for k in range(4)))),
    )


def test_seeded_split(edges):
    split = random_split(1000, "0.6/0.2/0.1", 5)
    assert split.dtype == np.uint8 and np.bincount(split).tolist() == [100, 600, 200, 100]
    assert np.array_equal(split, random_split(1000, "0.6/0.2/0.1", 5))
    assert not np.array_equal(split, random_split(1000, "0.6/0.2/0.1", 6))
    # Ten nodes of seed 0, so that the split of a published run stays what it was.
    assert random_split(10, "0.5/0.3/0.2", 0).tolist() == [3, 1, 2, 2, 2, 3, 1, 1, 1, 1]
    assert np.bincount(
        open_source(edges, ImportOptions(split="0.5/0.25/0.25")).split, minlength=4
    ).tolist() == [0, 2, 1, 1]


BAD_SPLITS = [
    "",
    "0.6/0.2",
    "0.6/0.2/0.2/0.1",
    "a/b/c",
    "0.6/0.3/0.2",
    "-0.1/0.5/0.5",
    "nan/0/0",
    "0.6,0.2,0.2",
]


def test_malformed_split(edges):
    for text in BAD_SPLITS:
        refused(edges, "split=", "0.6/0.2/0.2", split=text)


def test_thirds_are_a_split():
    assert sum(parse_split("0.34/0.33/0.33")) == pytest.approx(1)
    assert np.bincount(random_split(10, "0.7/0.2/0.1", 1)).tolist() == [0, 7, 2, 1]


THREE = "facebook,kind,node\n0,a,10\n1,b,11\n2,a,12\n"


@pytest.mark.parametrize(
    ("content", "columns", "words"),
    [
        (
            THREE,
            {"id_column": "node"},
            "id_column=node: .*label_column=NAME, another .*: facebook, kind, node",
        ),
        (THREE, {"label_column": "node"}, "label_column=node: .*id_column=NAME, another of its columns: "),
        (THREE, {"id_column": "kind", "label_column": "kind"}, "id_column=kind: "),
        ("y,x,z\n0,1,2\n", {"id_column": "y"}, "id_column=y: "),
        ("a,b\n0,1\n", {"id_column": "b", "label_column": "1"}, "id_column=b: "),
    ],
)
def test_one_column_as_ids_and_labels(edges, tmp_path, content, columns, words):
    refused(edges, words, labels=str(write(tmp_path / "l.csv", content)), **columns)


def test_of_two_columns_the_other_one_is_left(edges, tmp_path):
    for columns in ({"id_column": "node"}, {"label_column": "kind"}):
        table = write(tmp_path / "l.csv", "kind,node\n7,0\n8,1\n7,2\n")
        source = opened(edges, labels=str(table), **columns)
        assert source.class_names == ["7", "8"] and source.labels.tolist()[:3] == [0, 1, 0]


def test_many_classes_are_noted(edges, tmp_path):
    table = write(tmp_path / "l.csv", "id,label\n0,1.0\n1,a\n2,nan\n")
    (note,) = opened(edges, labels=str(table)).notes
    assert (
        note.startswith(f"{table}: 2 classes for 2 labelled nodes")
        and "regression" in note
        and "label_column" in note
    )
    few = write(tmp_path / "few.csv", "id,label\n" + "".join(f"{k},a\n" for k in range(10)))
    assert opened(write(tmp_path / "ten.csv", "0,9\n"), labels=str(few)).notes == []
