"""What the README tells a new user to type works as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mpi_helpers import mpiexec

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_commands_and_the_operators_run_as_written(tmp_path):
    """The command-line example, then the minibatch commands and the Python examples on the store that it
    made, on four ranks.
    """
    commands = next(block for block in blocks("sh") if "distgnn generate" in block)
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == ".":
            continue  # activates the environment this test runs in
        ranks = 0
        if words[0] == "mpiexec":
            ranks, words = int(words[2]), words[3:]
        assert words[0] == "distgnn"
        if "generate" in words:
            words[words.index("--nodes") + 1] = "500"
        done = mpiexec(
            ranks, "-m", *words, *(["--epochs", "2"] if "train" in words else []), cwd=tmp_path, timeout=120
        )
        assert done.code == 0, (line, done.err)
    for line in next(block for block in blocks("sh") if "--sampler" in block).splitlines():
        words = shlex.split(line)
        words[words.index("--batch-size") + 1] = "32"
        done = mpiexec(int(words[2]), "-m", *words[3:], "--epochs", "2", cwd=tmp_path, timeout=120)
        assert done.code == 0, (line, done.err)
    (tmp_path / "examples.py").write_text("".join(blocks("python")))
    done = mpiexec(4, "examples.py", cwd=tmp_path, timeout=120)
    assert done.code == 0, done.err


def test_files_that_the_readme_points_to_exist():
    root = Path(__file__).parent.parent
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert targets and all((root / target).exists() for target in targets)
