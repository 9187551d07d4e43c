"""``distgnn calibrate``: it prints its fits, and writes a file that plans read, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distgnn import cli
from distgnn.cli.calibrate import table
from distgnn.plan import machine
from distgnn.plan.calibrate import Calibration
from distgnn.plan.fit import Fit, Measurement
from mpi_helpers import mpiexec


@pytest.mark.slow
def test_several_ranks_write_one_machine(tmp_path: Path) -> None:
    out = tmp_path / "here.toml"
    done = mpiexec(2, "-m", "distgnn", "calibrate", "--seconds", "0.1", "--out", out, "--backend", "numpy")
    assert done.code == 0, done.err
    heads, *lines = done.out.splitlines()
    assert heads.split()[:4] == ["kind", "level", "samples", "R²"]
    told = [line.split() for line in lines]
    for kind in ("spmm", "gemm", "bcast", "alltoallv", "allreduce", "overlap", "epochs"):
        assert any(words and words[0] == kind for words in told), kind
    read = machine.read(out)
    assert read.name == "here" and read.levels[-1].kinds["bcast"].alpha >= 0


def test_a_lone_rank_prints_its_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["calibrate", "--seconds", "0.05", "--name", "mine", "--backend", "numpy"]) == 0
    table, text = capsys.readouterr().out.split('\nname = "mine"')
    assert "one rank" in table
    (tmp_path / "mine.toml").write_text(f'name = "mine"{text}')
    mine = machine.read(tmp_path / "mine.toml")
    assert mine.name == "mine" and mine.levels[0].bandwidth == mine.passes.bandwidth / 2
    assert cli.main(["calibrate", "--seconds", "0.05", "--json", "--backend", "numpy"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(one["samples"] and one["median_residual"] >= 0 for one in told["fits"])
    (tmp_path / "json.toml").write_text(told["machine"])
    assert machine.read(tmp_path / "json.toml").name == "measured"


def test_fits_are_shown_in_units_of_people() -> None:
    values = {"alpha": 2e-6, "row": 3e-9, "bandwidth": 5e9, "injection": 1e15, "flops": 2e10, "progress": 0.5}
    one = Fit("bcast", "node", {"cache": 2.0**21} | values, [Measurement("", 2.0, [])], [3.0])
    line = table(Calibration(machine.read("perlmutter"), [one], [])).splitlines()[1]
    told = "2 us, row 3 ns, bandwidth 5 GB/s, injection no limit found, flops 20 GFLOP/s, progress 50%"
    assert line.split() == f"bcast node 1 - 50.0% 50.0% cache 2 MiB, alpha {told}".split()


def test_a_file_is_not_replaced_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.toml"
    out.write_text("mine")
    words = ["calibrate", "--seconds", "0.05", "--backend", "numpy", "--out", str(out)]
    assert cli.main(words) == 2
    assert "--out" in (err := capsys.readouterr().err) and "exists" in err and out.read_text() == "mine"
    assert cli.main([*words, "--force"]) == 0
    assert machine.read(out).name == "m"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "0"], "--seconds 0.0: must be a positive number"),
        (["--seconds", "nan"], "--seconds nan: must be a positive number"),
        (["--seconds", "soon"], "argument --seconds: invalid float value: 'soon'"),
        (["--backend", "abacus"], "argument --backend: invalid choice: 'abacus'"),
        (["--out", "/nowhere/m.toml"], "--out /nowhere/m.toml: directory /nowhere does not exist"),
        (["here.toml"], "unrecognized arguments: here.toml"),
    ],
)
def test_bad_arguments(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["calibrate", *words]) == 2
    assert message in capsys.readouterr().err
