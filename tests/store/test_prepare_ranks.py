"""`prepare` by several ranks: the same bytes as by one, the same errors on all of them, and nothing left
behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from distgnn import UserError, gallery, progress
from distgnn.errors import DisagreementError, PeerError
from distgnn.partition import Wanted
from distgnn.store import Store, prepare
from distgnn.store.format import hdf5, manifest
from distgnn.store.format.limits import LIMITS
from distgnn.store.from_arrays import of_arrays
from distgnn.store.importers import open_source
from distgnn.store.source import Edges, ImportOptions
from distgnn.store.team import Team
from distgnn.store.write.adjacency import AdjacencyWriter
from distgnn.train import Run, Settings
from mpi_helpers import clean_environment, mpiexec

from .graphs import AWKWARD, Graph, random_graph

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "three orders": {"order": ("double", "original", "random"), "shards": (1, 1)},
    "partition": {"order": ("original",), "partitions": [Wanted("random", 3)], "dtype": "float64"},
}


@pytest.fixture
def little_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits so small that little graphs have several shards and files."""
    monkeypatch.setattr(LIMITS, "shard_entries", 40)
    monkeypatch.setattr(LIMITS, "sorted_entries", 16)
    monkeypatch.setattr(LIMITS, "entries", 5)
    monkeypatch.setattr(LIMITS, "file_bytes", 100)
    monkeypatch.setattr(LIMITS, "row_bytes", 60)
    monkeypatch.setattr(LIMITS, "spilled_bytes", 100)


def both_ways(comm: Any, source: Any, folder: Path, **options: Any) -> None:
    """Write by all ranks, and by rank 0 alone: the same manifest, in which are the sums of all files."""
    done = prepare(source, folder / "together.dg", comm=comm, **options)
    comm.Barrier()
    if comm.Get_rank() == 0:
        alone = prepare(source, folder / "alone.dg", **options)
        assert (done.nnz, done.edges, done.shards, done.split) == (
            alone.nnz,
            alone.edges,
            alone.shards,
            alone.split,
        )
        assert [name for name, *_ in done.stages] == [name for name, *_ in alone.stages]
        assert set(done.partitions) == set(alone.partitions)
        store = Store(folder / "together.dg")
        assert store.manifest == Store(folder / "alone.dg").manifest
        assert store.verify() == []
        assert {path.name for path in folder.iterdir()} >= {"together.dg", "alone.dg"}
        assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]
        assert not (folder / "together.dg" / "scratch").exists()
    comm.Barrier()


