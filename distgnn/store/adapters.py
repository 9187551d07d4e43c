"""Graphs and arrays of other libraries, by their attributes and protocols; none of them is imported here.

PyG      Data: edge_index (or adj_t), x, y, train_mask ..., edge_weight
DGL      DGLGraph: edges(), ndata["feat"], ndata["label"], ndata["train_mask"] ..., edata["weight"]
OGB      the dictionary of a graph: edge_index, node_feat, num_nodes; or a pair of it and the labels
NetworkX Graph, DiGraph: nodes, edges(data=...), is_directed()
tensors  on a CPU: dense, of bfloat16, with gradients, sparse in COO, CSR and CSC
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays import foreign
from distgnn.arrays.canonical import checked
from distgnn.errors import ArgumentError

MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class Given:
    """The arguments of a caller for a graph; see ``from_arrays.prepare``. `feature_names`: columns of X."""

    graph: Any
    X: Any = None
    y: Any = None
    split: Any = None
    ids: Any = None
    nodes: int | None = None
    weights: Any = None
    directed: bool | None = None
    feature_names: list[str] | None = None

    def filled(self, **attributes: Any) -> Given:
        """Fill in what was attributes in the graph where nothing was given."""
        new = {name: value for name, value in attributes.items() if getattr(self, name) is None}
        return replace(self, **new)

    @property
    def wants_weights(self) -> bool:
        """The weights of the graph itself are asked for."""
        return self.weights is True


def unpacked(given: Given) -> Given:
    """Take the arrays out of a graph of PyG, DGL, OGB or NetworkX; arrays stay as they are.

    Raises:
        ArgumentError: a graph with several kinds of nodes or edges, or several splits, or without the weights
            that are asked for.
    """
    given = _of_pair(given)
    graph = given.graph
    if hasattr(graph, "edge_types") and hasattr(graph, "node_types"):
        raise _refused(graph, "has nodes or edges of several kinds: pass graph.to_homogeneous()")
    if isinstance(graph, Mapping) and "edge_index" in graph:
        return _of_ogb(given)
    if hasattr(graph, "edge_index") or hasattr(graph, "adj_t"):
        return _of_pyg(given)
    if hasattr(graph, "ndata") and hasattr(graph, "edata"):
        return _of_dgl(given)
    if hasattr(graph, "is_directed") and hasattr(graph, "nodes") and hasattr(graph, "edges"):
        return _of_networkx(given)
    return given


def _of_pair(given: Given) -> Given:
    """Take a pair of a graph and its labels, as OGB's data sets have them, apart."""
    pair = given.graph
    if not isinstance(pair, tuple) or len(pair) != 2 or not (isinstance(pair[0], Mapping) or _has(pair[0])):
        return given
    return replace(given, graph=pair[0], y=pair[1] if given.y is None else given.y)


def _has(graph: Any) -> bool:
    """Tell whether this is a graph of PyG or DGL."""
    return hasattr(graph, "edge_index") or hasattr(graph, "ndata")


def array(name: str, given: Any) -> np.ndarray:
    """Return an array or tensor as one of NumPy, of the same memory where that is possible.

    One on a GPU is copied: a graph is prepared on the host.

    Raises:
        ArgumentError: the array is on a GPU and cannot be copied, has masked entries, or is none; the error
            says what to pass.
    """
    given = foreign.on_host(name, given)
    _check_place(name, given)
    if isinstance(given, np.ma.MaskedArray) and np.ma.getmaskarray(given).any():
        raise ArgumentError(name, "a masked array", f"has masked entries: pass {name}.filled(VALUE)")
    given = foreign.plain(given)
    try:
        if hasattr(given, "__dlpack__") and not hasattr(given, "__array__"):
            return np.from_dlpack(given)
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ArgumentError(name, type(given).__name__, f"is no array: {error}") from None


def sparse(name: str, given: Any) -> Any:
    """Return a sparse tensor or matrix as one of SciPy whose arrays fit together; anything else as it is."""
    if sp.issparse(given):
        return checked(given, name)
    if foreign.sparse_on_gpu(given):
        return checked(foreign.on_host(name, given), name)
    layout = str(getattr(given, "layout", "")).removeprefix("torch.")
    if layout not in ("sparse_coo", "sparse_csr", "sparse_csc"):
        return given
    shape = tuple(map(int, given.shape))
    if layout == "sparse_coo":
        given = given.detach().coalesce()
        rows, cols = array(name, given.indices())
        return checked(sp.coo_array((array(name, given.values()), (rows, cols)), shape=shape), name)
    by_row = layout == "sparse_csr"
    pointers, indices = (
        (given.crow_indices(), given.col_indices()) if by_row else (given.ccol_indices(), given.row_indices())
    )
    parts = (array(name, part) for part in (given.detach().values(), indices, pointers))
    return checked((sp.csr_array if by_row else sp.csc_array)(tuple(parts), shape=shape), name)


def ends(graph: Any) -> np.ndarray:
    """Return ends of edges, given as (edges, 2) or as a pair of arrays, as (2, edges).

    Anything else is returned as it is. An array (2, 2) has an edge in each column.
    """
    pair = isinstance(graph, Sequence) and not isinstance(graph, str) and len(graph) == 2
    if pair and all(hasattr(part, "shape") for part in graph):
        sources, targets = (array("graph", part) for part in graph)
        if sources.shape != targets.shape:
            problem = f"{len(sources)} sources and {len(targets)} targets; expected as many"
            raise ArgumentError("graph", "a pair", problem)
        return np.stack([sources, targets])
    ends_of_edges = array("graph", graph)
    listed = ends_of_edges.ndim == 2 and ends_of_edges.shape[1] == 2 and ends_of_edges.shape[0] != 2
    return ends_of_edges.T if listed else ends_of_edges


