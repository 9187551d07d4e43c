"""`distgnn train` from the command line: what it accepts, and one clear line for everything else."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distgnn import cli
from distgnn.cli import console, train
from distgnn.report.numbers import size
from distgnn.store import prepare
from distgnn.store.checkpoint import BEGUN
from distgnn.store.source import Source
from distgnn.train import check
from distgnn.train.settings import Settings
from mpi_helpers import mpiexec


class Ring(Source):
    """Twelve nodes in a ring, three classes."""

    def __init__(self, **missing: Any) -> None:
        self.name, self.n, self.width, self.classes = "ring", 12, 4, 3
        self.labels, self.split = np.arange(12, dtype=np.int32) % 3, np.tile([1, 2, 3], 4).astype(np.uint8)
        vars(self).update(missing)

    def edges(self):
        yield np.arange(12), (np.arange(12) + 1) % 12, None

    def features(self, ids):
        return np.random.default_rng(0).random((12, self.width)).astype(np.float32)[ids]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("store") / "ring.dg"
    prepare(Ring(), path)
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """Run a command that is refused; return the one line of its error."""
    assert cli.main(["train", *map(str, words)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("distgnn: error: ") and len(printed.err.splitlines()) == 1
    return printed.err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--algorithm=1.5d", "--grid=rows=2,reps=1", "--sparsity-aware=auto", "--hidden=8,4", "--no-overlap"],
        ["--sampler=sage", "--fanout=5,5", "--weight-decay=0.0005", "--check=all", "--no-rescale", "--resume",
         "--checkpoint=my weights", "--keep-best=val", "--lr=0.02", "--sparsity-aware"],
    ],
)  # fmt: skip
def test_the_command_of_the_log_gives_the_same_settings(words: list[str]) -> None:
    settings = train.settings(cli.parse(["train", "my graph.dg", *words]))
    line = shlex.split(console.command_line("my graph.dg", settings, 4, "here.toml"))
    assert line[:5] == ["mpiexec", "-n", "4", "distgnn", "train"]
    again = cli.parse(line[4:])
    assert (again.store, again.machine, train.settings(again)) == ("my graph.dg", "here.toml", settings)
    assert len(line) == 8 + len({word.split("=")[0] for word in words})
    assert console.command_line("g.dg", Settings(), 1) == "distgnn train g.dg"


@pytest.mark.slow  # starts an MPI job
def test_the_last_line_says_the_bytes_of_messages(store: str, tmp_path: Path) -> None:
    for ranks in (1, 3):
        log = tmp_path / f"{ranks}.jsonl"
        done = mpiexec(
            ranks, "-m", "distgnn", "train", store, "--epochs", "3", "--log", log, "--algorithm", "auto"
        )
        assert done.code == 0, done.err
        first, *_, end = map(json.loads, log.read_text().splitlines())
        moved = f"{size(max(end['bytes']))} of messages on the busiest rank, in the whole run"
        assert (moved if ranks > 1 else "one rank, no messages") in done.out.splitlines()[-1]
        assert done.out.splitlines()[1].startswith("measured in ") and "sparse " in done.out.splitlines()[1]
        figures = first["plan"]["measured"]
        assert all(rate > 0 or (rate == 0 and "alpha" in name) for name, rate in figures.items())
        assert first["command"].endswith(f"distgnn train {store} --algorithm=auto --epochs=3 --log={log}")


def test_messages_of_a_run_that_went_on_are_those_since_then() -> None:
    for first, when in ((1, "in the whole run"), (4, "since epoch 4")):
        run: Any = SimpleNamespace(grid=SimpleNamespace(size=2), end={"bytes": [0, 2048]}, first_epoch=first)
        assert console.messages(run) == f"2 KiB of messages on the busiest rank, {when}"


def test_defaults_and_flags() -> None:
    args = cli.parse(["train", "x.dg"])
    assert (args.algorithm, args.recipe, args.hidden, args.dropout) == (None, "kipf-welling", None, None)
    chosen = train.settings(args)
    assert (chosen.hidden, chosen.epochs, chosen.dropout, chosen.bias) == ((16,), 200, 0.5, True)
    assert chosen.decays == [5e-4, 0.0]
    args = cli.parse(
        ["train", "x.dg", "--hidden", "64,32", "--weight-decay", "5e-4,0", "--no-bias", "--grid=2x2"]
    )
    assert (args.hidden, args.weight_decay, args.bias, args.grid) == ([64, 32], [5e-4, 0.0], False, "2x2")


@pytest.mark.parametrize(
    ("words", "environ", "text", "expected"),
    [
        ([], None, "", None),
        (["--sparsity-aware"], None, "", True),
        (["--sparsity-aware=auto"], "0", "", "auto"),
        (["--sparsity-aware=no"], "auto", "", False),
        ([], "1", "sparsity-aware = false", True),
        ([], "auto", "", "auto"),
        ([], None, "sparsity-aware = true", True),
        ([], None, 'sparsity_aware = "auto"', "auto"),
        ([], "", "sparsity-aware = true", False),
        (["--algorithm=2d"], "auto", "", None),  # left out: it is for others
    ],
)
def test_sparsity_aware_from_everywhere(words, environ, text, expected, tmp_path: Path, monkeypatch) -> None:
    if environ is not None:
        monkeypatch.setenv("DISTGNN_SPARSITY_AWARE", environ)
    (tmp_path / "run.toml").write_text(text)
    assert cli.parse(["train", "x.dg", *words, f"--config={tmp_path}/run.toml"]).sparsity_aware == expected


def test_settings_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        "hidden = [8, 4]\nweight-decay = [5e-4, 0, 0]\ngrid = {rows = 2, reps = 1}\nbias = true\n"
    )
    args = cli.parse(["train", "x.dg", "--config", str(file)])
    assert (args.hidden, args.weight_decay, args.grid, args.bias) == (
        [8, 4],
        [5e-4, 0.0, 0.0],
        "rows=2,reps=1",
        True,
    )


def test_it_trains_and_says_so(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On one rank, without a launcher and without a terminal: a line per epoch."""
    log = tmp_path / "log"
    assert (
        cli.main(
            ["train", store, "--epochs", "3", "--layers", "3", "--hidden", "5", "--check", "--log", str(log)]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1d on 1 rank, grid rows=1, order random: 12 nodes, 36 non-zeros, widths 4-5-5-3"
    assert [line.split()[:2] for line in lines[1:4]] == [["epoch", "1"], ["epoch", "2"], ["epoch", "3"]]
    assert lines[4].startswith("accuracy after the last update: train ")
    assert json.loads(log.read_text().splitlines()[0])["config"]["widths"] == [4, 5, 5, 3]


def test_quiet_is_quiet(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", store, "--epochs", "2", "--quiet", "--check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["grid", "replication"])
def test_one_rank_leaves_one_choice(store: str, capsys: pytest.CaptureFixture[str], name: str) -> None:
    words = ["--algorithm", "1.5d", f"--{name}", "auto", "--epochs", "1"]
    assert cli.main(["train", store, *words]) == 0 and "grid rows=1,reps=1" in capsys.readouterr().out


def test_a_failing_check_is_exit_code_1(store: str, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "apart", lambda loss, expected: float("nan"))
    assert cli.main(["train", store, "--epochs", "2", "--check", "--quiet"]) == 1
    assert capsys.readouterr().err.startswith("distgnn: error: --check: epoch 1: loss ")


def test_many_epochs_do_not_make_many_lines(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", store, "--epochs", "130"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert 50 < len(lines) < 70


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--algorithm", "4d"], "--algorithm 4d: no such algorithm; expected one of 1d, 1.5d, 2d"),
        (["--algorithm", "2d", "--grid", "2x2"], "possible (rows x cols): 1x1"),
        (["--algorithm", "2d", "--grid", "2x2x2"], "--grid 2x2x2: algorithm 2d has the axes rows, cols"),
        (["--algorithm", "2d", "--grid", "two"], "--grid two: algorithm 2d has the axes rows, cols"),
        (["--algorithm", "2d", "--grid", "rows=1,reps=1"], "--grid rows=1,reps=1: not for algorithm 2d"),
        (["--algorithm", "2d", "--grid", "0x1"], "possible (rows x cols): 1x1"),
        (["--algorithm", "1.5d", "--replication", "2"], "possible (rows x reps): 1x1"),
        (["--algorithm", "2d", "--replication", "1"], "only 1.5d does"),
        (
            ["--algorithm", "2d", "--sparsity-aware"],
            "--sparsity-aware: algorithm 2d sends whole blocks; only 1d, 1.5d and rdm can",
        ),
        (
            ["--algorithm", "3d", "--sparsity-aware=auto"],
            "--sparsity-aware auto: algorithm 3d sends whole blocks",
        ),
        (
            ["--algorithm", "2d", "--sparsity-aware=cover"],
            "--sparsity-aware cover: algorithm 2d sends whole blocks; only 1d, 1.5d and rdm can send rows",
        ),
        (["--algorithm", "rdm", "--grid", "2x2"], "--grid rows=2,cols=2: not for algorithm rdm on 1 rank"),
        (["--sparsity-aware", "always"], "--sparsity-aware: expected auto, cover, yes or no, not 'always'"),
        (["--hidden", "0"], "--hidden: expected whole numbers, at least 1, as in 64,32, not '0'"),
        (["--hidden", "16", "8"], "unrecognized arguments: 8: several numbers of an option are written 64,"),
        (["--hidden", "8,8", "--layers", "2"], "--hidden 8,8: 2 widths make 3 layers, not --layers 2"),
        (["--layers", "0"], "--layers: expected a whole number, at least 1, not '0'"),
        (["--epochs", "-1"], "--epochs: expected a whole number, at least 1, not '-1'"),
        (["--epochs", "1e3"], "--epochs: expected a whole number, at least 1, not '1e3'"),
        (["--eval-every", "-1"], "--eval-every: expected a whole number, at least 0, not '-1'"),
        (["--weight-decay", "1,x"], "--weight-decay: expected numbers, as in 5e-4,0, not '1,x'"),
        # on Linux root may write there, and cannot
        (["--checkpoint", "/proc/saved"], "--checkpoint /proc/saved: "),
        (["--lr", "fast"], "--lr: invalid float value: 'fast'"),
        (["--lr", "0"], "--lr 0.0: the step size must be a positive number"),
        (["--lr", "nan"], "--lr nan: the step size must be a positive number"),
        (["--dropout", "1"], "--dropout 1.0: must be at least 0 and less than 1"),
        (["--dropout=-0.1"], "--dropout -0.1: must be at least 0"),
        (
            ["--weight-decay", "1,2,3"],
            "--weight-decay 1.0,2.0,3.0: give one for all 2 layers or one for each",
        ),
        (["--weight-decay=-1"], "--weight-decay -1.0: must be numbers that are at least 0"),
        (["--momentum", "0.9"], "only --optimizer sgd has a momentum"),
        (["--optimizer", "lion"], "--optimizer: invalid choice: 'lion'"),
        (["--order", "metis-8"], "no order 'metis-8'; it has random; prepare with "),
        (
            ["--order", "double"],
            "no order 'double'; it has random; prepare with --order double makes one that has it",
        ),
        (["--backend", "torch"], "--backend: invalid choice: 'torch'"),
        (["--resume"], "--resume: say with --checkpoint DIR where to go on from"),
        (["--checkpoint-every", "2"], "--checkpoint-every 2: say with --checkpoint DIR where to save"),
        (["--log", "nowhere/log"], "--log nowhere/log: directory"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_bad_settings(store: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in refused(capsys, store, *words)


def test_a_store_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{tmp_path}/missing.dg: no such store" in refused(capsys, tmp_path / "missing.dg")
    assert "not a distgnn store" in refused(capsys, tmp_path)


@pytest.mark.parametrize(
    ("missing", "what"),
    [({"width": 0}, "has no features, which training needs; prepare it with --features FILE"),
     ({"labels": None, "classes": 0}, "prepare it with --labels FILE"),
     ({"split": None}, "prepare it with --split 0.6/0.2/0.2"),
     ({"split": np.full(12, 3, np.uint8)}, "no node is in the training split")],
    ids=["features", "labels", "split", "train"],
)  # fmt: skip
def test_a_store_without_what_training_needs(
    missing, what, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(Ring(**missing), tmp_path / "poor.dg")
    assert what in refused(capsys, tmp_path / "poor.dg")


def test_nothing_existing_is_overwritten(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, saved = tmp_path / "log", tmp_path / "saved"
    log.write_text("precious\n")
    assert f"--log {log}: exists; --force replaces it" in refused(capsys, store, "--log", log)
    saved.mkdir()
    (saved / "thesis.tex").write_text("precious\n")
    assert f"--checkpoint {saved}: exists" in refused(capsys, store, "--checkpoint", saved)
    assert "not a distgnn checkpoint" in refused(capsys, store, "--checkpoint", saved, "--force")
    assert "has no manifest" in refused(capsys, store, "--checkpoint", saved, "--resume")
    assert "no such checkpoint" in refused(capsys, store, "--checkpoint", tmp_path / "none", "--resume")
    assert log.read_text() == "precious\n" and [path.name for path in saved.iterdir()] == ["thesis.tex"]
    assert cli.main(["train", store, "--log", str(log), "--force", "--epochs", "1"]) == 0
    assert log.read_text().startswith('{"event": "run"')


@pytest.mark.parametrize("setting", ["DISTGNN_CUDA_AWARE=maybe", "DISTGNN_SPMM=foo", "DISTGNN_HOST_ISA=foo"])
@pytest.mark.slow
def test_a_refused_environment_leaves_the_log(setting: str, store: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("precious\n")
    env = dict([setting.split("=")])
    done = mpiexec(0, "-m", "distgnn", "train", store, "--epochs", "1", "--log", log, "--force", env=env)
    assert done.code == 2 and f"distgnn: error: {setting}: " in done.err and len(done.err.splitlines()) == 1
    assert log.read_text() == "precious\n"


def test_a_store_with_nothing_to_train_on_leaves_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # the training nodes have none
    labels, log = np.where(np.arange(12) % 3 == 0, -1, 1).astype(np.int32), tmp_path / "log"
    prepare(Ring(labels=labels), tmp_path / "poor.dg")
    log.write_text("precious\n")
    assert "no node of the training split has a label" in refused(
        capsys, tmp_path / "poor.dg", "--log", log, "--force"
    )
    assert log.read_text() == "precious\n"


def test_force_replaces_what_an_interrupted_first_save_left(store: str, tmp_path: Path, capsys) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "000000-00000.h5").write_bytes(b"half")
    (saved / BEGUN).touch()
    words = ["train", store, "--checkpoint", str(saved)]
    assert cli.main([*words, "--force", "--epochs", "1"]) == 0
    assert cli.main([*words, "--resume", "--epochs", "2"]) == 0


def test_a_refused_run_writes_no_log(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, store, "--log", tmp_path / "log", "--algorithm", "2d", "--grid", "3x3")
    refused(capsys, store, "--log", tmp_path / "log", "--checkpoint", tmp_path / "none", "--resume")
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
def test_ranks_end_together(store: str, tmp_path: Path) -> None:
    """Under a launcher: a good run ends with 0 on all ranks; test_bad_input.py has the bad ones."""
    good = mpiexec(
        2,
        "-m",
        "distgnn",
        "train",
        store,
        "--epochs",
        "2",
        "--algorithm",
        "3d",
        "--check",
        "--log",
        tmp_path / "log",
    )
    assert good.code == 0, good.err
    assert good.out.count("accuracy after the last update") == 1
    assert len(json.loads((tmp_path / "log").read_text().splitlines()[-1])["words"]) == 2


def test_epochs_of_more_than_twice_their_plan_are_told() -> None:
    (line,) = console.off_plan(1.0, [0.1, 1.9, 2.1, 9.0])
    assert "an epoch takes 2.1 s, 2.1 times its plan of 1 s" in line and "calibrate" in line
    for seconds in ([9.0, 1.0, 2.0, 9.0], [], [9.0], [9.0] * 3, [9.0] * 5):
        assert not console.off_plan(1.0, seconds)


def test_a_run_that_is_slower_than_its_plan_says_so_once(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from distgnn.plan.machine import read

    machine = tmp_path / "fast.toml"
    machine.write_text(read("infiniband-cpu").toml().replace("update = 0.001", "update = 1e-09"))
    words = ["train", store, "--algorithm", "auto", "--machine", str(machine), "--hidden", "4"]
    for epochs, times in ((6, 1), (3, 0)):
        assert cli.main([*words, "--epochs", str(epochs)]) == 0
        assert capsys.readouterr().err.count("times its plan of") == times
