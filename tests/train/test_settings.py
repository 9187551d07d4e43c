"""Settings from Python and from the command line, and runs without a command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from distgnn import cli
from distgnn.errors import ArgumentError
from distgnn.layout import written
from distgnn.operators import grids
from distgnn.store import Store
from distgnn.train import Run, Settings
from distgnn.train.resolve import resolved
from distgnn.train.ways import parse_grid

from .stores import events, run, small_store


def config(settings: Settings) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def test_defaults_are_those_of_the_command_line() -> None:
    args = cli.parse(["train", "x.dg"])
    assert config(cli.command_module("train").settings(args)) == config(Settings())


def test_every_setting_has_a_flag_with_its_help() -> None:
    flags = {action.dest: action for action in cli.command_parser("train")._actions}
    for field in dataclasses.fields(Settings):
        assert flags[field.name].help and flags[field.name].option_strings
        assert not field.metadata or field.metadata["help"] == flags[field.name].help


def test_numbers_of_numpy_and_paths_are_taken() -> None:
    made = Settings(lr=np.float32(0.5), hidden=[np.int64(3)], fanout=np.arange(2, 4), log=Path("x"))  # type: ignore
    assert (made.lr, made.hidden, made.fanout, made.log) == (0.5, [3], [2, 3], "x")
    assert json.loads(json.dumps(dataclasses.asdict(made)))["hidden"] == [3]


def test_types_of_numpy_are_taken() -> None:
    for dtype in (np.float64, np.dtype("float64"), "float64"):
        made = Settings(dtype=dtype)  # type: ignore[arg-type]
        assert made.dtype == "float64" and config(made)["dtype"] == "float64"
    with pytest.raises(ArgumentError, match="dtype=float16: expected one of float32, float64"):
        resolved(Settings(dtype=np.float16), 1)  # type: ignore[arg-type]


def test_settings_stay_as_they_were_made() -> None:
    asked = Settings(sampler="ladies", hidden=(8, 4))
    done = resolved(asked, ranks=12)
    assert (done.model, done.algorithm, done.replication) == ("gcn", "1.5d", 1)
    assert (done.fanout, done.bulk, done.batches_per_update) == ([512] * 3, 4, 12)
    assert (done.importance, done.rescale, done.decays) == ("zou", True, [5e-4, 0.0, 0.0])
    assert asked == Settings(sampler="ladies", hidden=(8, 4))
    with pytest.raises(dataclasses.FrozenInstanceError):
        asked.lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "argument", "message"),
    [
        ({"epochs": 0}, "epochs", "epochs=0: expected a whole number, at least 1"),
        ({"dtype": "int8"}, "dtype", "dtype=int8: expected one of float32, float64"),
        ({"sampler": "walk"}, "sampler", "sampler=walk: expected one of sage, shadow, ladies"),
        ({"resume": True}, "resume", "resume=True: say with checkpoint=DIR where to go on from"),
        ({"sampler": "sage", "algorithm": "2d"}, "algorithm", "algorithm=2d: excludes sampler=sage"),
        ({"layers": 10**5}, "layers", "at most 10000 layers"),
        ({"hidden": [4] * 10**5}, "hidden", "at most 10000 layers"),
        ({"hidden": (8, 8), "layers": 2}, "hidden", "2 widths make 3 layers, not layers=2"),
        ({"lr": "0.1"}, "lr", "lr='0.1': expected a number"),
        ({"epochs": True}, "epochs", "epochs=True: expected a whole number, at least 1"),
        ({"hidden": "64"}, "hidden", "hidden='64': expected a whole number or several"),
        ({"weight_decay": [0.1, None]}, "weight_decay", "expected a number or several"),
        ({"bias": 1}, "bias", "bias=1: expected True or False"),
        ({"log": 3}, "log", "log=3: expected a text"),
        ({"grid": 4}, "grid", "grid=4: expected a text or a mapping"),
        ({"warmup": 5, "epochs": 5}, "warmup", "warmup=5: must be less than epochs=5"),
        ({"sampler": "ladies", "residual": True}, "residual", "cluster and shadow keep, not ladies"),
    ],
)
def test_errors_name_arguments(settings: dict[str, Any], argument: str, message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        resolved(Settings(**settings), ranks=1)
    assert error.value.argument == argument and message in str(error.value) and "--" not in str(error.value)


def test_grids_are_texts_or_mappings() -> None:
    assert parse_grid("2x3", "2d") == parse_grid("rows=2,cols=3", "2d") == {"rows": 2, "cols": 3}
    assert parse_grid({"rows": 2}, "2d") == {"rows": 2} and parse_grid(None, "2d") is None
    for given in ("z=2,x=3,y=4", {"z": 2, "x": 3, "y": 4}):
        assert list((parse_grid(given, "3d") or {}).items()) == [("z", 2), ("x", 3), ("y", 4)]
    with pytest.raises(ArgumentError, match="grid=cols=2,cols=3: algorithm 2d has the axes rows, cols"):
        parse_grid("cols=2,cols=3", "2d")


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_a_run_hands_out_records_and_prints_nothing(comm, shared_tmp_path, capsys) -> None:
    store, logs = (
        small_store(shared_tmp_path, comm),
        [shared_tmp_path / name for name in ("python", "command")],
    )
    grid = grids("2d", comm.Get_size())[0]  # else the command line would plan it
    settings = Settings(algorithm="2d", grid=grid, epochs=3, hidden=[5], log=str(logs[0]), check=True)
    job = Run(Store(store).path, settings, comm)
    assert not job.end
    records = list(job.train())
    assert [record["epoch"] for record in records] == [1, 2, 3] and job.end["loss"] == records[-1]["loss"]
    assert job.check is not None and job.check.largest < 1e-4
    assert capsys.readouterr().out == ""
    words = ["--algorithm", "2d", "--grid", written(grid), "--epochs", 3, "--hidden", 5, "--check", "--quiet"]
    run(comm, store, *words, "--log", logs[1])
    comm.Barrier()
    if comm.Get_rank() == 0:
        first, second = (events(log, "run")[0]["config"] for log in logs)
        assert first | {"log": "", "quiet": True} == second | {"log": ""}
        losses = [[epoch["loss"] for epoch in events(log, "epoch")] for log in logs]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    comm.Barrier()


@pytest.mark.ranks(1, 2)
def test_advice_names_arguments(comm, shared_tmp_path) -> None:
    store, saved = small_store(shared_tmp_path, comm), shared_tmp_path / "saved"
    settings = Settings(epochs=1, checkpoint=str(saved))
    list(Run(store, settings, comm).train())
    with pytest.raises(dg.UserError, match="resume=True goes on from it, force=True replaces it"):
        Run(store, settings, comm)
    with pytest.raises(dg.UserError, match="--resume goes on from it, --force replaces it"):
        run(comm, store, "--epochs", 1, "--checkpoint", saved)


def test_log_trace_and_checkpoint_are_files_of_their_own(tmp_path: Path) -> None:
    store, file = small_store(tmp_path), tmp_path / "kept"
    for first, second in (("checkpoint", "log"), ("log", "trace"), ("checkpoint", "trace")):
        with pytest.raises(ArgumentError, match=f"{second}=.*: is what {first}=.*kept names, too"):
            Run(store, Settings(epochs=1, **{first: file, second: tmp_path / "." / "kept"}))  # type: ignore
    assert not file.exists()
