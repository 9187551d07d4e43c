"""Files from outside that would crash, hang or fill the memory: one line each."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import pickle
import socket
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.importers.pickled.planetoid import load_edges
from distgnn.store.importers.pickled.unpickler import load_csr
from distgnn.store.source import ImportOptions

pytestmark = pytest.mark.slow

MOST = 32 << 20  # bytes of memory that a refusal may take


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    path = tmp_path / "edges.csv"
    path.write_text("a,b\n0,1\n1,2\n")
    return path


@contextlib.contextmanager
def one_line(words: str) -> Iterator[None]:
    """Expect a UserError of one line with these words, and little memory until then."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=words) as caught:
            yield
        assert "\n" not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def read(path: Path, **options: object) -> None:
    source = open_source(path, ImportOptions(**options))  # type: ignore[arg-type]
    for _ in source.edges():
        pass
    source.features(np.arange(source.n))


def refused(path: Path, words: str, **options: object) -> None:
    with one_line(words):
        read(path, **options)


@pytest.mark.parametrize("bad", [1 << 30, -1, 3])
@pytest.mark.parametrize(
    ("kind", "name"), [("csc", "indices"), ("csr", "indices"), ("coo", "row"), ("coo", "col")]
)
def test_an_index_of_sparse_features_outside_the_matrix(
    edges: Path, tmp_path: Path, kind: str, name: str, bad: int
) -> None:
    matrix = scipy.sparse.eye_array(3, format="csr").asformat(kind)
    path = tmp_path / "x.npz"
    scipy.sparse.save_npz(path, matrix)
    read(edges, features=str(path))
    with np.load(path) as found:
        arrays = dict(found)
    arrays[name][1] = bad
    np.savez(path, **arrays)
    refused(edges, rf"x.npz: (row {bad}|feature {bad} of node 1) lies outside 0\.\.2", features=str(path))


@pytest.mark.parametrize("indptr", [[0, 5, 1, 3], [0, 1, 2, 1 << 40], [-1, 1, 2, 3], [0, 3]])
@pytest.mark.parametrize("kind", ["csc", "csr"])
def test_bad_pointers_of_sparse_features(edges: Path, tmp_path: Path, kind: str, indptr: list[int]) -> None:
    path, ones = tmp_path / "x.npz", np.ones(3)
    np.savez(path, format=kind, shape=[3, 3], indptr=indptr, indices=[0, 1, 2], data=ones)
    refused(edges, "x.npz: .*row pointers", features=str(path))


def ogb(folder: Path, nodes: int) -> Path:
    (folder / "raw").mkdir()
    for name, text in (("edge", "0,1\n"), ("num-node-list", f"{nodes}\n"), ("num-edge-list", "1\n")):
        (folder / "raw" / f"{name}.csv").write_text(text)
    return folder


def generated(folder: Path, nodes: int, **changes: object) -> Path:
    np.save(folder / "edges.npy", np.array([[0, 1]]))
    facts = {"format": "distgnn-graph", "version": 1, "n": nodes, "edges": 1, "directed": True}
    (folder / "graph.json").write_text(json.dumps(facts | {"classes": 0, "width": 0} | changes))
    return folder


def coordinates(folder: Path, nodes: int) -> Path:
    one, path = np.array([0]), folder / "a.npz"
    np.savez(path, format="coo", shape=[nodes, nodes], row=one, col=one, data=one)
    return path


def market(folder: Path, nodes: int) -> Path:
    path = folder / "a.mtx"
    path.write_text(f"%%MatrixMarket matrix coordinate pattern symmetric\n{nodes} {nodes} 1\n2 1\n")
    return path


@pytest.mark.parametrize("nodes", [1 << 40, 1 << 59])
@pytest.mark.parametrize("make", [ogb, generated, coordinates, market])
def test_many_nodes_are_declared_with_one_edge(
    tmp_path: Path, make: Callable[[Path, int], Path], nodes: int
) -> None:
    refused(make(tmp_path, nodes), f"declares {nodes} .* in [0-9]+ bytes|expected the size of one graph")


