"""Hints in errors: the name or file that may have been meant, and the command to run next."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from distgnn.cli import main
from distgnn.errors import did_you_mean, offered
from distgnn.train import Settings
from loops import each


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the line with which a command is refused."""
    assert main(list(words)) == 2
    return capsys.readouterr().err.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a list of edges and a store of it."""
    folder = tmp_path_factory.mktemp("suggest")
    (folder / "edges.csv").write_text("source,target\na,b\nb,c\nc,a\n")
    prepared = "--features random:4 --labels degree:2 --split 0.5/0.25/0.25 -q".split()
    assert main(["prepare", f"{folder}/edges.csv", f"{folder}/graph.dg", *prepared]) == 0
    return folder


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("trian graph.dg", "did you mean train?; see distgnn --help"),
        ("train graph.dg --hiden 4", "did you mean --hidden?; see distgnn train --help"),
        ("train graph.dg --hiden=4", "did you mean --hidden?; see distgnn train --help"),
        ("train graph.dg --optimizer adm", "did you mean adam?; see distgnn train --help"),
        ("train graph.dg --algorithm 1.d", "did you mean 1.5d?"),
        ("train graph.dg --order randon", "did you mean random?"),
        ("prepare edges.csv other.dg --order orignal", "did you mean original?"),
        ("prepare edges.csv other.dg --normalize rwo", "did you mean row?; see distgnn prepare --help"),
        ("prepare edges.csv other.dg --partition metsi:4", "did you mean metis?"),
        ("prepare edges.csv other.dg --source-column sorce", "did you mean source?"),
        ("prepare edges.csv other.dg --format edgse", "did you mean edges?"),
        ("plan graph.dg --ranks 4 --machine dgx-a10", "did you mean dgx-a100?"),
        ("generate rmta --out g", "did you mean rmat?"),
    ],
)
def test_names_that_may_have_been_meant(monkeypatch, folder: Path, capsys, words: str, hint: str) -> None:
    monkeypatch.chdir(folder)
    assert hint in refused(capsys, *words.split())


@pytest.mark.parametrize("words", ["dance graph.dg", "train graph.dg --zzzz 4", "train graph.dg --order q"])
def test_nothing_is_suggested_where_nothing_is_near(monkeypatch, folder: Path, capsys, words: str) -> None:
    monkeypatch.chdir(folder)
    assert "did you mean" not in refused(capsys, *words.split())


def test_files_beside_are_suggested(monkeypatch, folder: Path, capsys) -> None:
    monkeypatch.chdir(folder)
    assert refused(capsys, "prepare", "edge.csv", "o.dg").endswith("directory; did you mean edges.csv?")
    assert refused(capsys, "train", "grahp.dg").endswith("no such store; did you mean graph.dg?")
    there = f"did you mean {folder}/graph.dg?"
    assert refused(capsys, "info", f"{folder}/grahp.dg").endswith(there)


@pytest.mark.parametrize("command", ["train", "info", "plan --ranks 2 --machine dgx-a100"])
def test_a_raw_graph_names_the_command_for_it(monkeypatch, folder: Path, capsys, command: str) -> None:
    monkeypatch.chdir(folder)
    name, *flags = command.split()
    given = "--features FILE --labels FILE --split 0.6/0.2/0.2"
    for source, made in (("edges.csv", "edges.dg"), (str(folder), "suggest")):
        line = refused(capsys, name, source, *flags)
        assert f"distgnn prepare {source} {made}" in line and line.endswith(f"{given} makes one of it")
    line = refused(capsys, name, "nowhere", *flags)
    assert line.endswith(f"distgnn prepare SOURCE nowhere {given} writes one")
    for generated in ("made", "made.dg"):
        assert main(["generate", "sbm", generated, "--nodes", "40", "--force", "-q"]) == 0
        line = refused(capsys, name, generated, *flags)
        assert line.endswith(f"wrote: distgnn prepare {generated} STORE.dg makes a store of it"), line


def test_a_missing_checkpoint_names_the_command_that_writes_one(monkeypatch, folder: Path, capsys) -> None:
    monkeypatch.chdir(folder)
    line = refused(capsys, "export", "weights", "o.npz")
    assert line.endswith("no such checkpoint; distgnn train STORE --checkpoint weights writes one")


@each("theirs, ours", [
    ("learning_rate", "lr"), ("hidden_channels", "hidden"), ("num_layers", "layers"),
    ("num_epochs", "epochs"),
    ("num_neighbors", "fanout"), ("random_state", "seed"), ("attn_drop", "attention_dropout"),
    ("edge_index", "graph"), ("x", "X"), ("labels", "y"), ("train_mask", "split"), ("l2", "weight_decay"),
])  # fmt: skip
def test_names_of_other_libraries_are_answered_with_ours(theirs: str, ours: str) -> None:
    known = [*(field.name for field in fields(Settings)), "graph", "X", "y", "split"]
    assert did_you_mean(theirs, known) == f"; did you mean {ours}?"
    assert did_you_mean(theirs, ["nothing"]) == ""
    if ours in known[:-4]:
        flag, flags = ours.replace("_", "-"), [f"--{name.replace('_', '-')}" for name in known]
        assert did_you_mean(f"--{theirs.replace('_', '-')}", flags) == f"; did you mean --{flag}?"


@each("word", ["verbose", "shuffle", "steps_per_epoch", "pooling", "num_workers", "callbacks", "pin_memory"])
def test_words_that_are_not_near_have_no_hint(word: str) -> None:
    assert did_you_mean(word, [field.name for field in fields(Settings)]) == ""


def test_flags_and_keys_of_other_libraries(monkeypatch, folder: Path, capsys) -> None:
    monkeypatch.chdir(folder)
    line = refused(capsys, "train", "graph.dg", "--learning-rate", "0.1")
    assert "unrecognized arguments: --learning-rate 0.1; did you mean --lr?" in line
    (folder / "a.toml").write_text("hidden_channels = 8\n")
    assert "did you mean hidden?" in refused(capsys, "train", "graph.dg", "--config", "a.toml")


def test_hints_keep_the_case_of_names_and_say_nothing_of_others() -> None:
    assert did_you_mean("SUM", ["Summa", "Panel"]) == "; did you mean Summa?"
    assert did_you_mean("xyz", ["Summa", "Panel"]) == ""
    assert offered("b", ["1", 2]) == "expected one of 1, 2"
