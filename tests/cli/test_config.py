"""Flag over environment over file over default, with the flag's own types and choices."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from distgnn import cli
from distgnn.cli import Parser, config
from distgnn.errors import ArgumentError, UserError

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
    parser.add_argument("--undirected", action="store_true")
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
        ("undirected = true", "undirected", True),
        ("undirected = false", "undirected", False),
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
        ("DISTGNN_UNDIRECTED", "yes", "undirected", True),
        ("DISTGNN_UNDIRECTED", "0", "undirected", False),
        ("DISTGNN_OVERLAP", "false", "overlap", False),
        ("DISTGNN_WIDTHS", "64 32", "widths", [64, 32]),
        ("DISTGNN_LR", "-1e-3", "lr", -1e-3),
    ],
)
def test_values_of_the_environment(variable: str, text: str, name: str, value: Any) -> None:
    assert getattr(parse(["x.dg", "--epochs=1"], {variable: text}), name) == value


def test_the_environment_can_switch_off_what_the_file_switches_on(tmp_path: Path) -> None:
    file = written(tmp_path, "undirected = true")
    environ = {"DISTGNN_UNDIRECTED": "off"}
    assert parse(["x.dg", "--epochs=1", "--config", file], environ).undirected is False
    assert parse(["x.dg", "--epochs=1"], {"DISTGNN_CONFIG": file}).undirected is True


def settable(command: str) -> dict[str, argparse.Action]:
    """Return the flags of a command that are names of files, or let one be replaced."""
    flags = config.settable(cli.command_parser(command))
    files = re.compile("FILE|DIR|PATH")
    return {n: a for n, a in flags.items() if n in ("force", "resume") or files.search(str(a.metavar))}


INPUTS = {"prepare": {"features", "labels", "node-list"}, "train": {"machine"}, "predict": {"checkpoint"},
          "report": {"trace"}}  # fmt: skip


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_file_cannot_say_what_is_written_or_replaced(tmp_path: Path, command: str) -> None:
    places = [a.metavar or "spmm" for a in cli.command_parser(command)._actions if not a.option_strings]
    for name, action in settable(command).items():
        value = "true" if action.nargs == 0 else f"'{tmp_path}/victim'"
        for text in (f"{name} = {value}", f"[{command}]\n{name} = {value}"):
            words = [command, *places, f"--config={written(tmp_path, text)}"]
            if name in INPUTS.get(command, ()):
                assert config.apply(cli.command_parser(command), command, words[1:], {}, cli.COMMANDS).sources
                continue
            with pytest.raises(UserError, match=f"run.toml: {name}: .* give --{name} on the command line"):
                cli.parse(words)


@pytest.mark.parametrize("value", ["1", "yes", "0", ""])
def test_the_environment_cannot_force(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("DISTGNN_LOG", "log.jsonl")  # the user's own
    assert cli.parse(["train", "x.dg"]).log == "log.jsonl"
    monkeypatch.setenv("DISTGNN_FORCE", value)
    with pytest.raises(UserError, match="^DISTGNN_FORCE: is for the command line alone"):
        cli.parse(["train", "x.dg"])
    assert cli.parse(["info", "x.dg"]).command == "info"  # which replaces nothing


def test_byte_order_marks_of_editors(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbfepochs = 2\r\n")
    assert parse(["x.dg", f"--config={file}"]).epochs == 2
    file.write_bytes("epochs = 2".encode("utf-16"))
    with pytest.raises(UserError, match="byte order mark of UTF-16; save it as UTF-8"):
        parse(["x.dg", f"--config={file}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "learning-rate = 1",
            "run.toml: unknown key 'learning-rate' for train; did you mean lr?; known keys: algorithm",
        ),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("epoch = 1", "unknown key 'epoch' for train; did you mean epochs?; known keys: "),
        (
            "[infer]\nlr = 1",
            "run.toml: unknown table [infer]; tables are named like the commands: prepare, train",
        ),
        ("[trian]\nlr = 1", "unknown table [trian]; did you mean [train]?; tables"),
        (
            "weight-decay = 1\nweight_decay = 2",
            "run.toml: weight-decay and weight_decay are the same setting; give one of them",
        ),
        ("lr = 'fast'", "run.toml: argument --lr: invalid float value: 'fast'"),
        ("algorithm = '4d'", "run.toml: argument --algorithm: invalid choice: '4d'"),
        ("undirected = 3", "run.toml: --undirected is a switch: true or false, not 3"),
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


def algorithm(
    words: list[str], environ: dict[str, str], text: str, folder: Path
) -> tuple[argparse.Namespace, list[str]]:
    parser = Parser(prog="distgnn train")
    for flag in ("--algorithm", "--grid", "--replication"):
        parser.add_argument(flag)
    parser.set_defaults(algorithm="1d")
    config.add_option(parser)
    words = [*words, f"--config={written(folder, text)}"]
    left_out = config.apply(parser, "train", words, environ, COMMANDS).warnings
    return parser.parse_args(words), left_out


@pytest.mark.parametrize(
    ("words", "environ", "text", "grid", "replication", "lines"),
    [
        (["--algorithm=2d"], {}, "algorithm = '1.5d'\nreplication = 2", None, None, 1),
        (["--algorithm=2d"], {}, "replication = 2", None, None, 1),
        (["--algorithm=1.5d"], {}, "replication = 2", None, "2", 0),
        (["--algorithm=2d", "--grid=2x2"], {}, "algorithm = '3d'\ngrid = '2x2x2'", "2x2", None, 0),
        (["--algorithm=2d"], {}, "algorithm = '2d'\ngrid = '2x2'", "2x2", None, 0),
        ([], {"DISTGNN_ALGORITHM": "2d"}, "grid = '4'", None, None, 1),
        ([], {"DISTGNN_ALGORITHM": "2d", "DISTGNN_GRID": "2x2"}, "grid = '4'", "2x2", None, 1),
        (["--algorithm=3d"], {"DISTGNN_GRID": "2x2"}, "algorithm = '2d'", None, None, 1),
        (["--grid=2x2"], {"DISTGNN_ALGORITHM": "2d"}, "algorithm = '1d'", "2x2", None, 0),
        ([], {}, "replication = 2", None, "2", 0),
    ],
)
def test_a_grid_of_another_algorithm_does_not_block(
    words, environ, text, grid, replication, lines, tmp_path: Path
) -> None:
    args, left_out = algorithm(words, environ, text, tmp_path)
    assert (args.grid, args.replication, len(left_out)) == (grid, replication, lines)


def test_what_is_left_out_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "x.dg", "--algorithm=2d", f"--config={written(tmp_path, 'replication = 2')}"]
    cli.agreed(words, config.Origins())
    told = "run.toml: replication is for algorithm 1.5d and is left out, as 2d was chosen\n"
    assert capsys.readouterr().err == f"distgnn: warning: {tmp_path}/{told}"


def test_messages_name_where_a_setting_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("DISTGNN_DROPOUT", "3")
    assert cli.main(["train", "x.dg"]) == 2
    assert (
        "--dropout 3.0: must be at least 0 and less than 1 (--dropout is set by DISTGNN_DROPOUT)"
        in capsys.readouterr().err
    )
    assert cli.main(["train", "x.dg", "--dropout=2"]) == 2
    assert "set by" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ArgumentError("weight_decay", [1.0, 2.0], "give one"), "--weight-decay 1.0,2.0: give one"),
        (ArgumentError("resume", True, "needs checkpoint=DIR."), "--resume: needs --checkpoint DIR."),
        (ArgumentError("rescale", "False", "is for model=gcn; so"), "--no-rescale: is for --model gcn; so"),
        (ArgumentError("directed", True, "is for rmat and sbm"), "--directed: is for rmat and sbm"),
        (
            ArgumentError("self_loops", False, "grid=2x2 (order=a,b)"),
            "--no-self-loops: --grid 2x2 (--order a,b)",
        ),
        (ArgumentError("grid", "4", "write 2x2 or rows=2,cols=2"), "--grid 4: write 2x2 or rows=2,cols=2"),
        (UserError("/runs/lr=1/x.dg: prepare it with split=0.6/0.2/0.2, force=True"),
         "/runs/lr=1/x.dg: prepare it with --split 0.6/0.2/0.2, --force"),
        (UserError("DISTGNN_SPMM=foo: unknown"), "DISTGNN_SPMM=foo: unknown"),
    ],
)  # fmt: skip
def test_arguments_become_flags(error: UserError, text: str) -> None:
    parsers = map(cli.command_parser, cli.COMMANDS)
    assert str(config.Origins().explain(error, parsers)) == text


def test_arguments_by_place_have_no_dashes() -> None:
    parsers, own = [cli.command_parser(name) for name in cli.COMMANDS], cli.command_parser("export")
    error = ArgumentError("out", "e.txt", "exists; use force=True")
    assert str(config.Origins().explain(error, parsers, own)) == "OUT e.txt: exists; use --force"
    own = cli.command_parser("predict")
    assert str(config.Origins().explain(error, parsers, own)) == "--out e.txt: exists; use --force"


def test_unknown_variables_are_told(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("DISTGNN_EPOCH", "3")
    monkeypatch.setenv("DISTGNN_NODES", "3")  # of another command
    monkeypatch.setenv("DISTGNN_SPMM", "scipy")
    cli.agreed(["train", "x.dg"], config.Origins())
    assert capsys.readouterr().err == (
        "distgnn: warning: DISTGNN_EPOCH: no command has a flag of this name; did you mean DISTGNN_EPOCHS?\n"
    )


def test_variables_that_the_program_reads_are_known() -> None:
    root = Path(cli.__file__).parents[1]
    read = {
        name for path in root.rglob("*.py") for name in re.findall(r'"(DISTGNN_[A-Z_]+)"', path.read_text())
    }
    assert "DISTGNN_HOST_ISA" in read
    assert not config.unknown_variables(dict.fromkeys(read, ""), map(cli.command_parser, cli.COMMANDS))


def test_settings_that_ranks_may_differ_in_are_not_compared() -> None:
    parser, words = cli.command_parser("train"), ["train", "x.dg"]
    usual = config.facts(parser, cli.parse(words))
    assert config.facts(parser, cli.parse(["train", "y.dg", "--quiet"])) == usual
    assert config.facts(parser, cli.parse([*words, "--lr", "1"])) == usual | {"--lr": "1.0"}
    assert (usual["--bias"], usual["--grid"], usual["--hidden"]) == ("not given",) * 3
    settable = {action.dest for name in cli.COMMANDS for action in cli.command_parser(name)._actions}
    assert config.MAY_DIFFER.keys() <= settable
    assert {f"--{name}" for name in config.settable(parser)} - {
        "--quiet",
        "--verbose",
        "--log-dir",
    } == usual.keys()


def force(*words: str) -> str:
    """Return what --print-config prints."""
    with pytest.raises(cli.Help) as shown:
        cli.parse([*words, "--print-config"])
    assert shown.value.code == 0
    return shown.value.text


GIVEN = {
    "train": ["--lr", "1e-5", "--hidden", "32,16", "--grid", "rows=2,cols=2", "--no-bias", "--check=all"],
    "prepare": ["--split", 'a "b" \\ é', "--undirected", "--shards", "2x2"],
    "plan": ["--ranks", "4,8", "--machine", "perlmutter"],
    "demo": ["--nodes", "300"],
}  # fmt: skip


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_printed_settings_given_as_a_file_are_the_same_settings(tmp_path: Path, command: str) -> None:
    given = GIVEN.get(command, [])
    text = force(command, *given)
    assert text.count("# command line") == sum(word.startswith("--") for word in given)
    assert force(command, *given, "--config", written(tmp_path, text)).replace(
        "command line", str(tmp_path / "run.toml")
    ) == force(command, "--config", str(tmp_path / "run.toml"))
    assert force(command, "--config", str(tmp_path / "run.toml")).count(str(tmp_path)) > len(given)


def test_printed_settings_tell_where_each_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "lr = 0.3\nepochs = 3\n")
    monkeypatch.setenv("DISTGNN_EPOCHS", "5")
    text = force("train", "--config", file, "--recipe", "gat", "--log", "a.jsonl")
    said = {re.sub(" +", " ", line) for line in text.splitlines()}
    assert {f"lr = 0.3 # {file}", "epochs = 5 # DISTGNN_EPOCHS", "hidden = [64] # recipe gat"} < said
    assert {"momentum = 0.0 # default", "# grid # not given"} < said
    assert '# log = "a.jsonl" # command line; not in a file' in said
    with pytest.raises(UserError, match="lr"):
        cli.parse(["train", "--lr", "fast", "--print-config"])


def test_two_names_of_one_setting_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "[prepare]\ndirected = true\nundirected = true\n")
    with pytest.raises(UserError, match=r"run.toml: directed and undirected are one setting; give one of"):
        cli.parse(["prepare", "a", "b", "--config", file])
    (tmp_path / "run.toml").write_text("directed = true\n")
    assert cli.parse(["prepare", "a", "b", "--config", file]).directed
    assert cli.parse(["prepare", "a", "b", "--undirected", "--config", file]).directed is False