def test_declared_numbers_of_other_things(tmp_path: Path, edges: Path) -> None:
    np.save(tmp_path / "labels.npy", np.zeros(2, np.int32))
    refused(generated(tmp_path, 2, classes=1 << 40), "1099511627776 classes")
    (tmp_path / "labels.npy").write_bytes(header("(1099511627776, 1099511627776, 0)"))
    refused(generated(tmp_path, 2, classes=2), "labels.npy: shape .* is not possible")
    (tmp_path / "x.json").write_text('{"0": [2147483647], "2": []}')
    refused(edges, "2147483648 features of a node", features=str(tmp_path / "x.json"))
    path = market(tmp_path, 2)
    path.write_text(path.read_text().replace("2 2 1", f"2 2 {1 << 59}"))
    refused(path, "1 edges, but line 2 promises")


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "content",
    [header("(3, 1 << 50)"), header("(3, 1099511627776)"), header(f"({1 << 61}, 0)"), header("(" * 3000)],
)
def test_a_header_of_an_array_that_is_not_there(edges: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    refused(edges, "x.npy: ", features=str(tmp_path / "x.npy"))


def test_bombs(edges: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "unpacked_bytes", 1 << 20)
    monkeypatch.setattr(LIMITS, "text_bytes", 1 << 18)
    (tmp_path / "x.json").write_bytes(gzip.compress(b"[" + b" " * (1 << 24)))
    refused(edges, "x.json: [0-9]+ bytes unpack to", features=str(tmp_path / "x.json"))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header("(3, 1000000)") + bytes(12_000_000))
    refused(edges, "x.npz, array 'x': [0-9]+ bytes unpack to", features=str(tmp_path / "x.npz"))
    with zipfile.ZipFile(tmp_path / "y.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", header("(3, 1)"))
    refused(edges, "packed by method 14", features=str(tmp_path / "y.npz"))
    monkeypatch.setattr(LIMITS, "unpacked_bytes", 1 << 25)
    monkeypatch.setattr(LIMITS, "line_bytes", 1 << 20)
    for name in ("long.csv", "long.mtx"):
        (tmp_path / name).write_bytes(gzip.compress(b"1" * (1 << 24)))
        refused(tmp_path / name, "line 1: longer than 1 MiB")


def shared_lists(path: Path) -> None:
    neighbours = [0] * 10_000
    path.write_bytes(pickle.dumps(dict.fromkeys(range(100_000), neighbours), 2))


def memo(path: Path) -> None:
    """Write a pickle that asks the unpickler in C for a table of 16 GiB."""
    path.write_bytes(b"\x80\x02}r\x00\x00\x00\x40.")


def encoded(path: Path) -> None:
    """Write a pickle of the bytes of one text again and again."""
    text, encode = b"X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"q\x01", b"c_codecs\nencode\nq\x00"
    path.write_bytes(b"\x80\x02]" + encode + text + b"00(" + b"h\x00h\x01\x85R" * 10_000 + b"e.")


def declared(path: Path) -> None:
    path.write_bytes(b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"abc.")


@pytest.mark.parametrize("make", [shared_lists, memo, encoded, declared])
def test_pickle_bombs(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "graph")
    if make is memo:  # which is harmless in itself
        assert len(load_edges(tmp_path / "graph")[0]) == 0
        return
    with one_line("graph: "):
        load_edges(tmp_path / "graph")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)  # its name may have 100 characters
        server.bind(path.name)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [fifo, device, listening])
def test_what_is_no_regular_file(
    edges: Path, tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "e.csv",
        "e.mtx",
        "e.npz",
        "x.npy",
        "x.npz",
        "x.json",
        "x.csv",
        "l.csv",
        "graph.json",
        "ind.t.allx",
    ):
        make(tmp_path / name)
    for name in ("e.csv", "e.mtx", "e.npz"):
        refused(tmp_path / name, f"{name}: is no regular file")
    for name in ("x.npy", "x.npz", "x.json", "x.csv"):
        refused(edges, f"{name}: is no regular file", features=str(tmp_path / name))
    refused(edges, "l.csv: is no regular file", labels=str(tmp_path / "l.csv"))
    refused(tmp_path, "graph.json: is no regular file", format="generated")
    with one_line(r"ind.t.allx: is no regular file"):
        load_csr(tmp_path / "ind.t.allx")


