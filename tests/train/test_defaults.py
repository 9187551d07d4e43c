"""Orders and algorithms that are not given: those of the store and of the checkpoint, from end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distgnn import cli
from distgnn.errors import UserError
from distgnn.operators.dense import gather
from distgnn.plan.settle import settle
from distgnn.store import prepare
from distgnn.store.format import manifest
from distgnn.store.format.limits import LIMITS
from distgnn.train import Run, Settings
from distgnn.train.answers import softmax
from distgnn.train.predict import Predictor
from distgnn.train.resolve import from_files

from .stores import Communities, run

#: The network of jobs/plexus.sh, smaller.
PLEXUS: dict[str, Any] = {
    "hidden": [6, 6], "optimizer": "adamw", "train_features": True, "epochs": 3, "lr": 0.5,
}  # fmt: skip


def store_with(folder: Any, comm: Any, *orders: str) -> str:
    """Prepare a store with these orders."""
    path = folder / f"{'-'.join(orders)}.dg"
    if comm is None or comm.Get_rank() == 0:
        prepare(Communities(), path, order=orders)
    if comm is not None:
        comm.Barrier()
    return str(path)


@pytest.mark.parametrize(
    ("orders", "given", "algorithm", "order"),
    [
        ("double", {}, "3d", None),
        ("double", {"algorithm": "1d"}, "1d", None),  # which is refused
        ("double,random", {}, "3d", None),
        ("double,random", {"algorithm": "2d"}, "2d", "random"),
        ("double,random", {"algorithm": "3d"}, "3d", None),
        ("double,random", {"algorithm": "auto"}, "auto", None),
        ("double,random", {"model": "sage"}, None, "random"),
        ("double,random", {"sampler": "ladies"}, None, "random"),
        ("double,random", {"sparsity_aware": True}, None, "random"),
        ("double,random", {"order": "random"}, None, "random"),
        ("random,double", {}, None, None),
        ("random,double", {"order": "double"}, "3d", "double"),
        ("random,double", {"algorithm": "3d"}, "3d", None),
        ("random,double", {"order": "double", "algorithm": "1d"}, "1d", "double"),  # which is refused
        ("random,double", {"order": "double", "sampler": "sage"}, None, "double"),  # which is refused
    ],
)
def test_what_is_not_given(tmp_path, orders, given, algorithm, order) -> None:
    store = store_with(tmp_path, None, *orders.split(","))
    filled = from_files(Settings(**given), store)
    assert (filled.algorithm, filled.order) == (algorithm, order)
    assert from_files(filled, store) == filled


@pytest.mark.ranks(4)
def test_one_rank_of_a_node_reads_the_manifest(comm, shared_tmp_path, monkeypatch) -> None:
    """A run compares it, takes order and algorithm from it, opens the store, and compares it in loading."""
    store, text, read = store_with(shared_tmp_path, comm, "double", "random"), manifest.text, []
    monkeypatch.setattr(manifest, "text", lambda root: read.append(root) or text(root))
    made = Run(store, Settings(epochs=1), comm)
    assert comm.allgather(len(read)) == [4, 0, 0, 0]
    assert {*comm.allgather((made.settings.algorithm, made.order.name))} == {("3d", "double")}


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("orders", [("double",), ("random", "double"), ("double", "original")], ids="-".join)
def test_trained_on_two_permutations_and_predicted(comm, shared_tmp_path, monkeypatch, orders) -> None:
    """Predictions by the best weights and the last ones, in every order, with every algorithm; after plain
    training, too.
    """
    monkeypatch.setattr(LIMITS, "row_bytes", 7 * 9 * 4)  # seven nodes of the features at a time
    store, weights = store_with(shared_tmp_path, comm, *orders), str(shared_tmp_path / "w")
    how = PLEXUS | {"checkpoint": weights, "keep_best": "val"}
    trained = Run(store, Settings(algorithm="3d", order="double", **how), comm)
    list(trained.train())
    logits = {"last": gather(trained.model.forward(trained.X))}
    assert trained.best.found is not None and trained.best.found["epoch"] < 3
    trained.best.restore()
    trained.model.forget()
    logits["best"] = gather(trained.model.forward(trained.X))
    ways: list[dict[str, Any]] = [{}, {"order": "double"}, {"algorithm": "3d"}]
    if len(orders) > 1:
        other = next(name for name in orders if name != "double")
        ways += [{"order": other}, {"algorithm": "2d"}, {"algorithm": "3d-split", "order": other}]
    for which in ("best", "last"):
        for number, way in enumerate(ways if which == "best" else ways[1::2]):
            predictor = Predictor(store, weights, comm, which=which, **way)
            path = predictor.write(shared_tmp_path / f"{which}-{number}.npz")
            comm.Barrier()
            if comm.Get_rank() == 0:
                with np.load(path) as found:
                    expected = softmax(logits[which])
                    assert found["probability"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    again = Run(store, Settings(**how | {"epochs": 4, "resume": True}), comm)
    assert (again.settings.algorithm, again.order.name, again.first_epoch) == ("3d", "double", 4)
    list(again.train())


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("orders", [("double",), ("double", "random")], ids="-".join)
def test_the_commands_take_a_store_of_the_plexus_job(comm, shared_tmp_path, capsys, orders) -> None:
    store, weights = store_with(shared_tmp_path, comm, *orders), shared_tmp_path / "w"
    network = ["--layers", 3, "--hidden", 8, "--optimizer", "adamw", "--train-features", "--epochs", 2]
    told = ["--algorithm", "3d", "--order", "double", *network]
    assert run(comm, store, *told, "--checkpoint", weights, "--check") == 0
    for more in ([], ["--order", "double"]):
        out = str(shared_tmp_path / f"{len(more)}.npz")
        words = ["predict", store, "--checkpoint", str(weights), "--out", out, *more]
        cli.command_module("predict").run(cli.parse(words), comm)
    comm.Barrier()
    assert run(comm, store, "--epochs", 2, "--check") == 0
    if comm.Get_rank() == 0:
        printed = capsys.readouterr().out
        assert printed.count("3d on") == 2 and printed.count("order double") >= 2
        with np.load(shared_tmp_path / "0.npz") as one, np.load(shared_tmp_path / "2.npz") as other:
            assert (one["probability"] == other["probability"]).all()
    plain = ["--algorithm", "1d", "--epochs", 2]
    if len(orders) == 1:
        with pytest.raises(
            UserError, match="only algorithm 3d alternates .* prepare with --order double,random"
        ):
            run(comm, store, *plain)
    else:
        for words in (plain, ["--sampler", "sage", "--epochs", 1], ["--model", "sage", "--epochs", 1]):
            assert run(comm, store, *words) == 0


def test_plans_fill_in_the_same(tmp_path) -> None:
    store = store_with(tmp_path, None, "double", "random")
    settled = settle(Settings(), store, 4, "infiniband-cpu").settings
    assert settled.algorithm == "3d" and settled.order in (None, "double") and settled.grid is not None
    assert settle(Settings(algorithm="2d"), store, 4, "infiniband-cpu").settings.order == "random"
