"""Features that are mostly zeros stay sparse, from every input into a store and onto every grid."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import UserError, cli
from distgnn.arrays import backend as backends
from distgnn.comm.group import Comm
from distgnn.layout import Cut, Layout, partition
from distgnn.ledger import Ledger
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.store import Store, load_features, prepare
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import stamp
from distgnn.store.from_arrays import of_arrays
from distgnn.store.importers import open_source
from distgnn.store.in_memory import hold
from distgnn.store.source import ImportOptions
from distgnn.store.team import Team
from distgnn.store.write.content import Content
from loops import each

from .graphs import Graph, reseal

N, WIDTH = 90, 300  # columns that one byte does not count
EDGES = np.random.default_rng(0).integers(0, N, (2, 400))


def sparse_graph(kind: str = "floats", directed: bool = False) -> Graph:
    """Make a graph whose features have an empty row, an empty column and a nearly full row."""
    rng, graph = np.random.default_rng(3), Graph(N, EDGES.T, width=WIDTH, classes=3, directed=directed)
    some = rng.random((N, WIDTH)) < 0.05
    some[7], some[8] = False, True
    some[:, 11] = False
    values = rng.standard_normal((N, WIDTH)) * 1e-30 if kind == "floats" else 1
    graph.X = np.where(some, values, 0).astype(np.float32)
    return graph


@pytest.fixture
def little_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits so small that features are in several files, and each goes through buckets on disk."""
    sizes = {"sorted_entries": 200, "entries": 300, "file_bytes": 4000, "row_bytes": 9000}
    for name, value in (sizes | {"spilled_bytes": 3000, "window_entries": 64, "sampled_rows": 9}).items():
        monkeypatch.setattr(LIMITS, name, value)


@pytest.mark.usefixtures("little_limits")
@each("kind,first", [("floats", "double"), ("ones", "random"), ("floats", "original")])
def test_every_order_has_the_rows_of_the_nodes(kind: str, first: str, tmp_path: Path) -> None:
    graph, names, out = sparse_graph(kind), ("double", "original", "random"), tmp_path / f"{kind}-{first}.dg"
    prepare(graph, out, order=[first, *(name for name in names if name != first)], seed=4)
    store = Store(out)
    assert store.feature_nnz == np.count_nonzero(graph.X) and len(store.manifest["nodes"]["files"]) > 2
    assert store.manifest["sparse_features"]["ones"] == (kind == "ones")
    for order in [None, *(v for name in names for v in store.order(name).versions)]:
        X = graph.X if order is None else graph.X[order.permutation(0, N)]
        np.testing.assert_array_equal(store.features(order), X)
        rows, cols = (5, 71), (9, 280)
        np.testing.assert_array_equal(store.features(order, rows, cols), X[5:71, 9:280])
        window = store.sparse_features(order, rows, cols)
        assert window.nnz == np.count_nonzero(X[5:71, 9:280]) and window.dtype == np.float32
        np.testing.assert_array_equal(window.toarray(), X[5:71, 9:280])
        assert store.features(order, (8, 8)).shape == (0, WIDTH)
        assert store.features(order, cols=(11, 12)).tolist() == [[0.0]] * N
    assert store.verify() == []


@pytest.mark.usefixtures("little_limits")
@pytest.mark.ranks(2, 4)
def test_ranks_write_the_same_bytes(comm: Any, shared_tmp_path: Path) -> None:
    for kind in ("ones", "floats"):
        together, alone = (shared_tmp_path / f"{kind}-{name}.dg" for name in ("together", "alone"))
        prepare(sparse_graph(kind), together, order=("random", "double"), comm=comm)
        if comm.Get_rank() == 0:
            prepare(sparse_graph(kind), alone, order=("random", "double"))
            assert Store(together).manifest == Store(alone).manifest
        comm.Barrier()


def forms(X: np.ndarray) -> dict[str, Any]:
    """Give a matrix in every form that arrays take."""
    kinds = ("csr_matrix", "csc_array", "coo_array", "bsr_array", "lil_array")
    long = sp.csr_array(X)  # whose arrays have room for more
    long.data, long.indices = (np.append(part, part[:5]) for part in (long.data, long.indices))
    return {"dense": X, "long": long} | {name: getattr(sp, name)(X) for name in kinds}


