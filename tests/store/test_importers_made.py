"""Features and labels made of the graph, and directories that hold little more than edges."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.importers.made import classes_of
from distgnn.store.source import ImportOptions

from .importing import adjacency, all_features, refused, write

LIST = "0,1\n1,0\n1,2\n2,1\n2,1\n3,3\n4,1\n1,4\n5,6\n6,5\n"  # repeats, a loop, an isolated node
DEGREES = [1, 3, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("order", [["random"], ["double", "original"]])
@pytest.mark.parametrize("directed", [True, None])
def test_degrees_are_those_of_the_store(tmp_path, monkeypatch, order, directed) -> None:
    monkeypatch.setattr(LIMITS, "shard_entries", 20)
    path = write(tmp_path / "e.csv", LIST if not directed else "0,1\n0,2\n0,2\n1,2\n3,3\n6,5\n")
    expected = DEGREES if not directed else [0, 1, 2, 0, 0, 1, 0]
    asked = {"order": order, "directed": directed, "out": tmp_path / "a.dg"}
    dg.prepare(path, "degree", "degree:3", "0.5/0.25/0.25", **asked)
    store = dg.Store(tmp_path / "a.dg")
    assert store.features()[:, 0].tolist() == expected
    assert store.labels().tolist() == [3 * sum(d < one for d in expected) // 7 for one in expected]
    assert (store.classes, store.manifest["labelled"], sum(store.manifest["split"].values())) == (3, 7, 7)
    dg.prepare(path, "degree", "degree:4", **(asked | {"out": tmp_path / "b.dg"}))
    other = dg.Store(tmp_path / "b.dg")
    assert other.manifest["content"]["labels"] != store.manifest["content"]["labels"]


def test_classes_of_degrees_are_about_equal() -> None:
    degrees = np.random.default_rng(0).permutation(100)
    assert np.bincount(classes_of(degrees, 8)).tolist() == [13, 12, 13, 12, 13, 12, 13, 12]
    assert set(classes_of(np.array([2, 2, 2, 5]), 4).tolist()) == {0, 3}


def test_random_and_onehot_features(tmp_path) -> None:
    path = write(tmp_path / "e.txt", "0 1\n1 2\n4 2\n")
    X = all_features(open_source(path, ImportOptions(features="random:128", seed=3)))
    assert X.shape == (5, 128) and -1 <= X.min() < -0.9 and 0.9 < X.max() < 1 and abs(X.mean()) < 0.1
    assert len(np.unique(X)) > 600  # float32 can meet
    again, other = (ImportOptions(features="random:128", seed=seed) for seed in (3, 4))
    assert (all_features(open_source(path, again)) == X).all()
    assert (all_features(open_source(path, other)) != X).any()
    assert (all_features(open_source(path, ImportOptions(features="onehot"))) == np.eye(5)).all()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"features": "random"}, "features=random: expected a file, or degree, onehot or random:WIDTH"),
        ({"features": "random:0"}, "features=random:0: "),
        ({"features": "random:99999999999"}, "features=random:99999999999: "),
        ({"features": "degree:3"}, "features=degree:3: "),
        ({"labels": "degree"}, "labels=degree: expected a file, or degree:CLASSES"),
        ({"labels": "degree:x"}, "labels=degree:x: "),
    ],
)
def test_words_that_ask_for_nothing(tmp_path, asked, words) -> None:
    refused(write(tmp_path / "e.txt", "0 1\n"), words, **asked)


def test_a_directory_of_edges_alone(tmp_path) -> None:
    write(tmp_path / "README.md", "edges of a road network")
    write(tmp_path / "roads.tsv", "0\t1\n1\t2\n")
    source = open_source(tmp_path, ImportOptions(features="random:4", labels="degree:2"))
    assert (source.n, source.width, source.classes, source.name) == (3, 4, 2, "roads")
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    write(tmp_path / "labels.csv", "0,a\n2,b\n")
    write(tmp_path / "split.txt", "0 train\n1 test\n")
    source = open_source(tmp_path)
    assert (source.width, source.class_names, source.split.tolist()) == (2, ["a", "b"], [1, 3, 0])
    assert open_source(tmp_path, ImportOptions(labels="degree:2")).labels.tolist() == [0, 0, 0]
    write(tmp_path / "more.csv", "0,1\n")
    refused(tmp_path, "a directory of unknown format; expected .*edges.csv")
    write(tmp_path / "edges.csv", "0,2\n")
    assert adjacency(open_source(tmp_path)).nonzero()[0].tolist() == [0, 2]


def test_an_ogb_directory_of_edges_alone(tmp_path) -> None:
    for name, text in (("edge", "0,1\n1,2\n"), ("num-node-list", "4\n"), ("num-edge-list", "2\n")):
        write(tmp_path / "raw" / f"{name}.csv", text)
    source = open_source(tmp_path, ImportOptions(features="onehot", labels="degree:2"))
    assert (source.n, source.width, source.classes) == (4, 4, 2)