@pytest.mark.usefixtures("little_limits")
@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("prime", "defaults"), ("one node", "three orders"), ("no edges", "three orders"),
        ("hub", "defaults"), ("directed", "three orders"), ("weighted directed", "defaults"),
        ("weighted", "partition"), ("zero weights", "defaults"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_the_same_bytes(case: str, options: str, comm: Any, shared_tmp_path: Path) -> None:
    both_ways(comm, AWKWARD[case], shared_tmp_path, seed=2, **OPTIONS[options])


@pytest.mark.usefixtures("little_limits")
@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("normalize", ["gcn", "row"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_repeated_edge_has_no_direction(
    comm: Any, shared_tmp_path: Path, weighted: bool, normalize: str
) -> None:
    """Repeated edges merge into the one with the largest weight; the merged matrix is symmetric, or not."""
    r = np.random.default_rng(4)
    ends, values = r.integers(2, 17, (2, 40)), r.random(40)
    ends, values = np.hstack([ends, ends[::-1]]), np.tile(values, 2)
    repeated = np.hstack([ends, ends[:, 7:12]]), np.concatenate([values, values[7:12] / 2])
    one_way = np.hstack([repeated[0], [[0], [1]]]), np.append(repeated[1], 0.5)
    if weighted:
        one_way = repeated[0], np.append(repeated[1][:-1], 2.0)
    stores = []
    for edges, weights in ((ends, values), repeated, one_way):
        source = of_arrays(edges, nodes=17, weights=weights if weighted else None)
        options: dict[str, Any] = {"order": ("random", "original"), "normalize": normalize, "shards": (2, 2)}
        both_ways(comm, source, shared_tmp_path, force=True, **options)
        stores.append(Store(shared_tmp_path / "together.dg").manifest)
        comm.Barrier()
    once, again, other = stores
    assert again["id"] == once["id"] and again["orders"] == once["orders"]
    assert not once["directed"] and other["directed"] and not other["symmetric"]
    symmetric = normalize == "gcn"
    assert [once["symmetric"], *(order["symmetric"] for order in once["orders"].values())] == [symmetric] * 3
    assert other["edges"] == 2 * once["edges"] - len(set(ends[0, ends[0] == ends[1]])) + (not weighted)
    told = of_arrays(repeated[0], nodes=17, directed=True)
    assert prepare(told, shared_tmp_path / f"{comm.Get_rank()}.dg").directed


@pytest.mark.usefixtures("little_limits")
@pytest.mark.ranks(3)
@pytest.mark.slow
def test_weights_that_round(comm: Any, shared_tmp_path: Path) -> None:
    """Sums of weights of many magnitudes depend on the order in which they are added, to the last bit of the
    values.
    """
    graph = random_graph(41, 400, weighted=True)
    graph.weights *= 10.0 ** np.random.default_rng(1).integers(-8, 8, 400)
    both_ways(comm, graph, shared_tmp_path, dtype="float64", shards=(2, 5))


@pytest.mark.ranks(1, 3)
@pytest.mark.slow
def test_as_it_is_without_little_limits(comm: Any, shared_tmp_path: Path) -> None:
    both_ways(
        comm, random_graph(997, 20_000, width=9, classes=4, weighted=True), shared_tmp_path, shards=(4, 3)
    )


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("kind", ["generated", "csv", "npz"])
@pytest.mark.slow
def test_formats(kind: str, comm: Any, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose edges are read from the middle of a file, text, and an archive."""
    import scipy.sparse as sp

    monkeypatch.setattr(LIMITS, "entries", 100)
    path, options = (
        shared_tmp_path / {"generated": "raw", "csv": "e.csv", "npz": "A.npz"}[kind],
        ImportOptions(),
    )
    if comm.Get_rank() == 0:
        if kind == "generated":
            gallery.write(gallery.RMat(500, edges=3001, features=3, classes=3), path)
        elif kind == "csv":
            np.savetxt(path, np.random.default_rng(0).integers(0, 97, (800, 2)), "%d", ",")
        else:
            sp.save_npz(
                path, sp.random_array((83, 83), density=0.1, rng=np.random.default_rng(0), format="csr")
            )
    comm.Barrier()
    options.weights = kind == "npz"
    both_ways(comm, open_source(path, options), shared_tmp_path, order=("random", "original"), shards=(3, 3))


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_shares_are_the_whole(parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "entries", 100)
    gallery.write(gallery.RMat(500, edges=1234, features=0, classes=0), tmp_path / "raw")
    for source in (open_source(tmp_path / "raw"), random_graph(40, 200)):
        whole = [np.concatenate(side) for side in list(zip(*source.edges(), strict=True))[:2]]
        shares = [share for part in range(parts) for share in source.edge_share(part, parts)]
        shares.sort(key=lambda share: share[0])
        for side in (0, 1):
            np.testing.assert_array_equal(np.concatenate([edges[side] for _, edges in shares]), whole[side])
        sizes = [len(edges[0]) for _, edges in shares]
        assert [before for before, _ in shares] == np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist()


def test_only_a_share_of_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery.write(gallery.RMat(500, edges=1000, features=0, classes=0), tmp_path / "raw")
    source = open_source(tmp_path / "raw")
    counted: list[int] = []
    original = os.preadv

    def preadv(file: int, buffers: list[memoryview], place: int) -> int:
        counted.append(sum(map(len, buffers)))
        return original(file, buffers, place)

    monkeypatch.setattr(os, "preadv", preadv)
    assert sum(len(edges[0]) for _, edges in source.edge_share(1, 4)) == 250
    assert sum(counted) == 500 * 8


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_dealing(ranks: int) -> None:
    """Everything goes to one rank, and where sizes allow it no rank gets much more than another."""
    rng = np.random.default_rng(ranks)
    for sizes in ([], [0] * 7, [100, 1, 1, 1], rng.integers(0, 50, 64)):
        hands = []
        for rank in range(ranks):
            team = Team()
            team.rank, team.size = rank, ranks
            hands.append(team.deal(sizes))
        assert sorted(index for hand in hands for index in hand) == list(range(len(sizes)))
        loads = [sum(int(sizes[index]) for index in hand) for hand in hands]
        assert max(loads) - min(loads) <= max([*sizes, 0])


# -- errors --------------------------------------------------------------------------------------------------


class Failing(Graph):
    """Raises on one rank, in the middle of its edges or of its features."""

    def __init__(self, here: bool, error: Exception, where: str) -> None:
        super().__init__(31, AWKWARD["prime"].pairs, width=5)
        self.here, self.error, self.where = here, error, where

    def edges(self) -> Iterator[Edges]:
        for count, chunk in enumerate(super().edges()):
            if self.here and count == 5 and self.where == "edges":
                raise self.error
            yield chunk

    def features(self, ids: np.ndarray) -> np.ndarray:
        if self.here and self.where == "features":
            raise self.error
        return super().features(ids)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("where", ["edges", "features"])
@pytest.mark.parametrize("error", [UserError("bad"), ValueError("bad")], ids=repr)
def test_a_failure_of_one_rank_is_raised_on_all(
    error: Exception, where: str, comm: Any, shared_tmp_path: Path
) -> None:
    last = comm.Get_size() - 1
    expected = (
        UserError
        if isinstance(error, UserError)
        else (ValueError if comm.Get_rank() == last else RuntimeError)
    )
    with pytest.raises(expected, match="bad"):
        prepare(
            Failing(comm.Get_rank() == last, error, where), shared_tmp_path / "g.dg", shards=(3, 3), comm=comm
        )
    comm.Barrier()
    assert list(shared_tmp_path.iterdir()) == []
    comm.Barrier()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("step", ["write_structure", "write_values", "fingerprint", "write"])
@pytest.mark.slow
def test_a_full_disk_on_one_rank(
    step: str, comm: Any, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    guilty = 0 if step == "write" else 1  # the manifest is written by rank 0
    if comm.Get_rank() == guilty:
        where = {"write_structure": (hdf5, "store_array"), "write_values": (AdjacencyWriter, "_write_values")}
        monkeypatch.setattr(*where.get(step, (manifest, step)), fail)
    with pytest.raises(UserError, match=r"cannot write .*g.dg: No space left on device"):
        prepare(AWKWARD["prime"], shared_tmp_path / "g.dg", shards=(3, 3), comm=comm)
    comm.Barrier()
    assert list(shared_tmp_path.iterdir()) == []
    comm.Barrier()


@pytest.mark.ranks(2, 3)
def test_bad_arguments(comm: Any, shared_tmp_path: Path) -> None:
    bad = Graph(9, [[0, 1], [3, 9]], chunk=1)
    for graph, options, message in (
        (AWKWARD["prime"], {"order": ["metis"]}, "order=metis: no such order"),
        (AWKWARD["prime"], {"shards": (32, 1)}, "shards=32x1: the matrix is 31 x 31"),
        (bad, {}, "test graph: edge 2 names node 9; node ids must be 0..8"),
        (Graph(4, [[0, 1], [1, 2]], [-2, -0.5]), {}, "negative weights need normalize=none"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(graph, shared_tmp_path / "g.dg", comm=comm, **options)
        comm.Barrier()
        assert list(shared_tmp_path.iterdir()) == []
        comm.Barrier()


@pytest.mark.ranks(4)
def test_ranks_that_disagree(comm: Any, shared_tmp_path: Path) -> None:
    last, path = comm.Get_rank() == comm.Get_size() - 1, shared_tmp_path / "g.dg"
    odd: list[tuple[str, dict[str, Any]]] = [
        ("seed is 0", {"seed": 1}), ("shards", {"shards": (2, 2)}), ("self_loops", {"self_loops": False}),
        ("order is random", {"order": ("original",)}), ("partitions", {"partitions": [Wanted("random", 3)]}),
    ]  # fmt: skip
    for named, options in odd:
        with pytest.raises(DisagreementError, match=f"ranks disagree: {named}"):
            prepare(AWKWARD["prime"], path, comm=comm, **(options if last else {}))
    with pytest.raises(DisagreementError, match="ranks disagree: the source's n is 31"):
        prepare(AWKWARD["hub" if last else "prime"], path, comm=comm)
    comm.Barrier()
    assert list(shared_tmp_path.iterdir()) == []
    comm.Barrier()


@pytest.mark.ranks(2, 3)
@pytest.mark.slow
def test_what_exists_is_kept_or_replaced(comm: Any, shared_tmp_path: Path) -> None:
    prepare(AWKWARD["prime"], shared_tmp_path / "g.dg", comm=comm)
    with pytest.raises(UserError, match=r"g.dg exists; force=True replaces it, or give another name"):
        prepare(AWKWARD["hub"], shared_tmp_path / "g.dg", comm=comm)
    assert Store(shared_tmp_path / "g.dg").n == 31
    prepare(AWKWARD["hub"], shared_tmp_path / "g.dg", comm=comm, force=True)
    assert Store(shared_tmp_path / "g.dg").n == 37
    comm.Barrier()
    assert [path.name for path in shared_tmp_path.iterdir()] == ["g.dg"]
    comm.Barrier()


# -- the command ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    gallery.write(gallery.RMat(500, edges=3001, features=3, classes=3), tmp_path / "raw")
    words = ["-m", "distgnn", "prepare", tmp_path / "raw"]
    together, alone = mpiexec(3, *words, tmp_path / "a.dg"), mpiexec(1, *words, tmp_path / "b.dg")
    assert (together.code, together.err) == (alone.code, alone.err) == (0, "")
    assert (
        together.out.splitlines()[1:-1] == alone.out.splitlines()[1:-1]
        and together.out.count("a.dg: 500 nodes") == 1
    )
    assert Store(tmp_path / "a.dg").manifest == Store(tmp_path / "b.dg").manifest


@pytest.mark.parametrize("told", [[0, 1], [1]], ids=str)
@pytest.mark.slow
def test_being_told_to_end_leaves_nothing(told: list[int], tmp_path: Path) -> None:
    """SIGTERM in the middle of the work: to all processes of the job, as `scancel` sends it, or to one."""
    program = (
        "import os, pathlib, sys, time\n"
        "from distgnn import cli\n"
        "from distgnn.store.write import adjacency\n"
        "def wait(writer, *args):\n"
        "    (pathlib.Path(sys.argv[1]).parent / f'rank-{writer.team.rank}').write_text(f'{os.getpid()} ')\n"
        "    time.sleep(60)\n"
        "adjacency.AdjacencyWriter.write_values = wait\n"
        "sys.exit(cli.main(['prepare', *sys.argv[1:]]))\n"
    )
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "in" / "e.csv").write_text("0,1\n1,2\n2,3\n")
    launcher = Path(sys.executable).with_name("mpiexec")
    words = [
        launcher,
        "-n",
        "2",
        sys.executable,
        "-c",
        program,
        tmp_path / "in" / "e.csv",
        tmp_path / "out" / "g.dg",
    ]
    job = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment()
    )
    try:
        files = [tmp_path / "in" / f"rank-{rank}" for rank in range(2)]
        assert wait_until(lambda: all(file.exists() and file.read_text().endswith(" ") for file in files), 60)
        assert [path.name for path in (tmp_path / "out").iterdir() if path.name.endswith(".tmp")]
        for rank in told:
            os.kill(int(files[rank].read_text()), signal.SIGTERM)
        assert job.wait(30) != 0
    finally:
        job.kill()
        job.wait()
    assert wait_until(lambda: not list((tmp_path / "out").iterdir()), 10)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.ranks(1, 3)
@pytest.mark.slow
def test_ranks_share_ids_and_what_is_made_of_degrees(comm, shared_tmp_path, monkeypatch) -> None:
    from distgnn.store.from_arrays import prepare as prepare_files

    monkeypatch.setattr(LIMITS, "file_rows", 5)
    path, stores = shared_tmp_path / "e.csv", []
    if comm.rank == 0:
        path.write_text("".join(f"n{k % 17},n{k * k % 13}\n" for k in range(40)))
    comm.Barrier()
    for name, ranks in (("all.dg", comm), ("one.dg", None)):
        if ranks is not None or comm.rank == 0:
            out = shared_tmp_path / name
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                prepare_files(path, "degree", "degree:4", "0.5/0.2/0.3", out=out, comm=ranks)
            stores.append(Store(out))
    ids = [store.manifest["id"] for store in stores]
    assert len({*ids}) == 1 and stores[0].ids().tolist() == sorted(f"n{k}" for k in range(17))


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_what_one_rank_can_not_read_is_an_error_of_all(comm, shared_tmp_path, monkeypatch) -> None:
    """Arrays and settings, which each rank reads before it says anything to the others."""
    monkeypatch.setattr(progress, "LONG", 0.02)
    store, edges = shared_tmp_path / "graph.dg", np.array([[0, 1, 2], [1, 2, 0]])
    X, y = np.ones((3, 4)), np.arange(3)

    def prepared(bad: bool) -> None:
        dg.prepare(edges, X[: 3 - bad], y, "train train val".split(), out=store, comm=comm, force=True)

    def run(bad: bool) -> None:
        given: Any = {"epochs": 1} if bad else Settings(hidden=[4], epochs=1, recipe="plain")
        losses = [record["loss"] for record in Run(store, given, comm).train()]
        assert np.isfinite(losses).all() and len(losses) == 1

    for work in prepared, run:
        work(False)
        for failing in range(comm.size):
            bad = comm.rank == failing
            with pytest.raises(UserError if bad else PeerError):
                work(bad)
            work(False)


def test_a_store_of_one_process_takes_no_mpi(tmp_path) -> None:
    program = """
import sys
import numpy as np
import distgnn as dg
dg.prepare(np.array([[0, 1, 2], [1, 2, 0]]), out="graph.dg")
print("mpi4py.MPI" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
