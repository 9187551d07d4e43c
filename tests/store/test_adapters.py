"""Graphs and tensors of other libraries, by stand-ins with their attributes, and by the libraries where they
are installed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.errors import ArgumentError
from distgnn.store.adapters import array, ends, sparse
from distgnn.store.from_arrays import of_arrays

N = 6
EDGES = np.array([[0, 1, 2, 4, 0], [1, 2, 0, 1, 2]])
X = np.arange(2 * N, dtype=np.float32).reshape(N, 2)
Y = np.array([0, 1, 2, -1, 1, 0])
MASKS = {f"{name}_mask": np.isin(np.arange(N), part) for name, part in
         (("train", [0, 4]), ("val", [1]), ("test", [2]))}  # fmt: skip
WEIGHTS = np.array([0.5, 2.0, 3.0, 4.0, 5.0])


class Tensor:
    """A stand-in for a CPU tensor of PyTorch: what NumPy and this package use of one."""

    def __init__(
        self, array: Any, dtype: str | None = None, requires_grad: bool = False, device: str = "cpu"
    ) -> None:
        self._array, self.requires_grad = np.asarray(array), requires_grad
        self.dtype = f"torch.{dtype or self._array.dtype}"
        self.device = SimpleNamespace(type=device)
        self.shape, self.ndim, self.layout = self._array.shape, self._array.ndim, "torch.strided"

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy()")
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self._array[key])

    def detach(self) -> Tensor:
        return Tensor(self._array, self.dtype.removeprefix("torch."))

    def float(self) -> Tensor:
        return Tensor(self._array.astype(np.float32))


class OnlyDlpack:
    """An array of a library that speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def entries(source) -> dict[tuple[int, int], float]:
    """Return the weight of each edge by (source, target)."""
    found = {}
    for src, dst, weight in source.edges():
        values = np.ones(len(src)) if weight is None else weight
        found |= dict(zip(zip(src.tolist(), dst.tolist(), strict=True), values.tolist(), strict=True))
    return found


def same(source, weighted: bool = False, split: bool = True) -> None:
    """Check that a source is the graph above."""
    values = WEIGHTS if weighted else np.ones(len(WEIGHTS))
    assert entries(source) == dict(zip(map(tuple, EDGES.T.tolist()), values.tolist(), strict=True))
    assert source.n == N and source.directed
    assert (source.features(np.arange(N)) == X).all() and (source.labels == Y).all()
    if split:
        assert source.split.tolist() == [1, 2, 3, 0, 1, 0]


@pytest.mark.parametrize(
    "graph",
    [EDGES, EDGES.T, (EDGES[0], EDGES[1]), [Tensor(EDGES[0]), Tensor(EDGES[1])], Tensor(EDGES),
     Tensor(EDGES.T), OnlyDlpack(EDGES), EDGES.T.tolist(),
     sp.coo_array((np.ones(5), (EDGES[1], EDGES[0])), shape=(N, N))],
    ids=["rows", "columns", "pair", "tensors", "tensor", "tensor-columns", "dlpack", "list", "scipy"],
)  # fmt: skip
def test_edges_in_every_form_are_the_same_graph(graph) -> None:
    same(of_arrays(graph, Tensor(X), Tensor(Y)), split=False)


def test_two_edges_in_a_square_are_columns() -> None:
    assert ends([[0, 1], [2, 3]]).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(ArgumentError, match="3 sources and 2 targets"):
        ends((np.arange(3), np.arange(2)))


def test_tensors_with_gradients_and_of_bfloat16_are_taken() -> None:
    assert (array("X", Tensor(X, requires_grad=True)) == X).all()
    assert array("X", Tensor(X, "bfloat16")).dtype == np.float32
    assert (array("X", Tensor(X, "bfloat16", requires_grad=True)) == X).all()