def _check_place(name: str, given: Any) -> None:
    """Raise ArgumentError for an array that is not in this process's memory."""
    device = getattr(given, "device", None)
    kind = getattr(device, "type", None)
    if isinstance(kind, str) and kind != "cpu":
        raise ArgumentError(name, type(given).__name__, f"is on a GPU ({device}): pass {name}.cpu()")
    if kind is None and hasattr(given, "__cuda_array_interface__"):  # sparse tensors fail when they are asked
        raise ArgumentError(name, type(given).__name__, f"is on a GPU: pass {name}.get()")


def _of_pyg(given: Given) -> Given:
    data = given.graph
    edges = getattr(data, "edge_index", None)
    if edges is None:
        edges = _of_sparse_tensor(getattr(data, "adj_t", None))
    attributes = {"X": getattr(data, "x", None), "y": getattr(data, "y", None)}
    attributes |= {"split": _split(given, lambda name: getattr(data, name, None))}
    attributes |= {"nodes": getattr(data, "num_nodes", None)}
    if given.wants_weights and not sp.issparse(edges):
        weights = [getattr(data, name, None) for name in ("edge_weight", "edge_attr")]
        given = replace(given, weights=_weights(data, weights))
    return _sized(replace(given, graph=edges).filled(**attributes))


def _of_sparse_tensor(adjacency: Any) -> Any:
    """Return PyG's ``adj_t`` as a matrix: entry (i, j) is an edge from j to i in both."""
    if hasattr(adjacency, "to_scipy"):
        return checked(adjacency.to_scipy(layout="csr"), "graph")
    return sparse("graph", adjacency)


def _of_dgl(given: Given) -> Given:
    graph = given.graph
    if len(getattr(graph, "canonical_etypes", ())) > 1:
        raise _refused(graph, "has edges of several kinds: pass dgl.to_homogeneous(graph)")
    pair = tuple(array("graph", part) for part in graph.edges())
    data = graph.ndata
    attributes = {"X": _entry(data, "feat", "features", "x"), "y": _entry(data, "label", "labels", "y")}
    attributes |= {"split": _split(given, lambda name: _entry(data, name)), "nodes": int(graph.num_nodes())}
    if given.wants_weights:
        weights = [_entry(graph.edata, name) for name in ("weight", "w", "edge_weight")]
        given = replace(given, weights=_weights(graph, weights))
    return _sized(replace(given, graph=np.stack(pair)).filled(**attributes))


def _of_ogb(given: Given) -> Given:
    graph = given.graph
    attributes = {"X": graph.get("node_feat"), "nodes": graph.get("num_nodes")}
    if given.wants_weights:
        given = replace(given, weights=_weights(graph, [graph.get("edge_feat")]))
    return _sized(replace(given, graph=graph["edge_index"]).filled(**attributes))


def _of_networkx(given: Given) -> Given:
    graph = given.graph
    nodes = list(graph.nodes)
    words = all(isinstance(node, str) for node in nodes)
    whole = all(isinstance(node, Integral) and not isinstance(node, bool) for node in nodes)
    if not (words or whole):
        advice = "pass networkx.convert_node_labels_to_integers(graph)"
        raise _refused(graph, f"has nodes that are neither all strings nor all whole numbers: {advice}")
    listed = list(graph.edges(data="weight", default=1))
    number = {node: place for place, node in enumerate(nodes)}
    pair = np.array([[number[a] for a, _, _ in listed], [number[b] for _, b, _ in listed]], np.int64)
    ids = np.array(nodes) if given.ids is None else given.ids
    names = array("ids", ids)
    if len(names) != len(nodes):
        raise ArgumentError("ids", len(names), f"the graph has {len(nodes)} nodes; expected as many")
    if given.wants_weights:
        given = replace(given, weights=np.array([weight for _, _, weight in listed], np.float64))
    if given.directed is None and not graph.is_directed():
        given = replace(given, directed=False)
    return replace(given, graph=names[pair.reshape(2, -1)], ids=ids)


def _split(given: Given, part: Callable[[str], Any]) -> dict[str, Any] | None:
    """Return the masks of a graph, None where it has none or a split is given; ArgumentError for several."""
    if given.split is not None:
        return None
    masks = {name: mask for name in MASKS if (mask := part(name)) is not None}
    for name, mask in masks.items():
        if len(mask.shape) > 1 and mask.shape[1] > 1:
            pick = ", ".join(f"graph.{mask_name}[:, 0]" for mask_name in masks)
            raise ArgumentError("split", name, f"has {mask.shape[1]} splits: pass one, as split=({pick})")
    return {name.removesuffix("_mask"): mask for name, mask in masks.items()} or None


def _entry(data: Any, *names: str) -> Any:
    """Return the first of these that a dictionary of DGL has, else None."""
    return next((data[name] for name in names if name in data), None)


def _weights(graph: Any, candidates: Sequence[Any]) -> np.ndarray:
    """Return the first weights of edges that there are, one number for each."""
    weights = next((values for values in candidates if values is not None), None)
    if weights is None:
        raise ArgumentError("weights", True, f"the {type(graph).__name__} has no weights of its edges")
    values = array("weights", weights)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _sized(given: Given) -> Given:
    """Leave out the number of nodes where the names of all nodes say it."""
    nodes = None if given.ids is not None or given.nodes is None else int(given.nodes)
    return replace(given, nodes=nodes)


def _refused(graph: Any, problem: str) -> ArgumentError:
    return ArgumentError("graph", type(graph).__name__, problem)
