"""Graphs in .pt files, made without torch, and arrays with PyG's names in .npz files."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions
from faults.torch_file import Call, Changed, Global, Raw, Saved, Stored, assembled, data

from .importing import adjacency, all_features, refused

EDGES = np.array([[0, 1, 2, 4, 0], [1, 2, 0, 1, 1]])
X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 0])


def put(path, file, top):
    path.write_bytes(file.bytes(top))
    return path


def graph(path, wrap=data, **others):
    """Write a .pt of this graph; others: further tensors, or arguments in place of arrays."""
    file = Saved()
    values = {"edge_index": EDGES, "x": X, "y": Y} | others
    made = {}
    for name, value in values.items():
        value = value(file) if callable(value) else value
        made[name] = file.tensor(value) if isinstance(value, np.ndarray) else value
    return put(path, file, wrap(**made))


@pytest.mark.parametrize(
    "wrap",
    [data, dict, lambda **values: (values, None, Global("torch_geometric.data.data", "Data")),
     lambda **values: [data(**values), None]],
)  # fmt: skip
def test_ways_to_save_a_graph(tmp_path, wrap):
    source = open_source(graph(tmp_path / "g.pt", wrap, name="cora", train_mask=Y == 0, val_mask=Y == 1))
    assert (source.n, source.classes, source.directed, source.name) == (6, 3, True, "g")
    assert (all_features(source) == X).all() and source.labels.tolist() == Y.tolist()
    assert source.split.tolist() == [1, 2, 0, 1, 2, 1]
    assert np.argwhere(adjacency(source)).tolist() == [[0, 2], [1, 0], [1, 4], [2, 1]]


def test_views_are_what_their_strides_say(tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "entries", 3)
    columns = np.ascontiguousarray(EDGES.T)
    transposed = graph(tmp_path / "t.pt", edge_index=lambda file: file.tensor(columns, (1, 2), (2, 5)),
                       edge_weight=np.arange(5.0))  # fmt: skip
    source = open_source(transposed, ImportOptions(weights=True))
    A = adjacency(source)
    assert A[1].tolist() == [4, 0, 0, 0, 3, 0] and A[2, 1] == 1 and A[0, 2] == 2
    wide = np.arange(48, dtype=np.float16).reshape(6, 8)
    part = graph(tmp_path / "p.pt", x=lambda file: file.tensor(wide, (8, 2), (6, 3), 1))
    assert (all_features(open_source(part)) == wide[:, 1:7:2]).all()
    behind = graph(tmp_path / "b.pt", y=lambda file: file.tensor(np.array([9, *Y]), (1,), (6,), 1))
    assert open_source(behind).labels.tolist() == Y.tolist()


def test_the_number_of_nodes(tmp_path):
    def without(**values):
        return data(**{name: values[name] for name in values if name not in ("x", "y")})

    assert open_source(graph(tmp_path / "a.pt", without)).n == 5
    assert open_source(graph(tmp_path / "b.pt", without, num_nodes=9)).n == 9
    refused(graph(tmp_path / "c.pt", without, num_nodes=3), "node id 4 lies outside 0..2")
    refused(graph(tmp_path / "d.pt", without, num_nodes=1 << 50), "declares")
    refused(
        graph(tmp_path / "e.pt", without, edge_weight=np.ones(4)), "'edge_weight': shape .4,., expected .5,."
    )


@pytest.mark.parametrize(
    "name", [("os", "system"), ("torch", "load"), ("builtins", "eval"), ("torch.nn", "Linear")]
)
def test_other_names_are_refused_and_nothing_runs(tmp_path, name):
    call = Call(Global(*name), (f"touch {tmp_path}/ran",))
    refused(graph(tmp_path / "g.pt", x=call), rf"asks for {name[0]}\.{name[1]}; only tensors")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (((2, 1), (6, 3), 0), "size .6, 3. from 12 numbers"),
        (((2, 1), (6, 2), 1), "ends at 12 of 12 numbers"),
        (((0, 0), (1 << 40, 1 << 40), 0), "from 12 numbers"),
        (((-2, 1), (6, 2), 10), "impossible shape"),
        (((1,) * 33, (1,) * 33, 0), "unknown kind"),
        (((2,), (6, 2), 0), "unknown kind"),
    ],
)
def test_tensors_beyond_their_storage(tmp_path, view, words):
    refused(graph(tmp_path / "g.pt", x=lambda file: file.tensor(X, *view)), words)


def test_nothing_is_checked_and_changed_afterwards(tmp_path):
    """A state in place of the one of a tensor, its storage, or a class would be read beyond its memory."""
    file = Saved()
    tensor, numpys = file.tensor(EDGES), Global("scipy.sparse.csr", "csr_matrix")
    wider = {"size": (2, 1 << 40), "stride": (0, 1)}
    for put_in, changed in enumerate((Changed(tensor, wider), Changed(numpys, (None, {"data": 1})))):
        refused(put(tmp_path / f"{put_in}.pt", file, {"edge_index": changed}), "a state of what has none")


@pytest.mark.slow
def test_small_pickles_of_much(tmp_path):
    """Pickles that would overflow the stack, or take far more memory than the file has bytes, are refused at
    once.
    """
    deep: Raw = Raw(b")" + b"\x85" * 300_000)
    for name, top, words in [
        ("key", Raw(b"}" + deep.opcodes + b"K\x01s"), "a key that is neither"),
        ("keys", Raw(b"}(" + deep.opcodes + b"K\x01u"), "a key that is neither"),
        ("dict", Raw(b"(" + deep.opcodes + b"K\x01d"), "a key that is neither"),
        ("set", Raw(b"\x8f(" + deep.opcodes + b"\x90"), "a key that is neither"),
        ("frozen", Raw(b"(" + deep.opcodes + b"\x91"), "a key that is neither"),
        ("storage", Raw(b"(" + assembled("storage") + deep.opcodes + b"NNNtQ"), "a storage of an unknown"),
        ("bytes", Raw(b"\x96" + (1 << 62).to_bytes(8, "little")), "a bytearray"),
        ("sides", Call(Global("torch", "Size"), ("a" * 9,)), "holds a str"),
    ]:
        refused(put(tmp_path / f"{name}.pt", Saved(), top), words)


def test_arrays_without_a_state(tmp_path):
    empty = Call(Global("numpy", "ndarray"), ())
    refused(graph(tmp_path / "g.pt", x=empty), "has 0 rows|shape .0,.")


def test_storages_beyond_their_member(tmp_path):
    def stored(numel, key="0"):
        storage = Stored("Float", key, numel)
        return Call(
            Global("torch._utils", "_rebuild_tensor_v2"),
            (storage, 0, (6, numel // 6), (numel // 6, 1), False, None),
        )

    refused(graph(tmp_path / "a.pt", x=stored(6 << 40)), "truncated: graph/data/0 has 80 bytes, .* need")
    refused(graph(tmp_path / "b.pt", x=stored(12, "77")), "member graph/data/77 is missing")
    refused(graph(tmp_path / "c.pt", x=lambda file: stored(12, "../data.pkl")), "data.pkl")


def test_what_is_no_graph(tmp_path):
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    refused(tmp_path / "old.pt", "not a ZIP archive, as torch.save writes since 1.6")
    refused(put(tmp_path / "n.pt", Saved(), 7), "holds a int; expected PyG's Data")
    refused(put(tmp_path / "m.pt", Saved(), {"x": 7}), "has x; expected edge_index")
    file = Saved()
    many = ({"edge_index": file.tensor(EDGES)}, {"edge_index": file.tensor(np.array([0, 2, 5]))})
    refused(put(tmp_path / "s.pt", file, many), "holds 2 graphs")
    refused(graph(tmp_path / "y.pt", y=Y + 0.5), "'y': node 0 has label 0.5")


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
        ({"edge_index": EDGES, "y": Y, "train_idx": [9]}, "node id 9 lies outside"),
        ({"edge_index": EDGES, "y": Y, "train_idx": [1], "test_idx": [1]}, "node 1 is in another part"),
        ({"edge_index": EDGES, "y": [["a", "b"]] * 6}, "labels have shape .6, 2."),
    ):
        np.savez(path, **bad)
        refused(path, words)