@each("kind", ["float32", "float64", "int64", "bool"])
def test_every_form_of_arrays_is_the_same_store(kind: str, tmp_path: Path) -> None:
    X = sparse_graph("ones" if kind in ("int64", "bool") else "floats").X.astype(kind)
    if kind == "float64":
        X *= np.pi  # which float32 would change
    ids, wide = set(), kind == "float64"
    for name, form in forms(X).items():
        for dtype in ("float32", "float64")[: 1 + wide]:
            out = tmp_path / f"{kind}-{name}-{dtype}.dg"
            done = dg.prepare(EDGES, form, out=out, dtype=dtype)
            store, expected = Store(out), X.astype(dtype if wide else "float32")
            assert done.feature_nnz == store.feature_nnz == np.count_nonzero(expected)
            assert store.features().dtype == expected.dtype
            np.testing.assert_array_equal(store.features(), expected)
            ids.add((dtype, store.manifest["id"]))
    assert len(ids) == 1 + wide


def test_zeros_that_a_matrix_stores_are_left_out(tmp_path: Path) -> None:
    X = sp.csr_array(sparse_graph().X)
    X.data[::3] = 0
    dg.prepare(EDGES, X, out=tmp_path / "zeros.dg")
    dg.prepare(EDGES, X.toarray(), out=tmp_path / "none.dg")
    zeros, none = Store(tmp_path / "zeros.dg"), Store(tmp_path / "none.dg")
    assert zeros.feature_nnz == X.count_nonzero() < X.nnz and zeros.manifest["id"] == none.manifest["id"]


