"""Numbers to predict: squared error, R² and MAE where rows and columns are cut, against dense formulas."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
import oracle_scores as reference
from chosen_grids import wide_grid
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout
from distgnn.nn.loss import LossRows, Targets, checked_loss, checked_metric, cross_entropy
from distgnn.nn.metrics import scores
from distgnn.nn.optim import make
from distgnn.train.full_graph import train
from oracle_scores import labelled

from .problem import ALGORITHMS, Problem
from .test_loss import N, layouts

PARTS = {"train": 1, "val": 2, "test": 3}


def problem(columns, dtype=np.float64):
    """Make numbers far from 0, where sums of squares lose digits; two nodes have none."""
    r = np.random.default_rng(3)
    labels = (1000 + r.standard_normal((N, columns)) * (1 + np.arange(columns))).astype(dtype)
    labels[[4, 9]] = np.nan
    split = r.integers(0, 4, N).astype(np.uint8)
    split[4] = 1
    return labels + r.standard_normal((N, columns)), labels if columns > 1 else labels[:, 0], split


def by_hand(Z, labels, split):
    """Return the scores by the textbook, column by column."""
    Y, found = labels.reshape(N, -1).astype(np.float64), {}
    for name, part in PARTS.items():
        z, y = (M[(split == part) & ~np.isnan(Y[:, 0])] for M in (np.nan_to_num(Z), Y))
        shares = 1 - ((y - z) ** 2).sum(axis=0) / ((y - y.mean(axis=0)) ** 2).sum(axis=0)
        found |= {f"{name}_r2": shares.mean(), f"{name}_mae": abs(y - z).mean()}
    return found


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loss_gradient_and_scores_are_the_dense_ones(comm, passes, backend, columns, dtype):
    """Also with fewer columns than ranks they are cut over, and where a rank has no nodes."""
    Z, labels, split = problem(columns, dtype)
    Z = np.nan_to_num(Z).astype(dtype)
    train_rows = labelled(labels, split, 1)
    far = Z[train_rows].astype(np.float64) - labels.reshape(N, -1)[train_rows]
    dense = np.zeros_like(Z, dtype=np.float64)
    dense[train_rows] = 2 * far / far.size
    digits = 1e-12 if dtype == np.float64 else 1e-5
    for layout in layouts(comm, backend):
        logits, targets = dg.scatter(Z, layout, dtype=dtype), Targets(layout, columns, labels, split)
        assert (targets.loss, targets.metric) == ("mse", "r2")
        assert scores(logits, targets) == pytest.approx(by_hand(Z, labels, split), rel=1e-9)
        for overwrite in (False, True):
            got, gradient = cross_entropy(logits, targets, overwrite)
            assert got == pytest.approx((far**2).mean(), rel=digits)
            whole = dg.gather(gradient)
            if comm.Get_rank() == 0:
                assert whole.dtype == dtype
                np.testing.assert_allclose(whole, dense, rtol=100 * digits, atol=digits)


def test_the_serial_scores_are_the_textbooks() -> None:
    Z, labels, split = problem(3)
    expected = by_hand(Z, labels, split)
    for name, part in PARTS.items():
        rows = labelled(labels, split, part)
        assert not np.isnan(labels[rows]).any()
        assert reference.determination(Z, labels, rows) == pytest.approx(expected[f"{name}_r2"], rel=1e-9)
        assert reference.mean_absolute_error(Z, labels, rows) == pytest.approx(expected[f"{name}_mae"])


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_weighted_sum_over_some_rows_against_finite_differences(comm, passes, backend, weighted):
    """A minibatch has such a sum: the mean over columns of a node, times its weight."""
    r = np.random.default_rng(0)
    Z, chosen = r.standard_normal((N, 4)), np.sort(r.permutation(N)[:9])
    labels, weights = r.standard_normal((N, 4)), r.uniform(0.5, 2, N) if weighted else np.ones(N)

    def expected(logits):
        return (weights[:, None] * (logits - labels) ** 2)[chosen].sum() / 4 / 2

    numeric = np.zeros_like(Z)
    for place in np.ndindex(Z.shape):
        up, down = Z.copy(), Z.copy()
        up[place] += 1e-5
        down[place] -= 1e-5
        numeric[place] = (expected(up) - expected(down)) / 2e-5
    for layout in layouts(comm, backend):
        (first, last), cols = layout.ranges(Z.shape)
        rows = chosen[(chosen >= first) & (chosen < last)]
        mine = backend.asarray(weights[rows]) if weighted else None
        own = backend.asarray(np.ascontiguousarray(labels[rows, slice(*cols)]))
        loss, G = cross_entropy(dg.scatter(Z, layout), LossRows(backend.asarray(rows - first), own, 2, mine))
        assert loss == pytest.approx(expected(Z), rel=1e-12)
        whole = dg.gather(G)
        if comm.Get_rank() == 0:
            np.testing.assert_allclose(whole, numeric, atol=1e-8)


@pytest.mark.ranks(1, 4)
def test_columns_of_equal_numbers_and_parts_of_few_nodes(comm, backend):
    """A column of equal numbers counts 1 if they are predicted, else 0; R² of one node is NaN."""
    labels, split = np.full((N, 2), 2.5), np.ones(N, np.uint8)
    split[[0, 1, 2]] = 2, 2, 3
    labels[1, 1] = 3.5
    Z = labels.copy()
    Z[0, 1] = 3.0
    for layout in layouts(comm, backend):
        got = scores(dg.scatter(Z, layout), Targets(layout, 2, labels, split))
        assert got == pytest.approx(
            {"train_r2": 1, "val_r2": (1 + 0.5) / 2, "test_r2": np.nan, "train_mae": 0, "val_mae": 0.125,
             "test_mae": 0}, nan_ok=True,
        )  # fmt: skip
        far = scores(dg.scatter(Z + 1, layout), Targets(layout, 2, labels, split))
        assert far["train_r2"] == 0 and far["train_mae"] == 1


@pytest.mark.ranks(1, 4)
def test_logits_that_are_not_finite_have_no_score(comm, backend):
    Z, labels, split = problem(3)
    Z = np.nan_to_num(Z)
    for layout in layouts(comm, backend):
        targets = Targets(layout, 3, labels, split)
        for node, fine in ((4, True), (labelled(labels, split, 2)[-1], False)):  # node 4 has no labels
            wrong = Z.copy()
            wrong[node, -1] = np.inf
            if fine:
                assert scores(dg.scatter(wrong, layout), targets) == scores(dg.scatter(Z, layout), targets)
                continue
            with pytest.raises(FloatingPointError, match="1 logits of labelled nodes are not finite"):
                scores(dg.scatter(wrong, layout), targets)


@pytest.mark.ranks(1, 3)
def test_wrong_targets_raise_on_every_rank(comm, backend):
    """Only the last rank's are wrong; the others must not wait for it."""
    P, rank = comm.Get_size(), comm.Get_rank()
    layout = Layout(dg.Grid(comm, backend=backend, rows=P), Cut(("rows",), dg.layout.partition(N, P)), Cut())
    _, labels, split = problem(3)
    some, infinite = labels.copy(), labels.copy()
    some[-1, 1], infinite[-1, 2] = np.nan, -np.inf
    for what, width, given in (
        ("a node has NaN in some columns only", 3, some),
        ("a label is infinite", 3, infinite),
        ("labels of 1 columns where the network has 3 outputs", 3, labels[:, 0]),
        (r"labels of shape \(23, 3\) given for 23 nodes", 4, labels),
    ):
        with pytest.raises((ValueError, RuntimeError), match=what):
            Targets(layout, width, given if rank == 0 else None, split)
    with pytest.raises(ArgumentError, match="metric=f1: numbers of a node have r2"):
        Targets(layout, 3, labels, split, "f1")


