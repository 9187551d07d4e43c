"""``dg.fit``: from arrays to predictions, equal to a run on the store of the same arrays."""

from __future__ import annotations

import contextlib
import gc
import logging

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import ledger
from distgnn.comm.session import joined
from distgnn.errors import ArgumentError, PeerError
from distgnn.store.checkpoint import read_alone
from distgnn.train import Predictor, Run, Settings, export_weights, fit
from loops import each
from mpi_helpers import mpiexec
from mpi_helpers.communicators import unfreed

N = 400
MADE = dg.gallery.sbm(N, communities=4, features=16)
EDGES, X, Y = np.stack(MADE.A.nonzero()), MADE.features, MADE.labels
FAST = {"epochs": 6, "hidden": 16, "lr": 0.03}


def fitted(comm, *arrays, **settings):
    """Fit a model to arrays that rank 0 alone has."""
    given = arrays or (EDGES, X, Y)
    return dg.fit(*(given if comm.rank == 0 else [None] * len(given)), comm=comm, **FAST | settings)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "1d", "sparsity_aware": True, "dropout": 0.5},
        {"algorithm": "2d", "bias": True, "layer_norm": True, "order": "original"},
        {"algorithm": "3d", "train_features": True},
        {"model": "sage", "algorithm": "1.5d"},
        {"sampler": "sage", "fanout": [5, 5], "batch_size": 32},
        {"sampler": "ladies", "fanout": [64, 64], "model": "gcn", "batch_size": 32},
        {"sampler": "saint", "batch_size": 64},
    ],
    ids=lambda settings: "-".join(f"{value}" for value in settings.values()),
)
def test_losses_and_predictions_are_those_of_a_run_on_the_store(comm, shared_tmp_path, settings) -> None:
    model = fitted(comm, dtype="float64", seed=5, **settings)
    store, weights = shared_tmp_path / "a.dg", shared_tmp_path / "weights"
    how = {"order": [settings.get("order", "random")], "dtype": "float64", "seed": 5, "comm": comm}
    dg.prepare(EDGES, X, Y, "0.6/0.2/0.2", out=store, **how)
    chosen = Settings(**FAST | settings | {"dtype": "float64", "seed": 5, "checkpoint": weights})
    run = Run(store, chosen, comm)
    records = list(run.train())
    losses = [[record["loss"] for record in one] for one in (model.history, records)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
    end = run.end.get("best", run.end)
    assert model.metrics == pytest.approx({name: end[name] for name in model.metrics})
    answers = Predictor(store, weights, comm).write(shared_tmp_path / "p.npz")
    if comm.rank == 0:
        with np.load(answers) as found:
            np.testing.assert_allclose(model.scores(), found["probability"], rtol=1e-6, atol=1e-9)
            assert (model.predict() == found["label"]).all()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("settings", [{}, {"epochs": 40, "lr": 1e-9, "patience": 2}])
def test_a_checkpoint_with_all_epochs_gives_its_model(comm, shared_tmp_path, settings) -> None:
    settings = settings | {"checkpoint": shared_tmp_path / "weights"}
    model = fitted(comm, **settings)
    again = fitted(comm, resume=True, **settings)
    assert (again.epoch, again.history) == (model.epoch, [])
    assert again.metrics == pytest.approx(model.metrics)
    with pytest.raises(dg.UserError, match="no epoch was left to train"):
        _ = again.loss
    if comm.rank == 0:
        np.testing.assert_allclose(again.scores(), model.scores(), rtol=1e-5, atol=1e-7)
    more = fitted(comm, resume=True, **settings | {"epochs": 41, "patience": None})
    assert more.history[0]["epoch"] == len(model.history) + 1


@pytest.mark.ranks(1, 3)
def test_the_first_rank_sees_every_epoch(comm) -> None:
    seen = []
    model = fitted(comm, on_epoch=seen.append)
    assert seen == (list(model.history) if comm.rank == 0 else [])
    with pytest.raises(ArgumentError, match="on_epoch=5: expected a function"):
        fitted(comm, on_epoch=5)


@pytest.mark.ranks(1, 3)
@pytest.mark.abandons
def test_an_error_in_a_callback_ends_the_training_on_all_ranks(comm) -> None:
    """And the next is right."""

    def fail(record) -> None:
        if record["epoch"] == 3:
            raise ZeroDivisionError("in the callback")

    before = fitted(comm)
    for _ in range(2):
        expected = ZeroDivisionError if comm.rank == 0 else PeerError
        with pytest.raises(expected, match="in the callback"):
            fitted(comm, on_epoch=fail)
        again = fitted(comm)
        assert [r["loss"] for r in again.history] == pytest.approx([r["loss"] for r in before.history])


@pytest.mark.ranks(1, 4)
def test_the_serial_reference_agrees(comm) -> None:
    fitted(comm, check=True)
    fitted(comm, check=True, sampler="sage", batch_size=64, fanout=[4, 4])


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("settings", [{}, {"train_features": True}, {"keep_best": "val", "epochs": 40}])
def test_a_saved_model_predicts_the_same_from_a_store(comm, shared_tmp_path, settings) -> None:
    model = fitted(comm, **settings)
    weights, store = shared_tmp_path / "weights", shared_tmp_path / "a.dg"
    model.save(weights)
    comm.Barrier()
    dg.prepare(EDGES, X, Y, "0.6/0.2/0.2", out=store, comm=comm)
    predictor = Predictor(store, weights, comm)
    assert predictor.epoch == model.epoch
    assert (model.epoch < len(model.history)) == ("keep_best" in settings)
    assert predictor.scores() == pytest.approx(dict(model.metrics))
    path = predictor.write(shared_tmp_path / "p.npz")
    if comm.rank == 0:
        with np.load(path) as found:
            np.testing.assert_allclose(model.scores(), found["probability"], rtol=1e-4, atol=1e-6)
        assert export_weights(weights, shared_tmp_path / "model.npz")["widths"] == [16, 16, 4]
        assert read_alone(weights).meta["epoch"] == len(model.history)
        with pytest.raises(dg.UserError, match="exists"):
            model.save(weights)
        model.save(weights, force=True)


@pytest.mark.ranks(1, 4)
def test_a_run_goes_on_from_a_saved_model(comm, shared_tmp_path) -> None:
    weights, store = shared_tmp_path / "weights", shared_tmp_path / "a.dg"
    fitted(comm, epochs=4).save(weights)
    comm.Barrier()
    whole = fitted(comm, epochs=6)
    dg.prepare(EDGES, X, Y, "0.6/0.2/0.2", out=store, comm=comm)
    chosen = Settings(**FAST | {"epochs": 6, "checkpoint": weights, "resume": True})
    last = [record["loss"] for record in Run(store, chosen, comm).train()]
    assert last == pytest.approx([record["loss"] for record in whole.history[4:]], rel=1e-4)


@pytest.mark.ranks(1, 4)
def test_labels_are_the_callers_own(comm) -> None:
    names = np.array(["ant", "bee", "cat", "dog"])
    ids = np.array([f"n{(7 * k) % N:03d}" for k in range(N)])
    hidden = np.where(np.arange(N) % 5 == 0, "", names[Y])
    model = fitted(comm, ids[EDGES], X, hidden, ids=ids if comm.rank == 0 else None, epochs=30)
    if comm.rank:
        assert model.predict() is None and model.scores() is None and model.predict(["n007"]) is None
        return
    assert model.classes.tolist() == names.tolist()
    assert (model.predict() == names[Y]).mean() > 0.9
    some = [5, 300, 2]
    assert (model.predict(ids[some]) == model.predict()[some]).all()
    assert (model.scores(ids[some]) == model.scores()[some]).all()
    mask = np.arange(N) < 3
    assert (model.predict(mask) == model.predict()[:3]).all()
    np.testing.assert_allclose(model.scores().sum(axis=1), 1, rtol=1e-5)
    assert (model.scores(logits=True).argmax(axis=1) == model.scores().argmax(axis=1)).all()
    unknown = (["nobody"], "'nobody': is no node"), ([3], "expected strings"), (mask[:5], "a mask")
    for nodes, problem in unknown:
        with pytest.raises(ArgumentError, match=problem):
            model.predict(nodes)


@pytest.mark.ranks(1, 3)
def test_several_classes_of_a_node(comm) -> None:
    several = np.zeros((N, 4), np.int8)
    several[np.arange(N), Y] = several[np.arange(N), (Y + 1) % 4] = 1
    model = fitted(comm, EDGES, X, several, epochs=40)
    assert model.multilabel and set(model.metrics) == {"train_f1", "val_f1", "test_f1"}
    assert model.test_score == model.metrics["test_f1"] > 0.8
    if comm.rank == 0:
        assert (model.predict() == several).mean() > 0.9
        assert ((model.scores() > 0.5) == model.predict()).all()


def test_metrics_are_those_of_the_predictions() -> None:
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(N) < 0.3, rng.integers(0, 4, N), Y)
    split = rng.integers(0, 4, N)
    model = dg.fit(EDGES, X, noisy, split, comm=MPI.COMM_SELF, **FAST | {"epochs": 20, "keep_best": "val"})
    right = model.predict() == noisy
    assert model.train_score == pytest.approx(right[split == 1].mean())
    assert model.val_score == pytest.approx(right[split == 2].mean())
    assert model.test_score == pytest.approx(right[split == 3].mean())
    best = max(range(1, 20), key=lambda epoch: model.history[epoch]["val_acc"])
    assert model.epoch in (best, 20) and model.loss == model.history[-1]["loss"]