def test_arrays_elsewhere_or_with_holes_are_refused_with_what_to_pass() -> None:
    for name in ("X", "y", "graph"):
        with pytest.raises(ArgumentError, match=rf"{name}=Tensor: is on a GPU .*: pass {name}\.cpu\(\)"):
            of_arrays(**{"graph": EDGES, "X": X, "y": Y} | {name: Tensor(Y, device="cuda")})
    cupy = SimpleNamespace(__cuda_array_interface__={}, device=SimpleNamespace(id=0))
    with pytest.raises(ArgumentError, match=r"is on a GPU: pass X\.get\(\)"):
        of_arrays(EDGES, cupy, Y)
    with pytest.raises(ArgumentError, match=r"has masked entries: pass X\.filled\(VALUE\)"):
        of_arrays(EDGES, np.ma.masked_less(X, 3), Y)
    with pytest.raises(ArgumentError, match=r"X=object of shape \(\): expected real numbers"):
        of_arrays(EDGES, object(), Y)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_sparse_tensors_are_matrices(form: str) -> None:
    matrix = sp.coo_array((WEIGHTS, (EDGES[1], EDGES[0])), shape=(N, N))
    compressed = matrix.asformat(form)
    tensor = SimpleNamespace(layout=f"torch.sparse_{form}", shape=(N, N), requires_grad=False)
    tensor.detach = tensor.coalesce = lambda: tensor
    tensor.values = lambda: Tensor(compressed.data, requires_grad=True)
    if form == "coo":
        tensor.indices = lambda: Tensor(np.stack([matrix.row, matrix.col]))
    else:
        names = ("crow_indices", "col_indices") if form == "csr" else ("ccol_indices", "row_indices")
        for name, part in zip(names, (compressed.indptr, compressed.indices), strict=True):
            setattr(tensor, name, lambda part=part: Tensor(part))
    assert (sparse("graph", tensor).toarray() == matrix.toarray()).all()
    same(of_arrays(tensor, X, Y, weights=True), weighted=True, split=False)


def pyg(**changes: Any) -> SimpleNamespace:
    data = {"edge_index": Tensor(EDGES), "x": Tensor(X), "y": Tensor(Y[:, None]), "num_nodes": N}
    data |= {name: Tensor(mask) for name, mask in MASKS.items()} | {"edge_weight": None, "edge_attr": None}
    return SimpleNamespace(**data | changes)


def test_data_of_pyg() -> None:
    same(of_arrays(pyg()))
    same(of_arrays(pyg(edge_weight=Tensor(WEIGHTS)), weights=True), weighted=True)
    same(of_arrays(pyg(edge_attr=Tensor(WEIGHTS[:, None])), weights=True), weighted=True)
    adjacency = sp.csr_array((np.ones(5), (EDGES[1], EDGES[0])), shape=(N, N))
    same(of_arrays(pyg(edge_index=None, adj_t=SimpleNamespace(to_scipy=lambda layout: adjacency))))
    given = of_arrays(pyg(), X + 1, split="0.5/0.25/0.25")
    assert (given.features(np.arange(N)) == X + 1).all() and sorted(given.split.tolist())[-1] == 3
    with pytest.raises(ArgumentError, match="weights=True: the SimpleNamespace has no weights"):
        of_arrays(pyg(), weights=True)
    several = pyg(train_mask=Tensor(np.ones((N, 10), bool)))
    with pytest.raises(ArgumentError, match=r"has 10 splits: pass one, as split=\(graph.train_mask\[:, 0\]"):
        of_arrays(several)
    assert of_arrays(several, split=([0], [1], [2])).split.tolist()[:4] == [1, 2, 3, 0]  # as it advises
    hetero = SimpleNamespace(edge_types=[], node_types=[])
    with pytest.raises(ArgumentError, match=r"several kinds: pass graph.to_homogeneous\(\)"):
        of_arrays(hetero)


def dgl(**changes: Any) -> SimpleNamespace:
    graph = {"edges": lambda: (Tensor(EDGES[0]), Tensor(EDGES[1])), "num_nodes": lambda: N}
    graph |= {"ndata": {"feat": Tensor(X), "label": Tensor(Y)} | {k: Tensor(v) for k, v in MASKS.items()}}
    graph |= {"edata": {"weight": Tensor(WEIGHTS)}, "canonical_etypes": [("_N", "_E", "_N")]}
    return SimpleNamespace(**graph | changes)


def test_a_graph_of_dgl() -> None:
    same(of_arrays(dgl()))
    same(of_arrays(dgl(), weights=True), weighted=True)
    with pytest.raises(ArgumentError, match=r"several kinds: pass dgl.to_homogeneous\(graph\)"):
        of_arrays(dgl(canonical_etypes=[1, 2]))


def test_a_graph_of_ogb() -> None:
    graph = {"edge_index": EDGES, "node_feat": X, "edge_feat": WEIGHTS[:, None], "num_nodes": N}
    index = {"train": np.array([0, 4]), "valid": np.array([1]), "test": np.array([2])}
    same(of_arrays(graph, y=Y[:, None], split=index))
    same(of_arrays(graph, y=Y, split=index, weights=True), weighted=True)


class Edges:
    """NetworkX's view of edges."""

    def __init__(self, edges: list[tuple[Any, Any, float]]) -> None:
        self.edges = edges

    def __call__(self, data: str, default: float) -> list[tuple[Any, Any, float]]:
        assert (data, default) == ("weight", 1)
        return self.edges


