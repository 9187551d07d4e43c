"""The rules of `distgnn.store.rules`: one graph is one store, however it is written down."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sp

import distgnn as dg
from distgnn import cli
from distgnn.store import rules

N = 7
EDGES = np.array([[0, 1, 2, 4, 0, 3, 3], [1, 2, 0, 1, 1, 3, 5]])  # one twice, one loop; node 6 has none
WEIGHTS = np.array([1.0, 2, 3, 4, 5, 6, 0.5])
X = (np.arange(2 * N) / 4).reshape(N, 2)
Y = np.array([0, 1, 2, -1, 1, 0, 2])
SPLIT = np.array([1, 2, 3, 0, 1, 2, 3])
WORDS = ["none", "train", "val", "test"]
PARTS = {name: part == SPLIT for part, name in enumerate(("train_mask", "val_mask", "test_mask"), 1)}


def symmetric() -> tuple[np.ndarray, np.ndarray]:
    return np.hstack([EDGES, EDGES[::-1]]), np.hstack([WEIGHTS, WEIGHTS])


def as_text(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    lines = [f"{s},{t},{w}\n" for s, t, w in zip(*edges, weights, strict=True)]
    (folder / "edges.csv").write_text("source,target,weight\n" + "".join(lines))
    rows = "".join(f"{k},{X[k, 0]},{Y[k]},{X[k, 1]},{SPLIT[k]}\n" for k in np.arange(N)[::-1])
    (folder / "table.csv").write_text("id,a,label,b,split\n" + rows)
    return folder / "edges.csv"


def as_words(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    """Write the same as text, with words for nodes: in ascending order, as the numbers."""
    as_text(folder, edges, weights)
    for path in folder.glob("*.csv"):
        head, *lines = path.read_text().splitlines()
        ends = 2 if path.stem == "edges" else 1
        cut = [line.split(",") for line in lines]
        lines = [",".join([*(f"n{one}" for one in row[:ends]), *row[ends:]]) for row in cut]
        path.write_text("\n".join([head, *lines]) + "\n")
    (folder / "nodes.txt").write_text("".join(f"n{k}\n" for k in range(N)))
    return folder / "edges.csv"


def as_parquet(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    table = {"source": edges[0], "target": edges[1].astype(np.int32), "weight": weights}
    pq.write_table(pa.table(table), folder / "edges.parquet")
    table = {"x": X.tolist(), "id": np.arange(N), "label": Y, "split": SPLIT}
    pq.write_table(pa.table(table), folder / "table.parquet")
    return folder / "edges.parquet"


def named_arrays(edges: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    return {"edge_index": edges, "edge_weight": weights, "x": X, "y": Y, **PARTS}


def as_npz(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    np.savez_compressed(folder / "graph.npz", **named_arrays(np.asfortranarray(edges), weights))
    return folder / "graph.npz"


def as_pt(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({k: torch.as_tensor(v) for k, v in named_arrays(edges, weights).items()}, folder / "graph.pt")
    return folder / "graph.pt"


def as_r(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    """Write tables as R's write.table does: quoted words between blanks, names of rows without a header."""
    rows = [f'"{k}" "n {s}" "n {t}" {w}' for k, (s, t, w) in enumerate(zip(*edges, weights, strict=True), 1)]
    (folder / "edges.txt").write_text('"from" "to" "weight"\n' + "\n".join(rows) + "\n")
    rows = [
        f'"{k + 1}" "n {k}" {X[k, 0]} {X[k, 1]} {Y[k] if Y[k] >= 0 else "NA"} "{WORDS[SPLIT[k]]}"'
        for k in range(N)
    ]
    (folder / "table.txt").write_text('"id" "a" "b" "label" "split"\n' + "\n".join(rows[::-1]) + "\n")
    (folder / "nodes.txt").write_text("".join(f'"n {k}"\n' for k in range(N)))
    return folder / "edges.txt"


