"""Planetoid directories: `ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index}` (Cora, CiteSeer, PubMed).

All but the last are pickles, and a pickle can run any program. These are read by an unpickler that admits the few NumPy
and SciPy classes of which such files consist and refuses everything else by name.
"""

from __future__ import annotations

import collections
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.tables import SparseRows
from distgnn.store.importers.text import Table, reading
from distgnn.store.source import EDGE_CHUNK, TEST, TRAIN, VALIDATION, Edges, ImportOptions

STANDARD_VALIDATION = 500

_reconstruct = np.zeros(0).__reduce__()[0]
_scalar = np.float64(0).__reduce__()[0]

# The names under which Python 2 and 3, NumPy 1 and 2 and SciPy before and after 1.8 wrote the same few things.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("scipy.sparse.csr", "csr_matrix"): scipy.sparse.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): scipy.sparse.csr_matrix,
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """`_codecs.encode`, with which Python 3 writes bytes in old protocols, for the one encoding it uses there."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding}")
    return text.encode("latin1")


ALLOWED["_codecs", "encode"] = _encode


class RestrictedUnpickler(pickle.Unpickler):
    """Loads nothing but what `ALLOWED` lists."""

    def __init__(self, file: Any, path: Path):
        super().__init__(file, encoding="latin1")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise UserError(f"{self.path}: this pickle asks for {module}.{name}; only NumPy arrays, SciPy CSR matrices "
                            "and dictionaries of lists are loaded") from None


def load(path: Path) -> Any:
    """The object in one of the pickles; UserError where it is damaged or asks for anything that is not allowed."""
    with reading(path), open(path, "rb") as file:
        try:
            return RestrictedUnpickler(file, path).load()
        except (UserError, OSError):
            raise
        except Exception as error:  # a damaged pickle can raise nearly anything
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{path}: not a complete pickle ({what}); expected a file of a Planetoid data set") from None


def load_rows(path: Path) -> scipy.sparse.csr_matrix:
    """A feature matrix, built anew from its checked arrays: an unpickled object is whatever the file says."""
    matrix = load(path)
    try:
        if isinstance(matrix, scipy.sparse.csr_matrix):
            state = vars(matrix)
            shape = tuple(int(size) for size in state.get("_shape", state.get("shape")))
            arrays = (state["data"], state["indices"], state["indptr"])
            if any(array.dtype.kind not in "biuf" for array in arrays):
                raise ValueError("arrays that are not numbers")
            matrix = scipy.sparse.csr_matrix(arrays, shape=shape)
            matrix.check_format(full_check=True)
            return matrix
        matrix = np.asarray(matrix)
        if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
            raise ValueError(f"{matrix.dtype} of shape {matrix.shape}")
        return scipy.sparse.csr_matrix(matrix)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{path}: not a feature matrix ({error})") from None


def load_classes(path: Path) -> np.ndarray:
    """One-hot rows, one column per class."""
    rows = load(path)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind not in "biuf":
        raise UserError(f"{path}: expected a matrix of one-hot labels")
    if rows.shape[1] == 0:
        raise UserError(f"{path}: the one-hot labels have no columns")
    return rows


def load_edges(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The neighbour lists {node: [nodes]} as (src, dst)."""
    graph = load(path)
    try:
        if not isinstance(graph, dict):
            raise TypeError(f"{type(graph).__name__} instead of a dictionary")
        degrees = np.fromiter((len(ends) for ends in graph.values()), np.int64, len(graph))
        src = np.repeat(np.array(list(graph), dtype=np.int64), degrees)
        dst = np.fromiter((end for ends in graph.values() for end in ends), np.int64, len(src))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: expected {{node: [neighbours]}} ({error})") from None
    return src, dst


def data_name(folder: Path) -> str:
    """NAME of the only data set in the folder."""
    names = sorted(entry.name[4:-6] for entry in folder.glob("ind.*.graph"))
    if len(names) != 1:
        have = ", ".join(names) or "none"
        raise UserError(f"{folder}: expected the files ind.NAME.* of one Planetoid data set, found {have}")
    return names[0]


def _test_ids(path: Path, first: int) -> np.ndarray:
    table = Table(path, np.dtype([("id", np.int64)]), "one node id per line",
                  check=lambda rows: f"not above {first - 1}" if rows["id"].min() < first else None)
    parts = [rows["id"] for rows in table]
    ids = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if len(np.unique(ids)) != len(ids):
        raise UserError(f"{path}: a test node is listed twice")
    return ids


def open_source(path: Path, options: ImportOptions) -> Imported:
    """The undirected graph, binary features as they are, labels and the standard split of a Planetoid directory.

    Nodes 0..len(allx)-1 have the rows of allx and ally; node test.index[i] has row i of tx and ty. An id that is
    missing from test.index (CiteSeer has 15) is a node with zero features and no label. Training nodes are the first
    len(y), validation the 500 after them, test those of test.index.
    """
    def part(suffix: str) -> Path:
        return path / f"ind.{name}.{suffix}"

    name = data_name(path)
    allx, tx = load_rows(part("allx")), load_rows(part("tx"))
    ally, ty, y = load_classes(part("ally")), load_classes(part("ty")), load_classes(part("y"))
    known = allx.shape[0]
    test = _test_ids(part("test.index"), known)
    for suffix, have, want in (("ally", ally.shape[0], known), ("tx", tx.shape[0], len(test)),
                               ("ty", ty.shape[0], len(test)), ("tx", tx.shape[1], allx.shape[1]),
                               ("ty", ty.shape[1], ally.shape[1])):
        if have != want:
            raise UserError(f"{part(suffix)}: has a side of {have} where the other files of {name} make it {want}")
    if y.shape[0] > known:
        raise UserError(f"{part('y')}: {y.shape[0]} training nodes, but ind.{name}.allx has only {known} rows")
    src, dst = load_edges(part("graph"))
    n = 1 + max(known - 1, int(test.max(initial=-1)), int(src.max(initial=-1)), int(dst.max(initial=-1)))
    if n > 1 << 31:
        raise UserError(f"{part('graph')}: node id {n - 1} is too large for a Planetoid data set")

    def stream() -> Iterator[Edges]:
        for lo in range(0, len(src), EDGE_CHUNK):
            yield src[lo:lo + EDGE_CHUNK], dst[lo:lo + EDGE_CHUNK], None

    source = Imported(name, part("graph"), n, stream, options, _rows(n, allx, tx, test, path))
    labels = np.full(n, -1, np.int64)
    labels[:known], labels[test] = _hot(ally), _hot(ty)
    source.set_labels(labels, path, ally.shape[1])
    split = np.zeros(n, np.uint8)
    split[:len(y)] = TRAIN
    split[len(y):min(len(y) + STANDARD_VALIDATION, known)] = VALIDATION
    split[test] = TEST
    source.set_split(split, path)
    source.settle_direction(directed=False)
    return source


def _hot(rows: np.ndarray) -> np.ndarray:
    return np.where(rows.any(axis=1), rows.argmax(axis=1), -1)


def _rows(n: int, allx: scipy.sparse.csr_matrix, tx: scipy.sparse.csr_matrix, test: np.ndarray,
          path: Path) -> SparseRows:
    """The rows of both matrices at the nodes they belong to, none for the rest."""
    order = np.argsort(test, kind="stable")
    counts = np.zeros(n, np.int64)
    counts[:allx.shape[0]] = np.diff(allx.indptr)
    counts[test] = np.diff(tx.indptr)
    stacked = scipy.sparse.vstack([allx, tx[order]], format="csr")
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SparseRows(indptr, stacked.indices, stacked.data, allx.shape[1], path)