@pytest.mark.ranks(1, 4)
def test_what_other_ranks_give_does_not_matter(comm) -> None:
    mine = (EDGES, X, Y) if comm.rank == 0 else (np.zeros((2, 1), int), "nothing", [1])
    model = dg.fit(*mine, comm=comm, **FAST)
    assert model.loss == pytest.approx(fitted(comm).loss, rel=1e-6)
    assert comm.allgather(model.metrics) == [model.metrics] * comm.size


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hiden": 3}, r"hiden=3: no setting has this name; did you mean hidden\?"),
        ({"zzz": 3}, r"zzz=3: no setting has this name; there is algorithm, grid"),
        ({"learning_rate": 0.1}, r"learning_rate=0.1: no setting has this name; did you mean lr\?"),
        ({"hidden_channels": 8}, r"did you mean hidden\?"),
        ({"x": 1}, r"x=1: no setting has this name; did you mean X\?"),
        ({"num_classes": 7}, "num_classes=7: follows from X and y; leave it out"),
        ({"verify": True}, "verify=True: no setting has this name"),
        ({"optimizer": "adm"}, r"optimizer=adm: .*did you mean adam\?"),
        ({"algorithm": "auto"}, "algorithm=auto"),
        ({"partition_graph": True, "sampler": "sage"}, "a graph in memory is sampled whole"),
        ({"y": None}, "y=None: training needs classes"),
        ({"X": None}, "X=None: training needs features"),
        ({"X": X[1:]}, "do not agree in the number of nodes"),
        ({"split": {"trian": [1]}}, r"split=trian: no part has this name.*did you mean train\?"),
        ({"split": (np.eye(N, dtype=np.uint8)[0], [1], [2])}, "a mask must be bool"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refusals_are_raised_on_every_rank(comm, change, problem) -> None:
    given = {"graph": EDGES, "X": X, "y": Y, **FAST, **change}
    with pytest.raises(ArgumentError, match=problem):
        dg.fit(comm=comm, **given)
    assert comm.allreduce(1) == comm.size


@pytest.mark.ranks(4)
def test_ranks_must_agree_in_settings(comm) -> None:
    with pytest.raises(dg.UserError, match="ranks disagree: lr is"):
        dg.fit(EDGES, X, Y, comm=comm, lr=0.1 + comm.rank)


def test_models_give_their_communicators_back() -> None:
    dg.fit(EDGES, X, Y, comm=MPI.COMM_SELF, epochs=1, hidden=2, tune_gemm=False)
    before = room()
    for _ in range(5):
        dg.fit(EDGES, X, Y, comm=MPI.COMM_SELF, epochs=1, hidden=2, tune_gemm=False)
    assert room() == before


def room() -> int:
    """Count the communicators that MPI has room for."""
    duplicates: list[MPI.Comm] = []
    with contextlib.suppress(MPI.Exception):
        while True:
            duplicates.append(MPI.COMM_SELF.Dup())
    for duplicate in duplicates:
        duplicate.Free()
    return len(duplicates)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("split", "settings", "error"),
    [
        (None, {}, None),
        ("0/0.5/0.5", {}, "no node"),  # on rank 0 alone
        (None, {"weight_decay": -1.0}, "at least 0"),  # where there is a grid
        (np.r_[np.ones(N - 1, int), 3], {"keep_best": "val"}, "validation split"),  # where all is loaded
        (None, {"lr": 1e30, "optimizer": "sgd"}, "finite|is nan|is inf"),  # in training
    ],
)
def test_communicators_go_back_to_mpi(comm, split, settings, error) -> None:
    joined(comm)  # keeps some from the first call on
    before, errors = unfreed(), (dg.UserError, dg.TrainingError)
    with contextlib.nullcontext() if error is None else pytest.raises(errors, match=error):
        fitted(comm, EDGES, X, Y, split, **settings)
    assert unfreed() == before