def networkx(names: list[Any], directed: bool) -> SimpleNamespace:
    edges = [(names[a], names[b], w) for (a, b), w in zip(EDGES.T.tolist(), WEIGHTS.tolist(), strict=True)]
    return SimpleNamespace(nodes=names, edges=Edges(edges), is_directed=lambda: directed)


def test_a_graph_of_networkx() -> None:
    for names in (list(range(N)), [f"node {k}" for k in reversed(range(N))], [10 * k + 3 for k in range(N)]):
        same(of_arrays(networkx(names, True), X, Y, [1, 2, 3, 0, 1, 0]))
        same(of_arrays(networkx(names, True), X, Y, [1, 2, 3, 0, 1, 0], weights=True), weighted=True)
        undirected = of_arrays(networkx(names, False), X, Y)
        assert not undirected.directed and len(entries(undirected)) == 5
    with pytest.raises(ArgumentError, match="pass networkx.convert_node_labels_to_integers"):
        of_arrays(networkx(["a", 1, 2, 3, 4, 5], True), X, Y)


def test_splits_by_name_and_what_is_no_split() -> None:
    assert of_arrays(EDGES, X, Y, {"train": [0, 4]}).split.tolist() == [1, 0, 0, 0, 1, 0]
    with pytest.raises(ArgumentError, match=r"split=tset: no part has this name.*did you mean test\?"):
        of_arrays(EDGES, X, Y, {"train": [0], "tset": [1]})
    with pytest.raises(ArgumentError, match="a mask must be bool, not uint8"):
        of_arrays(EDGES, X, Y, tuple(mask.astype(np.uint8) for mask in MASKS.values()))


def test_real_tensors() -> None:
    torch = pytest.importorskip("torch")
    edges, x, y = torch.from_numpy(EDGES), torch.from_numpy(X), torch.from_numpy(Y)
    masks = {name: torch.from_numpy(mask) for name, mask in MASKS.items()}
    for features in (x, x.to(torch.bfloat16), x.clone().requires_grad_(), x.to_sparse(), x.half()):
        same(of_arrays(edges, features, y, tuple(masks.values())))
    same(of_arrays((edges[0], edges[1]), x, y, tuple(masks.values())))
    same(of_arrays(edges.T, x, y, tuple(masks.values())))
    weights = torch.from_numpy(WEIGHTS).requires_grad_()
    matrix = torch.sparse_coo_tensor(edges.flip(0), weights, (N, N))
    for form in (matrix, matrix.detach().to_sparse_csr(), matrix.detach().to_sparse_csc()):
        same(of_arrays(form, x, y, tuple(masks.values()), weights=True), weighted=True)
    with pytest.raises(ArgumentError, match=r"is on a GPU \(meta\): pass X\.cpu\(\)"):
        of_arrays(edges, torch.zeros(N, 2, device="meta"), y)


def test_real_data_of_pyg() -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data")
    parts = {"x": torch.from_numpy(X), "edge_index": torch.from_numpy(EDGES), "y": torch.from_numpy(Y)}
    parts |= {name: torch.from_numpy(mask) for name, mask in MASKS.items()}
    same(of_arrays(data.Data(**parts)))
    same(of_arrays(data.Data(**parts, edge_attr=torch.from_numpy(WEIGHTS)), weights=True), weighted=True)
    adjacency = torch.sparse_coo_tensor(parts["edge_index"].flip(0), torch.ones(5), (N, N)).to_sparse_csr()
    same(of_arrays(data.Data(**{k: v for k, v in parts.items() if k != "edge_index"}, adj_t=adjacency)))
    hetero = data.HeteroData()
    hetero["a"].x = parts["x"]
    hetero["a", "to", "a"].edge_index = parts["edge_index"]
    with pytest.raises(ArgumentError, match="several kinds"):
        of_arrays(hetero)


def test_a_real_graph_of_networkx() -> None:
    nx = pytest.importorskip("networkx")
    for kind in (nx.DiGraph, nx.MultiDiGraph):
        graph = kind()
        graph.add_nodes_from(f"n{k}" for k in range(N))
        graph.add_weighted_edges_from((f"n{a}", f"n{b}", w) for a, b, w in zip(*EDGES, WEIGHTS, strict=True))
        same(of_arrays(graph, X, Y, [1, 2, 3, 0, 1, 0], weights=True), weighted=True)
    assert not of_arrays(nx.Graph(graph), X, Y).directed


def test_a_real_graph_of_dgl() -> None:
    library = pytest.importorskip("dgl")
    graph = library.graph((EDGES[0], EDGES[1]), num_nodes=N)
    graph.ndata.update({"feat": library.backend.tensor(X), "label": library.backend.tensor(Y)})
    same(of_arrays(graph), split=False)