def as_pandas(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    """Write tables as pandas does for spreadsheets: an index without a name, semicolons, a first mark."""
    rows = [f"{k};{s};{t};{w}" for k, (s, t, w) in enumerate(zip(*edges, weights, strict=True))]
    (folder / "edges.csv").write_text("\ufeffsep=;\r\n;source;target;weight\r\n" + "\r\n".join(rows) + "\r\n")
    rows = [f"{k};{X[k, 0]};{X[k, 1]};{Y[k]};{SPLIT[k]}" for k in range(N)]
    (folder / "table.csv").write_text(";a;b;label;split\n" + "\n".join(rows[::-1]) + "\n")
    return folder / "edges.csv"


def as_lines(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    rows = [
        dict(zip(("source", "target", "weight"), row, strict=True))
        for row in zip(*edges.tolist(), weights.tolist(), strict=True)
    ]
    (folder / "edges.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"id": k, "x": X[k].tolist(), "label": int(Y[k]), "split": int(SPLIT[k])} for k in range(N)]
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "edges.jsonl"


def as_market(folder: Path, edges: np.ndarray, weights: np.ndarray) -> Path:
    """Write a matrix, which has each entry once, here the largest of each."""
    matrix = np.zeros((N, N))
    np.maximum.at(matrix, (edges[1], edges[0]), weights)
    scipy.io.mmwrite(folder / "edges.mtx", sp.coo_array(matrix), symmetry="general")
    for name, array in (("features", X), ("labels", Y), ("split", SPLIT)):
        np.save(folder / f"{name}.npy", array)
    return folder


WAYS = [as_text, as_words, as_r, as_pandas, as_parquet, as_lines, as_npz, as_pt, as_market]
PREPARED: dict[str, Any] = {"order": ["original"], "force": True}


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("directed", [None, True, False])
@pytest.mark.parametrize("way", WAYS)
def test_one_graph_is_one_store_however_it_is_written(tmp_path, way, directed, weights) -> None:
    edges, values = symmetric() if directed is None else (EDGES, WEIGHTS)
    chosen = {"weights": values if weights else None, "directed": directed}
    dg.prepare(edges, X, Y, SPLIT, out=tmp_path / "a.dg", **chosen, **PREPARED)
    folder = tmp_path / "in"
    folder.mkdir()
    path, told = way(folder, edges, values), {"directed": directed, "weights": weights}
    if way in (as_words, as_r):
        told |= {"node_list": folder / "nodes.txt"}
    tables = [folder / f"table{path.suffix}"] * 3 if path.stem == "edges" else ()
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        dg.prepare(path, *tables, out=tmp_path / "b.dg", **told, **PREPARED)
    one, other = dg.Store(tmp_path / "a.dg"), dg.Store(tmp_path / "b.dg")
    content = dict(other.manifest["content"])
    assert ("ids" in content) == (way in (as_words, as_r)) and content.pop("ids", 0) is not None
    assert content == one.manifest["content"]
    for name in ("n", "nnz", "edges", "directed", "weighted", "width", "classes", "split", "degrees"):
        assert one.manifest[name] == other.manifest[name], name
    blocks = [store.order().block((0, N), (0, N)).toarray() for store in (one, other)]
    assert (blocks[0] == blocks[1]).all() and (one.features() == X.astype(np.float32)).all()


def test_rules_for_directions_edges_and_repeats(tmp_path) -> None:
    """Rules for a list of edges, and for arrays that list one direction."""
    as_text(tmp_path, EDGES, WEIGHTS)
    plain = PREPARED | {"normalize": "none"}
    dg.prepare(tmp_path / "edges.csv", out=tmp_path / "a.dg", weights=True, **plain)
    dg.prepare(EDGES, out=tmp_path / "b.dg", weights=WEIGHTS, **plain)
    found, A = [], np.zeros((6, 6))
    np.maximum.at(A, (EDGES[1], EDGES[0]), WEIGHTS)
    for name in ("a.dg", "b.dg"):
        found.append(dg.Store(tmp_path / name).order().block((0, 6), (0, 6)).toarray())
    both = np.maximum(A, A.T)
    for one in (A, both):
        np.fill_diagonal(one, [1, 1, 1, 6, 1, 1])
    assert (found[1] == A).all() and (found[0] == both).all()


def test_the_command_prints_the_rules(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["prepare", "--help"])
    assert (rules.__doc__ or "").strip() in capsys.readouterr().out
