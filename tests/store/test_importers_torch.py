"""Graphs in .pt files, which PyTorch loads, and arrays with PyG's names in .npz files."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions

from .importing import adjacency, all_features, refused

EDGES = np.array([[0, 1, 2, 4, 0], [1, 2, 0, 1, 1]])
X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 0])


class Tensor:
    """An array with the methods of a tensor that are called."""

    def __init__(self, array: np.ndarray, dtype: str = "torch.float32") -> None:
        self.array, self.dtype = array, dtype

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def float(self) -> Tensor:
        return Tensor(self.array.astype(np.float32))

    def numpy(self) -> np.ndarray:
        assert "bfloat16" not in self.dtype
        return self.array


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Make a module in the place of PyTorch, which loads what a test put into `content`."""
    module = SimpleNamespace(content=None)

    def load(path: Any, map_location: str, weights_only: bool, mmap: bool) -> Any:
        assert map_location == "cpu" and weights_only is True and mmap is True
        if isinstance(module.content, Exception):
            raise module.content
        return module.content

    module.load = load
    monkeypatch.setitem(sys.modules, "torch", module)
    (tmp_path / "g.pt").write_bytes(b"PK")
    return module


def graph(**others: Any) -> dict[str, Any]:
    return {
        "edge_index": Tensor(EDGES),
        "x": Tensor(X),
        "y": Tensor(Y),
        "name": "cora",
        "none": None,
    } | others


@pytest.mark.parametrize(
    "wrap",
    [dict, lambda given: (given, {"edge_index": Tensor(np.array([0, 5]))}), lambda given: {"graph": given},
     lambda given: SimpleNamespace(to_dict=lambda: given)],
)  # fmt: skip
def test_ways_to_save_a_graph(torch, tmp_path, wrap) -> None:
    torch.content = wrap(graph(train_mask=Tensor(Y == 0), val_mask=Tensor(Y == 1)))
    source = open_source(tmp_path / "g.pt")
    assert (source.n, source.classes, source.directed, source.name) == (6, 3, True, "g")
    assert (all_features(source) == X).all() and source.labels.tolist() == Y.tolist()
    assert source.split.tolist() == [1, 2, 0, 1, 2, 1]
    assert np.argwhere(adjacency(source)).tolist() == [[0, 2], [1, 0], [1, 4], [2, 1]]


def test_views_and_half_numbers(torch, tmp_path) -> None:
    half = Tensor(X.astype(np.float16), "torch.bfloat16")
    torch.content = graph(
        edge_index=Tensor(np.asfortranarray(EDGES)), edge_weight=Tensor(np.arange(5.0)), x=half
    )
    source = open_source(tmp_path / "g.pt", ImportOptions(weights=True))
    A = adjacency(source)
    assert A[1].tolist() == [4, 0, 0, 0, 3, 0] and A[2, 1] == 1 and (all_features(source) == X).all()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            ValueError("Weights only load failed\nmore"),
            "PyTorch cannot load it as tensors alone .*numpy.savez",
        ),
        (7, "has no edge_index; it has other things; save its arrays"),
        ({"x": Tensor(X)}, "has no edge_index; it has x; "),
        ((graph(), {"edge_index": Tensor(np.array([0, 2, 5]))}), "holds 2 graphs; save one of them"),
        (graph(x=Tensor(np.array([["a"]] * 6))), "holds <U1, expected numbers"),
    ],
)
def test_other_files_are_refused(torch, tmp_path, content, words) -> None:
    torch.content = content
    refused(tmp_path / "g.pt", f"g.pt.*{words}")


def test_without_pytorch_the_error_says_what_to_save(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(tmp_path / "none.pt", "no such file")
    (tmp_path / "g.pt").write_bytes(b"PK")
    refused(tmp_path / "g.pt", "need PyTorch, which is not installed; .*numpy.savez.'graph.npz', edge_index=")


def test_a_file_of_the_real_pytorch(tmp_path) -> None:
    real = pytest.importorskip("torch")
    tensors = {name: real.from_numpy(array) for name, array in (("edge_index", EDGES), ("x", X), ("y", Y))}
    real.save(tensors, tmp_path / "g.pt")
    source = open_source(tmp_path / "g.pt")
    assert (all_features(source) == X).all() and source.labels.tolist() == Y.tolist()


def test_arrays_in_an_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "entries", 3)
    arrays = {"node_feat": X, "label": np.array(list("abcabc")), "train_idx": [3, 1], "valid_idx": [0]}
    for number, ends in enumerate(({"edge_index": EDGES}, {"edge_index": np.asfortranarray(EDGES)},
                                   {"src": EDGES[0], "dst": EDGES[1]})):  # fmt: skip
        path = tmp_path / f"{number}.npz"
        np.savez_compressed(path, **ends, **arrays, edge_weight=np.arange(5))
        source = open_source(path, ImportOptions(weights=True))
        A = adjacency(source)
        assert A[1].tolist() == [4, 0, 0, 0, 3, 0] and A[2, 1] == 1 and A[0, 2] == 2
        assert source.class_names == ["a", "b", "c"] and source.split.tolist() == [2, 1, 0, 1, 0, 0]
    masks = np.array([[1, 0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1]], bool).T
    np.savez(path, edge_index=EDGES, train_mask=masks)
    source = open_source(path)
    assert source.n == 6 and source.split.tolist() == [1, 0, 0, 0, 1, 0]
    assert source.notes[0].endswith("2 splits, of which the first is taken")
    for bad, words in (
        ({"edge_index": EDGES.T}, "expected .2, edges."),
        ({"src": [0], "dst": [1, 2]}, "expected .edges,."),
        ({"edge_index": EDGES, "train_mask": [True]}, "node id 1 lies outside 0..0"),
        ({"edge_index": EDGES, "y": Y, "train_mask": [True]}, "shape .1,., expected .6,."),
        ({"edge_index": EDGES, "y": Y, "train_mask": [1, 0, 2, 0, 0, 0]}, "node 2 has 2; expected 0 or 1"),
        ({"edge_index": EDGES, "y": Y, "val_mask": [0, 1, 1, 0, -1, np.nan]}, "node 4 has -1.0; expected 0"),
        ({"edge_index": EDGES, "y": Y, "train_idx": [9]}, "node id 9 lies outside"),
        ({"edge_index": EDGES, "y": Y, "train_idx": [1], "test_idx": [1]}, "node 1 is in another part"),
        ({"edge_index": EDGES, "y": [["a", "b"]] * 6}, "labels have shape .6, 2."),
    ):
        np.savez(path, **bad)
        refused(path, words)