HEARD = """
import numpy as np, distgnn as dg
edges, X = np.arange(80).reshape(2, 40) % 40, np.eye(40)
model = dg.fit(edges, X, np.where(np.arange(40) % 2, -1, {one}), epochs=2)
"""


def test_a_person_hears_the_warnings() -> None:
    """Without a handler of messages: once, of several ranks."""
    for ranks, one in ((0, 0), (2, 1)):
        done = mpiexec(ranks, "-c", HEARD.format(one=one))
        assert done.code == 0, done.err
        assert done.err.count("nodes below 0 or NaN have none") == 1
        assert done.err.count("of one class: there is nothing to learn") == (one == 0)


def test_names_of_pyg_are_answered_before_anything_is_missing() -> None:
    with pytest.raises(ArgumentError, match=r"^edge_index=ndarray: no setting .*did you mean graph\?$"):
        dg.fit(edge_index=EDGES, x=X, y=Y)
    with pytest.raises(ArgumentError, match=r"^graph=graph.dg: expected arrays in memory; distgnn.train.Run"):
        dg.fit("graph.dg")
    with pytest.raises(ArgumentError, match="^graph=None: training needs edges"):
        dg.fit(X=X, y=Y)


@each("change, problem", [
    ({"y": np.full(N, -1)}, "y=int64.*every label is below 0"), ({"y": np.full(N, np.nan)}, "every label is"),
    ({"X": X[:, :0]}, "X=float.*has no columns"),
])  # fmt: skip
def test_nothing_to_train_on_is_said(change, problem) -> None:
    with pytest.raises(ArgumentError, match=problem):
        dg.fit(**{"graph": EDGES, "X": X, "y": Y} | change)