def test_losses_that_labels_do_not_have() -> None:
    assert checked_loss("mse", "softmax") == checked_loss(None, "mse") == "mse"
    for loss, own, names, what in (
        ("softmax", "mse", None, "loss=softmax: numbers of a node have the loss mse"),
        ("binary", "softmax", None, "loss=binary: one class of a node has the loss softmax"),
        ("mse", "softmax", ["cat", "dog"], "loss=mse: the classes have names, such as 'cat'"),
    ):
        with pytest.raises(ArgumentError, match=what):
            checked_loss(loss, own, names)
    with pytest.raises(ArgumentError, match="metric=r2: one class of a node has accuracy$"):
        checked_metric("r2", "softmax")


def numbers(p: Problem, columns: int) -> Problem:
    """Return the same graph with numbers of the nodes in place of classes."""
    rows = np.random.default_rng(7).standard_normal((p.n, columns)) * 3 + 5
    rows[p.labels < 0] = np.nan
    p.labels, p.classes = rows if columns > 1 else rows[:, 0], columns
    return p


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("columns", [1, 5])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_is_that_of_the_reference(comm, name, columns, backend):
    """Every algorithm, those that cut columns too, with dropout, biases and trained features."""
    p, options = numbers(Problem(), columns), {"dropout": 0.3, "bias": True}
    grid = wide_grid(comm, name, backend)
    model, X, targets = p.model(grid, name, **options)
    got = list(train(model, X, targets, make("adam", 0.05), 3, train_features=True))
    serial = p.reference(**options)
    expected = serial.train(p.X, p.labels, p.split, 3, lr=0.05, train_features=True)
    for ours, theirs in zip(got, expected, strict=True):
        assert len(theirs) == 8
        assert {key: ours[key] for key in theirs} == pytest.approx(theirs, rel=1e-9)
    np.testing.assert_allclose(model.get_weights()[0], serial.weights[0], rtol=1e-6)
    grid.free()
