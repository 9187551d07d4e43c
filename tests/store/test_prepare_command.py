"""``distgnn prepare``: flags reach importer and writer; bad input is one line, exit code 2, and nothing left
behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distgnn import cli, gallery
from distgnn.store import Store
from mpi_helpers import clean_environment, mpiexec

EDGES = "from,to,strength\n0,1,2\n1,2,3\n3,1,0.5\n1,3,4\n2,2,5\n"


@pytest.fixture
def prepare_folder(tmp_path: Path) -> Path:
    """Make a folder with an edge list, labels and features."""
    (tmp_path / "e.csv").write_text(EDGES)
    (tmp_path / "l.csv").write_text("who,kind\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(5)))
    np.save(tmp_path / "x.npy", np.arange(10, dtype=np.float32).reshape(5, 2))
    return tmp_path


def run(folder: Path, words: str) -> int:
    return cli.main(["prepare", *(word.replace("@", f"{folder}{os.sep}") for word in words.split())])


def test_flags_reach_importer_and_writer(prepare_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "@e.csv @g.dg --labels @l.csv --id-column who --label-column kind --features @x.npy "
    words += "--split 0.4/0.2/0.4 --weights "
    words += "--source-column from --target-column to --directed --format edges "
    words += "--order original,random --seed 5 --normalize row --no-self-loops --dtype float64 --shards 2x3"
    assert run(prepare_folder, words) == 0
    store = Store(prepare_folder / "g.dg")
    facts = store.manifest
    assert (store.n, store.width, store.classes, store.orders) == (5, 2, 2, ("original", "random"))
    assert [facts[name] for name in ("directed", "weighted", "normalize", "self_loops", "dtype", "seed")] == [
        *(True, True, "row", False, "float64", 5)
    ]
    assert (facts["class_names"], facts["split"]) == (["a", "b"], {"train": 2, "validation": 1, "test": 2})
    assert store.order().shard_nnz.shape == (2, 3)
    A = store.order().block((0, 5), (0, 5)).toarray()
    expected = np.zeros((5, 5))
    expected[1, [0, 3]] = np.array([2, 0.5]) / 2.5
    expected[2, [1, 2]] = np.array([3, 5]) / 8
    expected[3, 1] = 1
    np.testing.assert_allclose(A, expected, rtol=1e-15)
    printed = capsys.readouterr().out
    assert (
        f"{prepare_folder / 'g.dg'}: 5 nodes, 5 entries from 5 directed edges; "
        "shards: original 2x3, random 2x3\n" in printed
    )
    assert "\n2 features; 2 classes, 5 nodes labelled; split 2 train, 1 validation, 2 test\n" in printed
    assert "peak memory" in printed


def test_defaults(prepare_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(prepare_folder, "@e.csv @g.dg") == 0
    printed = capsys.readouterr().out
    assert "\nno features; no labels; no split\n" in printed
    assert "\nread e.csv (edges in " in printed
    store = Store(prepare_folder / "g.dg")
    assert (store.orders, store.symmetric, store.manifest["normalize"]) == (("random",), True, "gcn")
    assert store.nnz == 2 * 3 + 4
    assert store.dtype == np.float32


def test_what_looks_odd_is_a_warning_of_one_line(
    prepare_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prepare_folder / "e.csv").write_text("1,2\n2,3\n3,2\n")
    (prepare_folder / "l.csv").write_text("id,price\n1,9\n2,8\n3,7\n")
    assert run(prepare_folder, "@e.csv @g.dg --labels @l.csv") == 0
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert first.startswith("distgnn: warning: ") and "node 0 has no edges" in first
    assert (
        second.startswith("distgnn: warning: ")
        and "3 classes for 3 labelled nodes" in second
        and "--label-column NAME" in second
    )
    assert "from 2 undirected edges" in printed.out  # of which one is listed twice
    assert printed.out.splitlines()[1].endswith("; no split (training needs one: --split 0.6/0.2/0.2)")


def test_ids_are_not_labels(prepare_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (prepare_folder / "l.csv").write_text("a,kind,who\n0,x,0\n0,y,1\n")
    assert run(prepare_folder, "@e.csv @g.dg --labels @l.csv --id-column who") == 2
    line = capsys.readouterr().err
    assert line.startswith("distgnn: error: --id-column who: ") and line.count("\n") == 1
    assert "a, kind, who" in line and "--label-column" in line


def test_generated_graphs(tmp_path: Path) -> None:
    gallery.write(gallery.RMat(200, edges=900, features=4, classes=3), tmp_path / "raw")
    assert run(tmp_path, "@raw @g.dg") == 0
    store = Store(tmp_path / "g.dg")
    assert (store.n, store.width, store.classes) == (200, 4, 3)
    np.testing.assert_array_equal(store.features(), np.load(tmp_path / "raw" / "features.npy"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("@nowhere.csv @g.dg", "nowhere.csv: no such file or directory"),
        ("@e.csv @there", "there exists; "),
        ("@e.csv @there --force", "there exists and is not a distgnn store"),
        ("@e.csv @no/g.dg", "does not exist"),
        (
            "@e.csv @g.dg --order original,metis-8",
            "--order metis-8: no such order; expected one of original, random, double",
        ),
        ("@e.csv @g.dg --shards 4", "--shards '4': expected ROWSxCOLUMNS, such as 4x4"),
        (
            "@e.csv @g.dg --shards 100000x100000",
            "--shards 100000x100000: 10000000000 shards; at most 65536 are possible",
        ),
        ("@e.csv @g.dg --shards 2x5", "--shards 2x5: the matrix is 4 x 4, so at most 4x4 is possible"),
        ("@e.csv @g.dg --normalize max", "argument --normalize: invalid choice: 'max'"),
        ("@e.csv @g.dg --format xml", "--format xml: unknown; expected one of edges"),
        ("@e.csv @g.dg --split 1/2", "--split '1/2': expected three numbers"),
        ("@e.csv @g.dg --directed --undirected", "not allowed with argument --directed"),
        ("@bad.csv @g.dg", "bad.csv"),
    ],
)
def test_bad_input(
    words: str, message: str, prepare_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prepare_folder / "there").mkdir()
    (prepare_folder / "there" / "notes").write_text("mine")
    (prepare_folder / "bad.csv").write_text("a,b\n0,1\n1,2,x\n")
    before = {path: path.stat().st_mtime_ns for path in prepare_folder.rglob("*")}
    assert run(prepare_folder, words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    told = [line for line in printed.err.splitlines() if not line.startswith("distgnn: warning: ")]
    assert len(told) == 1 and told[0].startswith("distgnn: error: ")
    assert printed.out == ""
    assert {path: path.stat().st_mtime_ns for path in prepare_folder.rglob("*")} == before


def test_arguments_are_checked_before_a_long_import(
    prepare_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("@nowhere.csv @e.csv", "@nowhere.csv @g.dg --order x", "@nowhere.csv @g.dg --shards x"):
        assert run(prepare_folder, words) == 2
        assert "nowhere" not in capsys.readouterr().err


@pytest.mark.slow
def test_several_ranks_do_it_once(prepare_folder: Path) -> None:
    words = ["-m", "distgnn", "prepare", prepare_folder / "e.csv", prepare_folder / "g.dg"]
    done = mpiexec(3, *words)
    assert done.code == 0
    assert done.err.count("distgnn: warning: ") == 1 and "weights, which are left out" in done.err
    assert done.out.count("5 nodes") == 0
    assert done.out.count("4 nodes, 10 entries from 4 undirected edges") == 1
    again = mpiexec(3, *words)
    assert again.code == 2
    assert again.err.count("distgnn: error: ") == 1
    assert Store(prepare_folder / "g.dg").verify() == []


@pytest.mark.slow
def test_being_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    """`scancel` sends SIGTERM in the middle of the work."""
    program = (
        "import sys, time\n"
        "from distgnn import cli\n"
        "from distgnn.store.write import adjacency\n"
        "def wait(*args): print('in the middle', flush=True); time.sleep(60)\n"
        "adjacency.AdjacencyWriter.write_values = wait\n"
        "sys.exit(cli.main(['prepare', *sys.argv[1:]]))\n"
    )
    (tmp_path / "e.csv").write_text(EDGES)
    words = [sys.executable, "-c", program, tmp_path / "e.csv", tmp_path / "g.dg"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        assert any(path.name.endswith(".tmp") for path in tmp_path.iterdir())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) != 0
    finally:
        process.kill()
        process.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["e.csv"]


@pytest.mark.slow
def test_others_wait_without_a_core(prepare_folder: Path) -> None:
    """While rank 0 works the other ranks use next to no processor time."""
    program = (
        "import resource, sys, time\n"
        "from mpi4py import MPI\n"
        "from distgnn.cli.first_rank import on_first_rank\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "def seconds():\n"
        "    usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "    return usage.ru_utime + usage.ru_stime\n"
        "before = seconds()\n"
        "on_first_rank(lambda: time.sleep(2))\n"
        "sys.exit(seconds() - before > 1)\n"
    )
    (prepare_folder / "wait.py").write_text(program)
    assert mpiexec(2, prepare_folder / "wait.py").code == 0
