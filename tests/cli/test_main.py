"""The frame of the command line: help without MPI, usage errors once for all ranks, exit codes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from distgnn import __version__, cli
from distgnn.errors import UserError
from distgnn.plan import machine
from mpi_helpers import clean_environment, mpiexec

HEAVY = ("mpi4py", "numpy", "scipy", "h5py", "matplotlib", "cupy")
BLOCKED = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY}:
            raise ImportError(name + " must not be imported")
sys.meta_path.insert(0, Block())
from distgnn.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)])
def test_help_needs_neither_mpi_nor_numpy(words: list[str]) -> None:
    command = [sys.executable, "-c", BLOCKED, *words]
    result = subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_its_module_and_a_line_of_help(name: str) -> None:
    module = cli.command_module(name)
    assert module.HELP
    assert "\n" not in module.HELP
    assert module.HELP in " ".join(cli.overview().format_help().split())
    assert callable(module.run)


def test_help_tells_defaults_as_they_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    helps = {name: cli.command_parser(name).format_help() for name in cli.COMMANDS}
    for line in ("(docs/training.md) (default: kipf-welling)", "(default: 0.01)", "and samples (default: 0)"):
        assert line in helps["train"]
    assert "do not add missing self-loops\n" in helps["prepare"]
    assert "(default: 16 64 128)" in helps["bench"]
    assert f"{', '.join(machine.known())}, or a TOML file" in helps["plan"]
    assert not any("(default: )" in text for text in helps.values())
    parser = cli.Parser()
    parser.add_argument("--bias", action=argparse.BooleanOptionalAction, default=True, help="a bias")
    parser.add_argument("--share", default="50%", help="of it")
    assert "a bias (default: yes)" in parser.format_help() and "of it (default: 50%)" in parser.format_help()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"distgnn {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["tarin"], "invalid choice: 'tarin'"),
        (["algorithms", "--jsno"], "arguments: --jsno; did you mean --json?; see distgnn algorithms --help"),
        (["algorithms", "--js"], "unrecognized arguments: --js"),
        (["algorithms", "--json", "--markdown"], "not allowed with argument --json"),
        (["algorithms", "--config", "/nowhere/x.toml"], "--config /nowhere/x.toml: cannot read it"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r".") as error:
        cli.parse(words)
    assert message in str(error.value)
    assert cli.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"distgnn: error: {error.value}\n"


@pytest.mark.parametrize("words", [["--nonsense"], ["algorithms", "--nonsense"]])
@pytest.mark.slow
def test_bad_usage_under_mpiexec_is_told_once(words: list[str]) -> None:
    result = mpiexec(3, "-m", "distgnn", *words)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith("distgnn: error: ")


@pytest.mark.slow
def test_help_and_output_under_mpiexec_are_printed_once() -> None:
    result = mpiexec(3, "-m", "distgnn", "algorithms", "--help")
    assert result.code == 0
    assert result.out.count("usage:") == 1


@pytest.mark.slow
def test_module_and_function_are_the_same_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["algorithms"]) == 0
    assert mpiexec(0, "-m", "distgnn", "algorithms").out == capsys.readouterr().out


def test_no_mpi_library_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_args: object) -> None:
        raise RuntimeError("cannot load MPI library\nlibmpi.so: cannot open shared object file")

    monkeypatch.setattr(cli.command_module("algorithms"), "run", fail)
    assert cli.main(["algorithms"]) == 2
    assert "no MPI library found" in capsys.readouterr().err


def test_a_library_call_without_mpi_ends_in_one_line() -> None:
    program = "import distgnn as dg; print(dg.UserError.__name__); dg.fit"
    alone = {**os.environ, "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    ended = subprocess.run([sys.executable, "-c", program], env=alone, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stdout.split() == ["UserError"]
    last = "distgnn.errors.UserError: no MPI library found; run python -m pip install mpich"
    assert ended.stderr.splitlines()[-1].startswith(last) and ended.stderr.count("File ") == 2