def test_json_that_is_deep(edges: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000)
    refused(edges, "x.json: .*nested too deeply", features=str(tmp_path / "x.json"))


@pytest.mark.parametrize("node", ["²", "１", "1_0", "1e3", "1.0", "-1", "9" * 5000, ""])
def test_ids_that_are_none(edges: Path, tmp_path: Path, node: str) -> None:
    (tmp_path / "x.json").write_text(json.dumps({node: [0]}))
    refused(edges, "x.json: node .* is no node id", features=str(tmp_path / "x.json"))
    if node not in ("1e3", "1.0"):  # whole numbers, as MATLAB and pandas write them
        (tmp_path / "l.csv").write_text(f"id,label\n0,a\n{node},b\n")
        refused(edges, "l.csv, line 3, column id: ", labels=str(tmp_path / "l.csv"))
        (tmp_path / "x.csv").write_text(f"id,x\n0,1\n{node},2\n")
        refused(edges, "x.csv, line 3, column id: ", features=str(tmp_path / "x.csv"))
        (tmp_path / "e.csv").write_text(f"a,b\n0,1\n{node},2\n")
        refused(tmp_path / "e.csv", "e.csv, line 3, column a: ", ids="numbers")
    path = market(tmp_path, 2)
    path.write_text(path.read_text().replace("2 2 1", f"2 2 {node}"))
    refused(path, "a.mtx, line 2: bad size line")
    with one_line("no such column"):
        read(edges, source_column=node)


def test_digits_that_are_no_digits_in_pickles(tmp_path: Path) -> None:
    for node in (1.5, "1", True, -1, None):
        (tmp_path / "graph").write_bytes(pickle.dumps({0: [node]}))
        with one_line("is no node id"):
            load_edges(tmp_path / "graph")


@pytest.mark.parametrize("label", ["1.5", "inf", "1e-3"])
def test_labels_that_are_not_whole(edges: Path, tmp_path: Path, label: str) -> None:
    (tmp_path / "l.csv").write_text(f"id,label\n0,1\n1,{label}\n2,nan\n")
    told = f"l.csv, line 3, column label: label '{label}' is not whole"
    refused(edges, told, labels=str(tmp_path / "l.csv"))


@pytest.mark.parametrize("label", ["1e300", "inf", "0.5"])
def test_labels_of_ogb_that_are_not_whole(tmp_path: Path, label: str) -> None:
    folder = ogb(tmp_path, 2)
    (folder / "raw" / "node-label.csv").write_text(f"nan\n{label}\n")
    refused(folder, "node-label.csv.* expected a (whole )?number")


def test_integers_beyond_64_bits(tmp_path: Path) -> None:
    folder = generated(tmp_path, 2)
    np.save(folder / "edges.npy", np.array([[0, (1 << 64) - 1]], np.uint64))
    refused(folder, "edges.npy: .*outside|edges.npy.* too large")
    path, one = tmp_path / "a.npz", np.array([1], np.uint64)
    np.savez(path, format="coo", shape=[2, 2], row=one, col=one << np.uint64(63), data=one)
    refused(path, "a.npz: holds 9223372036854775808")


def test_what_an_error_quotes_stays_in_its_line(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in itertools.chain(["a\nb\x1b[2J"], map(str, range(1000))):
            archive.writestr(name, b"")
    (tmp_path / "a.npz").write_bytes(file.getvalue())
    with pytest.raises(UserError) as caught:
        read(tmp_path / "a.npz")
    assert "a\\nb\\x1b[2J" in str(caught.value) and len(str(caught.value)) < 500
