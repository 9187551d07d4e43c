"""Flag over environment over file over default, with the flag's own types and choices."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from distgnn.cli import Parser, config
from distgnn.errors import UserError

COMMANDS = ("train", "prepare")


def parse(words: list[str], environ: dict[str, str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="distgnn train")
    parser.add_argument("store")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", "--wd", type=float, default=0.0)
    parser.add_argument("--algorithm", choices=["1d", "2d"], default="1d")
    parser.add_argument("--grid", metavar="AXIS=SIZE,...")
    parser.add_argument("--fanout", default="10,10")
    parser.add_argument("--widths", type=int, nargs="+", default=[16])
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--no-bias", dest="bias", action="store_false")
    parser.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, required=True)
    config.add_option(parser)
    config.apply(parser, "train", words, environ or {}, COMMANDS)
    return parser.parse_args(words)


def written(folder: Path, text: str) -> str:
    (folder / "run.toml").write_text(text)
    return str(folder / "run.toml")


def test_precedence(tmp_path: Path) -> None:
    file = written(tmp_path, "lr = 0.3\nweight-decay = 0.3\nepochs = 3\n")
    environ = {"DISTGNN_LR": "0.2", "DISTGNN_WEIGHT_DECAY": "0.2"}
    args = parse(["x.dg", "--config", file, "--lr=0.1"], environ)
    assert (args.lr, args.weight_decay, args.epochs, args.algorithm) == (0.1, 0.2, 3, "1d")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("lr = 1e-4", "lr", 1e-4),
        ("weight_decay = 5e-4", "weight_decay", 5e-4),
        ('algorithm = "2d"', "algorithm", "2d"),
        ("grid = {rows = 4, reps = 2}", "grid", "rows=4,reps=2"),
        ("fanout = [15, 10, 5]", "fanout", "15,10,5"),
        ("widths = [64, 32]", "widths", [64, 32]),
        ("force = true", "force", True),
        ("force = false", "force", False),
        ("no-bias = true", "bias", False),
        ("overlap = false", "overlap", False),
        ("overlap = true", "overlap", True),
        ("[train]\nlr = 0.5\n[prepare]\nunknown-here = 1", "lr", 0.5),
        ("lr = 0.1\n[train]\nlr = 0.5", "lr", 0.5),
    ],
)
def test_values_of_a_file(tmp_path: Path, text: str, name: str, value: Any) -> None:
    assert getattr(parse(["x.dg", "--epochs=1", f"--config={written(tmp_path, text)}"]), name) == value


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DISTGNN_FORCE", "yes", "force", True),
        ("DISTGNN_FORCE", "0", "force", False),
        ("DISTGNN_OVERLAP", "false", "overlap", False),
        ("DISTGNN_WIDTHS", "64 32", "widths", [64, 32]),
        ("DISTGNN_LR", "-1e-3", "lr", -1e-3),
    ],
)
def test_values_of_the_environment(variable: str, text: str, name: str, value: Any) -> None:
    assert getattr(parse(["x.dg", "--epochs=1"], {variable: text}), name) == value


def test_the_environment_can_switch_off_what_the_file_switches_on(tmp_path: Path) -> None:
    file = written(tmp_path, "force = true")
    assert parse(["x.dg", "--epochs=1", "--config", file], {"DISTGNN_FORCE": "off"}).force is False
    assert parse(["x.dg", "--epochs=1"], {"DISTGNN_CONFIG": file}).force is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning-rate = 1", "run.toml: unknown key 'learning-rate' for train; known keys: algorithm, epochs, fanout, force"),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("[infer]\nlr = 1", "unknown key 'infer'"),
        ("lr = 'fast'", "run.toml: argument --lr: invalid float value: 'fast'"),
        ("algorithm = '4d'", "run.toml: argument --algorithm: invalid choice: '4d'"),
        ("force = 3", "run.toml: --force is a switch: true or false, not 3"),
        ("lr = ", "not valid TOML"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(["x.dg", "--epochs=1", "--config", written(tmp_path, text)])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_environment_is_named() -> None:
    with pytest.raises(UserError, match="DISTGNN_EPOCHS: argument --epochs: invalid int value: 'ten'"):
        parse(["x.dg"], {"DISTGNN_EPOCHS": "ten"})
