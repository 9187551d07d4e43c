"""Recipes: what is not given, the same in Python, on the command line and in a log; and advice."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

import distgnn as dg
from distgnn.cli import parse, train
from distgnn.cli.console import command_line
from distgnn.nn.features import are_counts
from distgnn.operators import grids, make_grid
from distgnn.train import Run, Settings
from distgnn.train.best import overfitting
from distgnn.train.resolve import resolved
from train.stores import small_store

WORDS = np.repeat(np.eye(6, dtype=np.float32)[:, :5], 20, axis=0)


def test_a_recipe_fills_in_what_is_not_given() -> None:
    usual, plain, sage = (Settings(recipe=name) for name in ("kipf-welling", "plain", "graphsage"))
    assert usual == Settings()
    assert (usual.dropout, usual.bias, usual.hidden, usual.epochs) == (0.5, True, (16,), 200)
    assert (plain.dropout, plain.bias, plain.decays, plain.keep_best) == (0.0, False, [0.0, 0.0], "none")
    assert (sage.model, sage.sampler, sage.hidden, sage.epochs) == ("sage", "sage", (256,), 10)
    gat, of = resolved(Settings(recipe="gat"), 2), resolved(Settings(recipe="gat", model="gcn", layers=3), 2)
    assert (gat.model, gat.heads, gat.hidden, gat.activation) == ("gat", [8, 1], (64,), "elu")
    assert (gat.attention_dropout, gat.decays, gat.lr) == (0.6, [5e-4] * 2, 0.005)
    assert (of.heads, of.attention_dropout, of.activation, of.dropout) == (None, None, "relu", 0.6)
    gatv2 = resolved(Settings(recipe="gat", model="gatv2", layers=3), 2)
    assert (gatv2.heads, gatv2.attention_dropout, gatv2.activation) == ([8, 8, 1], 0.6, "elu")
    assert Settings(layers=3).decays == [5e-4, 0.0, 0.0] and Settings(layers=1).decays == [5e-4]
    assert resolved(Settings(layers=3), 2).weight_decay == [5e-4, 0.0, 0.0]
    for unknown in ("kipf", None, ["plain"]):
        with pytest.raises(dg.UserError, match="recipe="):
            resolved(Settings(recipe=unknown), 2)
    for name, value in (("dropout", 0.0), ("bias", False), ("weight_decay", [0.0]), ("lr", 0.5)):
        assert getattr(Settings(**{name: value}), name) == value  # falsehood is given


@pytest.mark.parametrize(("layers", "fanout"), [(1, [25]), (2, [25, 10]), (4, [25, 10, 10, 10])])
def test_fanouts_of_graphsage_fit_the_layers(layers: int, fanout: list[int]) -> None:
    assert resolved(Settings(recipe="graphsage", layers=layers), 2).fanout == fanout


def test_another_sampler_than_that_of_the_recipe() -> None:
    assert resolved(Settings(recipe="graphsage", sampler="ladies", model="gcn"), 2).fanout == [512, 512]
    with pytest.raises(dg.UserError, match="the samplers sage, cluster and shadow keep, not saint"):
        resolved(Settings(recipe="graphsage", sampler="saint"), 2)
    whole = resolved(Settings(recipe="graphsage", sampler="none"), 2)
    assert (whole.samples, whole.model, whole.fanout, whole.algorithm) == (False, "sage", None, "1d")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--recipe=plain", "--no-bias"],
        ["--recipe=graphsage", "--sampler=none", "--dropout=0"],
        ["--recipe=graphsage", "--lr=0.1", "--fanout=5,5"],
        ["--dropout=0", "--weight-decay=0,0.1", "--keep-best=none", "--no-normalize-features"],
    ],
)
def test_the_command_in_a_log_gives_the_same_settings(words: list[str]) -> None:
    settings = train.settings(parse(["train", "x.dg", *words]))
    logged = command_line("x.dg", settings, 1).split()[1:]
    assert train.settings(parse(logged)) == settings
    assert len(logged) <= 2 + len(words)


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("algorithm", ["1d", "2d", "3d"])
def test_counts_are_told_from_other_features(comm, algorithm) -> None:
    grid = make_grid(comm, algorithm, grids(algorithm, comm.size)[-1], backend="numpy")
    A = dg.distribute(np.eye(120), grid, algorithm)
    last = np.zeros_like(WORDS)
    last[-1, -1] = 1
    for X, expected in (
        (WORDS, True),
        (3 * WORDS, True),
        (WORDS - last, False),  # -1 in the block of one rank
        (WORDS + last / 2, False),
        (1 - WORDS, False),  # most are 1
        (WORDS + np.random.default_rng(0).random(WORDS.shape, np.float32), False),
    ):
        assert are_counts(dg.scatter(X, A.input_layout)) is expected


@pytest.mark.ranks(1, 4)
def test_defaults_that_depend_on_the_store_are_in_the_log(comm, shared_tmp_path) -> None:
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log"
    how = {"epochs": 2, "log": str(log), "force": True}
    for more, expected in (
        ({}, (False, "val")),
        ({"keep_best": "none", "normalize_features": True}, (True, "none")),
        ({"train_features": True}, (False, "none")),
        ({"eval_every": 0}, (False, "none")),
        ({"recipe": "plain"}, (False, "none")),
    ):
        run = Run(store, Settings(**how, **more), comm)
        list(run.train())
        if comm.rank == 0:
            config = json.loads(log.read_text().splitlines()[0])["config"]
            assert (config["normalize_features"], config["keep_best"]) == expected
            assert config["recipe"] == more.get("recipe", "kipf-welling") and len(config["weight_decay"])
        comm.Barrier()


@pytest.mark.ranks(1, 4)
def test_counts_are_divided_by_default_and_nobody_validates_without_nodes(comm) -> None:
    edges, y = np.stack([np.arange(119), np.arange(1, 120)]), np.arange(120) % 3
    split = np.where(np.arange(120) % 2, 1, 3)
    models = [
        dg.fit(edges, X, y, split, epochs=3, comm=comm, normalize_features=given, tune_gemm=False)
        for X, given in ((7 * WORDS, None), (7 * WORDS, True), (7 * WORDS, False))
    ]
    losses = [[record["loss"] for record in model.history] for model in models]
    assert losses[0] == losses[1] != losses[2]
    assert models[0].settings.normalize_features is True and models[0].settings.keep_best == "none"
    with pytest.raises(dg.UserError, match="no node of the validation split has a label"):
        dg.fit(edges, WORDS, y, split, epochs=3, comm=comm, keep_best="val")


def test_advice_names_what_is_not_in_use() -> None:
    apart = {"train_acc": 1.0, "val_acc": 0.63, "test_acc": 0.6}
    plain = resolved(Settings(recipe="plain"), 1)
    assert overfitting(plain, apart) == (
        "training 1.00, validation 0.63: the network overfits; "
        "try dropout=0.5, weight_decay=0.0005 and keep_best=val"
    )
    kept = Settings(dropout=0.0, keep_best="val")
    assert str(overfitting(kept, {"best": apart})).endswith("overfits; try dropout=0.5")
    for settings, end in (
        (plain, {"train_acc": 0.9, "val_acc": 0.85}),
        (plain, {"train_acc": 0.5, "val_acc": 0.9}),
        (plain, {"train_r2": 1.0, "val_r2": float("nan")}),
        (plain, {"loss": 1.0}),
        (Settings(keep_best="val"), {"best": apart}),
    ):
        assert overfitting(settings, end) is None


@pytest.mark.ranks(1, 4)
def test_one_rank_warns_once(comm, caplog) -> None:
    rng = np.random.default_rng(1)
    edges, X, y = rng.integers(0, 60, (2, 90)), rng.random((60, 40)), rng.integers(0, 2, 60)
    with caplog.at_level(logging.WARNING):
        dg.fit(edges, X, y, "0.2/0.4/0.4", recipe="plain", lr=0.1, comm=comm)
        dg.fit(edges, X, y, "0.2/0.4/0.4", lr=0.1, comm=comm)
    warned = [record.message for record in caplog.records if "overfits" in record.message]
    assert len(warned) == (comm.rank == 0)
