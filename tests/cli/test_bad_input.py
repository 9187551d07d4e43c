"""Every kind of bad input, from the command line on several ranks: one clear line, exit code 2, nothing
half-written.

What each part refuses in detail is tested beside the part; this is what a user sees.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from distgnn.gallery import PlantedPartition, write
from distgnn.store import prepare
from distgnn.store.importers import open_source
from mpi_helpers import mpiexec

RANKS = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad-input")
    write(PlantedPartition(60, communities=3, features=4), folder / "graph")
    prepare(open_source(folder / "graph"), folder / "good.dg")
    return folder / "good.dg"


def edges(folder: Path, text: str) -> list[str]:
    (folder / "edges.csv").write_text(text)
    return ["prepare", str(folder / "edges.csv"), str(folder / "out.dg")]


def damaged(store: Path, folder: Path, change: Callable[[Path], None]) -> list[str]:
    copy = folder / "copy.dg"
    shutil.copytree(store, copy)
    change(copy)
    return ["train", str(copy), "--epochs", "1", "--log", str(folder / "log")]


def shard(store: Path) -> Path:
    return next(path for path in sorted(store.rglob("*.h5")) if "order" in str(path.relative_to(store)))


def truncate(store: Path) -> None:
    os.truncate(shard(store), shard(store).stat().st_size // 2)


def corrupt(store: Path) -> None:
    """Change bytes all over the file without changing its length."""
    content = bytearray(shard(store).read_bytes())
    content[64::97] = bytes(b ^ 0x5A for b in content[64::97])
    shard(store).write_bytes(content)


def other_version(store: Path) -> None:
    manifest = json.loads((store / "manifest.json").read_text())
    key = next(key for key in manifest if "schema" in key or "version" in key)
    (store / "manifest.json").write_text(json.dumps(manifest | {key: 99}))


class Evil:
    """A pickle that would leave a file behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.system, (f"touch {self.folder / 'was-here'}",)


def planetoid(folder: Path) -> list[str]:
    (folder / "planetoid").mkdir()
    for part in ("x", "tx", "allx", "y", "ty", "ally", "graph"):
        (folder / "planetoid" / f"ind.evil.{part}").write_bytes(pickle.dumps(Evil(folder), protocol=2))
    (folder / "planetoid" / "ind.evil.test.index").write_text("0\n")
    return ["prepare", str(folder / "planetoid"), str(folder / "out.dg")]


def nan_features(folder: Path) -> list[str]:
    np.save(folder / "x.npy", np.array([[0.0, 1], [np.nan, 0], [1, 1]], np.float32))
    return [*edges(folder, "a,b\n0,1\n1,2\n"), "--features", str(folder / "x.npy")]


def unknown_labels(folder: Path) -> list[str]:
    (folder / "y.csv").write_text("id,label\n0,cat\n7,dog\n")
    (folder / "n.csv").write_text("0\n1\n2\n")
    more = ["--labels", str(folder / "y.csv"), "--node-list", str(folder / "n.csv")]
    return [*edges(folder, "a,b\n0,1\n1,2\n"), *more]


def existing(folder: Path) -> list[str]:
    (folder / "out.dg").mkdir()
    (folder / "out.dg" / "thesis").write_text("years")
    return edges(folder, "a,b\n0,1\n")


#: name -> (the command, given the good store and an empty folder; what its one line must say)
CASES: dict[str, tuple[Callable[[Path, Path], list[str]], list[str]]] = {
    "missing store": (lambda s, f: ["train", str(f / "no.dg")], ["no.dg"]),
    "missing source": (lambda s, f: ["prepare", str(f / "no.csv"), str(f / "out.dg")], ["no.csv"]),
    "truncated shard": (lambda s, f: damaged(s, f, truncate), [".h5"]),
    "corrupt shard": (lambda s, f: damaged(s, f, corrupt), [".h5"]),
    "other schema version": (lambda s, f: damaged(s, f, other_version), ["copy.dg", "99"]),
    "bad line": (lambda s, f: edges(f, "a,b\n0,1\n1,2,two\n2,3\n"), ["edges.csv", "line 3", "1,2,two"]),
    "negative id": (lambda s, f: edges(f, "a,b\n0,1\n-4,2\n"), ["edges.csv", "3", "-4"]),
    "missing end": (lambda s, f: edges(f, "a,b\n0,1\n1,NULL\n"), ["edges.csv", "line 3", "NULL"]),
    "NaN feature": (lambda s, f: nan_features(f), ["x.npy"]),
    "label of an unknown node": (lambda s, f: unknown_labels(f), ["y.csv", "7"]),
    "grid": (lambda s, f: ["train", str(s), "--algorithm", "2d", "--grid", "3x2"], ["1x4", "2x2", "4x1"]),
    "replication": (
        lambda s, f: ["train", str(s), "--algorithm", "1.5d", "--replication", "3"],
        ["possible (rows x reps): 4x1; 2x2; 1x4"],
    ),
    "pickle": (lambda s, f: planetoid(f), ["system"]),
    "existing output": (lambda s, f: existing(f), ["out.dg", "--force"]),
}


#: Runs the commands of a file one after the other; rank 0 says after each what codes the ranks had.
PROGRAM = """
import json, sys
from mpi4py import MPI
from distgnn import cli
for words in json.load(open(sys.argv[1])):
    codes = MPI.COMM_WORLD.gather(cli.main(words))
    if codes:
        print("CODES", *codes, file=sys.stderr, flush=True)
"""


def check(case: str, folder: Path, before: list[Path], err: str) -> None:
    """Check that one line has the expected words, and that no output, log or temporary file is new."""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("distgnn: error: "), err
    assert all(part in lines[0] for part in CASES[case][1]), lines[0]
    assert sorted(folder.rglob("*")) == before
    if case == "existing output":
        assert (folder / "out.dg" / "thesis").read_text() == "years"


@pytest.mark.slow
def test_one_clear_line_on_all_ranks(store: Path, tmp_path: Path) -> None:
    """All cases in one launch: most of a launch is the start of four Pythons."""
    folders = {case: tmp_path / case.replace(" ", "-") for case in CASES}
    for folder in folders.values():
        folder.mkdir()
    commands = [command(store, folders[case]) for case, (command, _) in CASES.items()]
    before = {case: sorted(folder.rglob("*")) for case, folder in folders.items()}
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    done = mpiexec(RANKS, "-c", PROGRAM, tmp_path / "commands.json")
    *told, rest = done.err.split(f"CODES{' 2' * RANKS}\n")
    assert len(told) == len(CASES) and not rest, done.err
    for case, err in zip(CASES, told, strict=True):
        check(case, folders[case], before[case], err)


@pytest.mark.slow
def test_the_command_ends_with_code_2(store: Path, tmp_path: Path) -> None:
    case = "corrupt shard"
    words = CASES[case][0](store, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = mpiexec(2, "-m", "distgnn", *words)
    assert done.code == 2, done.err
    check(case, tmp_path, before, done.err)