@each("kind", ["float32", "float64"])
def test_sparse_features_have_the_hash_of_the_same_dense_ones(kind: str) -> None:
    graph = sparse_graph()
    graph.feature_type, X = np.dtype(kind), graph.X.astype(kind) * np.pi
    hashes = []
    for rows in (
        X.astype(kind),
        sp.csr_array(X.astype(kind)),
        sp.csr_array(np.roll(X, 1, axis=1).astype(kind)),
    ):
        content = Content(graph)
        content.add_features(0, rows[:40])
        content.add_features(40, rows[40:])
        hashes.append(content.hashes(Team())["features"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_torch_tensors_stay_sparse(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    X, ids = torch.from_numpy(sparse_graph().X), set()
    for form in (X, X.to_sparse_coo(), X.to_sparse_csr(), X.to_sparse_csc()):
        dg.prepare(EDGES, form, out=tmp_path / "g.dg", force=True)
        ids.add(Store(tmp_path / "g.dg").manifest["id"])
    assert len(ids) == 1 and Store(tmp_path / "g.dg").feature_nnz == np.count_nonzero(X)


@each("kind", ["ones", "floats"])
def test_every_file_of_features_is_the_same_content(kind: str, tmp_path: Path) -> None:
    X = sparse_graph(kind).X
    np.savetxt(edges := tmp_path / "edges.csv", EDGES.T, "%d", ",")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(X))
    np.savez_compressed(tmp_path / "x.npz", X)
    for name in ("csr", "csc", "coo"):
        sp.save_npz(tmp_path / f"{name}.npz", sp.coo_array(X).asformat(name))
    table = pd.DataFrame(X, columns=[f"f{k}" for k in range(WIDTH)])
    table.to_csv(tmp_path / "x.csv", index=False)
    table.to_parquet(tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text(table.to_json(orient="records", lines=True, double_precision=15))
    files = ["x.npy", "fortran.npy", "x.npz", "csr.npz", "csc.npz", "coo.npz", "x.csv", "x.parquet"]
    files += ["x.jsonl"] if kind == "ones" else []
    if kind == "ones":
        listed = {str(node): np.flatnonzero(row)[::-1].tolist() for node, row in enumerate(X)}
        (tmp_path / "x.json").write_text(json.dumps(listed))
        files.append("x.json")
    contents = set()
    for name in files:
        source = open_source(edges, ImportOptions(features=str(tmp_path / name)))
        prepare(source, out := tmp_path / f"{kind}-{name}.dg")
        store = Store(out)
        assert store.feature_nnz == np.count_nonzero(X), name
        np.testing.assert_array_equal(store.features(), X)
        contents.add(store.manifest["content"]["features"])
    assert len(contents) == 1


def test_one_hot_features_take_a_number_a_node(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "edges.csv", EDGES.T, "%d", ",")
    prepare(open_source(tmp_path / "edges.csv", ImportOptions(features="onehot")), tmp_path / "g.dg")
    store = Store(tmp_path / "g.dg")
    assert store.manifest["sparse_features"] == {"nnz": N, "ones": True}
    np.testing.assert_array_equal(store.features(), np.eye(N))


@each(
    "height,width,nnz,kept",
    [(8, 64, 124, True), (8, 64, 125, False), (100, 2, 0, True), (100, 2, 1, False), (50, 1, 0, False)],
)
def test_half_the_bytes_decide(height: int, width: int, nnz: int, kept: bool, tmp_path: Path) -> None:
    """CSR has 4 bytes a row and 8 an entry, dense features 4 a number."""
    X = np.zeros((height, width), np.float32)
    X.flat[np.random.default_rng(0).permutation(X.size)[:nnz]] = 2
    ids = set()
    for form in (X, sp.csr_array(X)):
        dg.prepare(np.zeros((2, 1), int), form, out=tmp_path / "g.dg", force=True)
        store = Store(tmp_path / "g.dg")
        assert (store.feature_nnz is not None) == kept and store.manifest["version"] == (3 if kept else 2)
        np.testing.assert_array_equal(store.features(), X)
        ids.add(store.manifest["id"])
        held = hold(of_arrays(np.zeros((2, 1), int), form), in_memory())
        assert sp.issparse(held.arrays.features) == kept
        assert held.manifest["content"] == store.manifest["content"]
        np.testing.assert_array_equal(held.features(), X)
    assert len(ids) == 1


def in_memory() -> Comm:
    from mpi4py import MPI

    return Comm(MPI.COMM_SELF.Dup(), backends.get("numpy"))


def test_dense_features_are_not_counted(tmp_path: Path) -> None:
    """A sample shows that they are dense: each row is read once more at most where it is in the sample."""
    graph, read = Graph(5000, EDGES.T, width=3), []
    features = graph.features
    graph.features = lambda ids: read.append(len(ids)) or features(ids)  # type: ignore[method-assign]
    prepare(graph, tmp_path / "g.dg")
    assert sum(read) == graph.n + LIMITS.sampled_rows and Store(tmp_path / "g.dg").feature_nnz is None


@pytest.mark.usefixtures("little_limits")
def test_nothing_makes_sparse_features_dense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No array of prepare, fit and load has room for all zeros, and none of a block of rows."""
    X, dense = sp.csr_array(sparse_graph().X), sp.csr_array.toarray

    def refused(matrix: Any, *args: Any, **more: Any) -> Any:
        assert matrix.shape[1] != WIDTH, "a dense matrix was made"
        return dense(matrix, *args, **more)

    monkeypatch.setattr(sp.csr_array, "toarray", refused)
    monkeypatch.setattr(sp.csr_array, "todense", refused)
    dg.prepare(EDGES, X, out=tmp_path / "g.dg", order=("random", "original"))
    store, held = Store(tmp_path / "g.dg"), hold(of_arrays(EDGES, X), in_memory())
    with pytest.raises(AssertionError, match="a dense matrix"):
        store.features()
    for kept in (store, held):
        for order in ("random", "original"):
            expected = X[kept.order(order).permutation(0, N)]
            assert (kept.sparse_features(order) != expected).nnz == 0


def cuts(grid: dg.Grid, order: Any) -> list[Layout]:
    """Cut rows, columns, both, and neither, in an order; rows also unevenly."""
    uneven = np.append(partition(N, grid.size)[:-1] // 2, N)
    rows, cols = Cut(("rows", "cols"), None, order), Cut(("rows", "cols"))
    layouts = [Layout(grid, rows, Cut()), Layout(grid, Cut((), None, order), cols)]
    layouts.append(Layout(grid, Cut(("rows", "cols"), uneven, order), Cut()))
    return [*layouts, Layout(grid, Cut(("rows",), None, order), Cut(("cols",)))]


COLUMNS: list[Any] = [None, [200, 3, 11, 150, 4, 5], list(range(40, 90))]


@pytest.mark.ranks(1, 3, 4)
def test_each_rank_has_its_rows_and_columns(
    comm: Any, backend: Any, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file and from the memory of rank 0, in any order, all columns or some, in any order too."""
    monkeypatch.setattr(LIMITS, "entries", 600)
    monkeypatch.setattr(LIMITS, "file_bytes", 5000)
    graph, path = sparse_graph(), shared_tmp_path / "g.dg"
    wanted = [dg.partition.Wanted("random", 3)]
    prepare(graph, path, order=("random", "original", "double"), partitions=wanted, comm=comm)
    across = 2 if comm.Get_size() == 4 else 1
    grid = dg.Grid(comm, backend=backend, rows=comm.Get_size() // across, cols=across)
    source = of_arrays(EDGES, sp.coo_array(graph.X)) if grid.rank == 0 else None
    for store in (Store(path), hold(source, Comm(comm.Dup(), backends.get("numpy")))):
        for order in [None, *(v.row_order for name in store.orders for v in store.order(name).versions)]:
            for number, layout in enumerate(cuts(grid, order)):
                columns = COLUMNS[number % 3]
                X = graph.X if columns is None else graph.X[:, columns]
                rows, cols = layout.ranges(X.shape)
                own = X[layout.rows.ids(*rows), slice(*cols)]
                dtype = (np.float32, np.float64)[number % 2]
                found = load_features(store, layout, columns=columns, dtype=dtype)
                assert isinstance(found, SparseFeatures) and found.shape == X.shape
                block = found.block.to_scipy()
                assert block.dtype == dtype and block.nnz == np.count_nonzero(own)
                np.testing.assert_array_equal(block.toarray(), own)
                whole = load_features(store, layout, columns=columns, dtype=dtype, sparse=False)
                np.testing.assert_array_equal(backend.to_host(whole.block), own)
    grid.free()


@pytest.mark.ranks(3)
def test_rows_are_read_once_in_all(comm: Any, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store's order and in any other, ranks together read each entry once, but for shared chunks."""
    monkeypatch.setattr(LIMITS, "chunk_bytes", 64)
    graph = sparse_graph()
    if comm.Get_rank() == 0:
        prepare(graph, shared_tmp_path / "g.dg", order=("random", "original"))
    comm.Barrier()
    grid, store = dg.Grid(comm, rows=3), Store(shared_tmp_path / "g.dg")
    for name in ("random", "original"):
        order = store.order(name).row_order
        layout = Layout(grid, Cut(("rows",), partition(N, 3), order), Cut())
        with Ledger() as seen:
            load_features(store, layout)
        bytes_read = sum(comm.allgather(seen.loaded["features/values"]))
        assert store.feature_nnz * 4 <= bytes_read <= store.feature_nnz * 4 + 3 * 2 * 64, name
    grid.free()


BAD = {
    "nan": (lambda X: X.data.__setitem__(30, np.nan), r"feature {column} of node {node} is nan"),
    "inf": (lambda X: X.data.__setitem__(30, -np.inf), r"feature {column} of node {node} is -inf"),
    "beyond": (lambda X: X.indices.__setitem__(30, WIDTH), "row {node} has column number 300; .* 0..299"),
    "below": (lambda X: X.indices.__setitem__(30, -1), r"row {node} has column number -1; .* in 0\.\.299"),
    "pointers": (lambda X: X.indptr.__setitem__(9, 0), r"row pointers must rise"),
    "twice": (
        lambda X: X.indices.__setitem__(30, X.indices[31]), r"feature {next} of node {node} comes twice",
    ),
}  # fmt: skip


def spoiled(how: str) -> tuple[sp.csr_array, str]:
    """Return features with a fault, and what its error says."""
    X = sp.csr_array(sparse_graph().X)
    node = int(np.searchsorted(X.indptr, 30, side="right")) - 1
    known = {"node": node, "column": int(X.indices[30]), "next": int(X.indices[31])}
    spoil, message = BAD[how]
    spoil(X)
    return X, message.format(**known)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("how", BAD)
def test_bad_arrays_are_named_on_all_ranks(how: str, comm: Any, shared_tmp_path: Path) -> None:
    X, message = spoiled(how)
    with pytest.raises(UserError, match=message) as caught:
        dg.prepare(EDGES, X, out=shared_tmp_path / "g.dg", comm=comm)
    assert "\n" not in str(caught.value)
    comm.Barrier()
    assert list(shared_tmp_path.iterdir()) == []
    mine = (EDGES, X) if comm.Get_rank() == 0 else (None, None)
    with pytest.raises(UserError, match=message):
        dg.fit(*mine, np.arange(N) % 3, comm=comm, epochs=1)


def test_entries_that_come_twice_are_refused_in_every_form() -> None:
    X = sp.coo_array(sparse_graph().X)
    row, col = np.append(X.row, [5, 5]), np.append(X.col, [17, 17])
    again = sp.coo_array((np.append(X.data, [2, 3]), (row, col)), shape=X.shape)
    by_row, ends = np.argsort(row, kind="stable"), np.cumsum(np.bincount(row, minlength=N))
    parts = again.data[by_row], col[by_row], np.append(0, ends)
    for form in (again, sp.csr_array(parts, shape=X.shape), sp.csr_array(parts, shape=X.shape).tocsc()):
        assert form.nnz == X.nnz + 2
        with pytest.raises(UserError, match="X: feature 17 of node 5 comes twice; expected it once"):
            of_arrays(EDGES, form).sparse_features(np.arange(N))
        with pytest.raises(UserError, match="feature 17 of node 5 comes twice"):
            dg.fit(EDGES, form, np.arange(N) % 3, epochs=1)


FILES = {
    "nan": "feature 0 of node 3 is nan", "inf": "feature 0 of node 3 is inf",
    "indices": "feature 9 of node 3 lies outside 0..8", "twice": "feature 4 of node 3 comes twice",
    "indptr": "row pointers do not rise",
}  # fmt: skip


@each("how", FILES)
def test_bad_files_are_named(how: str, tmp_path: Path) -> None:
    data, indices, indptr = np.ones(8), np.array([0, 8, 1, 0, 4, 5, 2, 7]), np.array([0, 2, 3, 3, 6, 8])
    data[3] = {"nan": np.nan, "inf": np.inf}.get(how, 1)
    indices[5] = {"indices": 9, "twice": 4}.get(how, 5)
    indptr[2] = 9 if how == "indptr" else 3
    arrays = {"data": data, "indices": indices, "indptr": indptr, "format": "csr", "shape": (5, 9)}
    np.savez(tmp_path / "x.npz", **arrays)
    (tmp_path / "e.csv").write_text("0,1\n2,3\n3,4\n")
    out = tmp_path / "g.dg"
    with pytest.raises(UserError, match=f"x.npz: {re.escape(FILES[how])}"):
        prepare(open_source(tmp_path / "e.csv", ImportOptions(features=str(tmp_path / "x.npz"))), out)
    assert not out.exists()


def test_a_file_of_entries_that_names_a_row_too_many(tmp_path: Path) -> None:
    entries = {"row": [0, 5], "col": [1, 2], "data": [1.0, 2.0], "format": "coo", "shape": (5, 9)}
    np.savez(tmp_path / "x.npz", **{name: np.array(value) for name, value in entries.items()})
    (tmp_path / "e.csv").write_text("0,1\n2,3\n3,4\n")
    with pytest.raises(UserError, match=r"x.npz: row 5 lies outside 0\.\.4"):
        open_source(tmp_path / "e.csv", ImportOptions(features=str(tmp_path / "x.npz")))


def test_json_that_lists_a_feature_twice(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n")
    (tmp_path / "x.json").write_text('{"0": [5], "1": [7, 3, 7]}')
    source = open_source(tmp_path / "e.csv", ImportOptions(features=str(tmp_path / "x.json")))
    with pytest.raises(UserError, match="x.json: feature 7 of node 1 comes twice"):
        prepare(source, tmp_path / "g.dg")


def test_a_source_of_its_own_is_checked(tmp_path: Path) -> None:
    graph = sparse_graph()
    graph.X[20, 3] = np.nan
    with pytest.raises(UserError, match="node 20 has a feature that is not a finite number"):
        prepare(graph, tmp_path / "g.dg")


def damaged(path: Path, name: str, change: Any) -> None:
    """Change an array of the first file of features, and seal the store again."""
    content = json.loads((path / "manifest.json").read_text())
    file = content["nodes"]["files"][0]
    with hdf5.writing(path / file, "r+") as opened:
        array = opened[f"features/{name}"][:]
        change(array)
        opened[f"features/{name}"][...] = array
        stamp(opened, content["id"], file)
    reseal(path, content, stamped=True)


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a store with sparse features; not to be changed."""
    prepare(sparse_graph(), path := tmp_path_factory.mktemp("sparse") / "g.dg", order=("random", "original"))
    return path


@each(
    "name,change,message",
    [
        ("indptr", lambda a: a.__setitem__(3, 1 << 20), "its row pointers do not rise from 0 to"),
        ("indices", lambda a: a.__setitem__(3, 300), "in a shard of 300 columns"),
        ("indices", lambda a: a.__setitem__(1, a[0]), "not ascending, or one is repeated"),
        ("values", lambda a: a.__setitem__(3, np.nan), "a number that is not finite"),
    ],
)
def test_damage_is_one_clear_error(
    name: str, change: Any, message: str, store_path: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(store_path, tmp_path / f"{message[:5]}{name}.dg"))
    damaged(copy, name, change)
    for order in ("random", "original"):
        with pytest.raises(UserError, match=message):
            Store(copy).features(order)


@each(
    "changes,message",
    [
        ({"nnz": 3}, "manifest.json: damaged .3 entries of features, but"),
        ({"ones": "no"}, "manifest.json: damaged .sparse_features.ones is 'no'"),
        (None, "manifest.json: damaged"),
    ],
)
def test_a_manifest_that_contradicts_itself(
    changes: dict[str, Any] | None, message: str, store_path: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(store_path, tmp_path / f"{str(changes)[2:5]}.dg"))
    content = json.loads((copy / "manifest.json").read_text())
    content["sparse_features"] = changes and content["sparse_features"] | changes
    if changes is None:
        del content["nodes"]["entries"]
        content["sparse_features"] = {"nnz": 3, "ones": False}
    reseal(copy, content, stamped=True)
    with pytest.raises(UserError, match=message):
        Store(copy)


def test_a_reader_of_version_2_refuses_it_by_a_line(store_path: Path) -> None:
    from distgnn.store.format import manifest

    old = manifest.Kind("distgnn-store", 2, 2, "store", "prepare it again from its source", "")
    with pytest.raises(UserError, match="store schema version 3, this distgnn reads version 2; prepare it"):
        manifest.read(store_path, old)


def test_info_says_how_full_they_are(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnz = Store(store_path).feature_nnz
    assert cli.main(["info", str(store_path)]) == 0
    assert f"300, sparse: {nnz} entries, {nnz / (N * WIDTH):.2g} of all" in capsys.readouterr().out
    assert cli.main(["info", str(store_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["feature_nnz"] == nnz


@pytest.mark.ranks(1, 3)
def test_a_network_predicts_from_a_store_and_from_arrays(comm: Any, shared_tmp_path: Path) -> None:
    """The same logits from sparse features in a file, in memory, and from dense ones."""
    graph, y = sparse_graph(), np.arange(N) % 3
    if comm.Get_rank() == 0:
        dg.prepare(EDGES, graph.X, y, "0.6/0.2/0.2", out=shared_tmp_path / "g.dg")
    comm.Barrier()
    model = dg.fit(EDGES, sp.csr_array(graph.X), y, comm=comm, epochs=3, seed=1)
    answers = [model.predict_proba(), model.predict_proba(EDGES, graph.X)]
    answers += [
        model.predict_proba(EDGES, sp.coo_array(graph.X)),
        model.predict_proba(shared_tmp_path / "g.dg"),
    ]
    if comm.Get_rank() == 0:
        for other in answers[1:]:
            np.testing.assert_allclose(other, answers[0], rtol=1e-5)


def test_facebook_takes_megabytes(tmp_path: Path) -> None:
    data = Path(__file__).parents[3] / "shared" / "data" / "facebook"
    if not data.exists():
        pytest.skip("needs ../shared/data/facebook")
    prepare(open_source(data, ImportOptions()), tmp_path / "g.dg")
    store = Store(tmp_path / "g.dg")
    files = store.manifest["files"]
    assert sum(files[name]["bytes"] for name in store.manifest["nodes"]["files"]) < 1 << 20
    listed = json.loads((data / "facebook.json").read_text())
    X = store.sparse_features()
    for node in (0, 17, 22469):
        assert sorted(listed[str(node)]) == X[[node]].indices.tolist() and (X[[node]].data == 1).all()
    assert store.feature_nnz == sum(map(len, listed.values()))
