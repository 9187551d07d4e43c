"""What the README tells a new user to type works as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import distgnn as dg
from distgnn import cli
from mpi_helpers import mpiexec

README = (Path(__file__).parent.parent / "README.md").read_text()


ON_FOUR = """\
import runpy
from distgnn import cli
for words in {commands}:
    assert cli.main(words) == 0, words
runpy.run_path("examples.py")
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_commands_and_the_operators_run_as_written(tmp_path, monkeypatch):
    """The command-line example, then the minibatch commands and the Python examples on the store that it
    made: all that is for one process in one, and all that is for four ranks on four.
    """
    monkeypatch.chdir(tmp_path)
    commands = next(block for block in blocks("sh") if "distgnn generate" in block).splitlines()
    minibatches = next(block for block in blocks("sh") if "--sampler" in block).splitlines()
    on_four = []
    for line in [*commands, *minibatches]:
        words = shlex.split(line, comments=True)
        if words[0] == ".":
            continue  # activates the environment this test runs in
        for flag, value in (("--nodes", "500"), ("--batch-size", "32")):
            if flag in words:
                words[words.index(flag) + 1] = value
        if words[:3] == ["mpiexec", "-n", "4"]:
            assert words[3] == "distgnn"
            on_four.append([*words[4:], *(["--epochs", "2"] if words[4] == "train" else [])])
        else:
            assert words[0] == "distgnn" and cli.main(words[1:]) == 0, line
    assert len(on_four) == 2 + len(minibatches)
    (tmp_path / "examples.py").write_text(
        "".join(block for block in blocks("python") if "dg.prepare" not in block)
    )
    (tmp_path / "all.py").write_text(ON_FOUR.format(commands=on_four))
    done = mpiexec(4, "all.py", cwd=tmp_path, timeout=240)
    assert done.code == 0, done.err


@pytest.mark.slow
def test_own_graphs_are_prepared_as_written(tmp_path, monkeypatch):
    edges, y = np.array([[0, 1, 2, 3], [1, 2, 3, 0]]), np.array([0, 1, 0, 1])
    X = np.eye(4)
    np.savetxt(tmp_path / "edges.csv", edges.T, "%d", ",", header="source,target", comments="")
    np.savetxt(
        tmp_path / "labels.csv", np.stack([range(4), y], 1), "%d", ",", header="node,label", comments=""
    )
    np.save(tmp_path / "x.npy", X)
    command = next(block for block in blocks("sh") if "edges.csv" in block)
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(command, comments=True)[1:]) == 0
    (tmp_path / "graph.dg").rename(tmp_path / "by-command.dg")
    code = next(block for block in blocks("python") if "dg.prepare" in block)
    exec(code, {"dg": dg, "edge_index": edges, "X": X, "y": y})
    stores = [dg.Store(tmp_path / name) for name in ("by-command.dg", "graph.dg")]
    for rows in ([store.labels(None, (0, 4)).tolist() for store in stores], [s.n for s in stores]):
        assert rows[0] == rows[1]


def test_files_that_the_readme_points_to_exist():
    root = Path(__file__).parent.parent
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert targets and all((root / target).exists() for target in targets)