def test_equal_matrices_train_alike(caplog) -> None:
    """Whatever zeros a matrix stores and whichever entries it repeats."""
    entries = MADE.A.tocoo()
    zeros = np.arange(N), (np.arange(N) + 7) % N
    rows, cols = (
        np.concatenate([ends, ends[:50], more]) for ends, more in zip(entries.coords, zeros, strict=True)
    )
    values = np.concatenate(
        [entries.data / np.where(np.arange(entries.nnz) < 50, 2, 1), entries.data[:50] / 2]
    )
    stored = sp.coo_array((np.concatenate([values, np.zeros(N)]), (rows, cols)), shape=(N, N))
    with caplog.at_level(logging.INFO, "distgnn.train.another"):
        losses = [dg.fit(A, X, Y, weights=True, tune_gemm=False, **FAST).loss for A in (MADE.A, stored)]
    assert losses[0] == losses[1]
    assert sum("zeros that graph stores" in line for line in caplog.messages) == 1


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("order", ["original", "random"])
def test_features_are_copied_when_training_is_over(comm, monkeypatch, order) -> None:
    """The store of a training has the caller's array, unchanged; the model has one of its own."""
    X32, seen = X.astype(np.float32).copy(), []
    monkeypatch.setattr(fit, "Run", lambda store, *given: seen.append(store.arrays) or Run(store, *given))
    before = X32.copy()
    how = {"normalize_features": True, "standardize_features": False, "dropout": 0.0, "order": order}
    model = fitted(comm, EDGES, X32, Y, **how)
    first = model.embeddings(1)
    if comm.rank == 0:
        assert model._kept is not None and model._kept.arrays is not None
        assert (X32 == before).all() and not np.shares_memory(model._kept.arrays.features, X32)
        X32[...] = np.nan
    again = model.embeddings(1)
    if comm.rank == 0:
        np.testing.assert_array_equal(first, again)


@pytest.mark.ranks(1, 4)
def test_the_graph_is_kept_when_the_matrices_of_the_run_are_gone(comm, monkeypatch) -> None:
    """The features that the model copies take the place of what training held, and come not on top."""
    held, kept = [], fit._kept

    def noted(*given):
        held.append(dict(ledger.books().held))
        return kept(*given)

    monkeypatch.setattr(fit, "_kept", noted)
    gc.collect()
    before = dict(ledger.books().held)
    fitted(comm, algorithm="1d")
    for purpose in ("features", "results", "layers", "optimizer"):
        assert held[0].get(purpose, 0) <= before.get(purpose, 0), purpose
