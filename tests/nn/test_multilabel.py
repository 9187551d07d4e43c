"""Several classes of a node: loss, F1 and ROC-AUC where rows and classes are cut, against serial formulas."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
import oracle_scores as reference
from chosen_grids import wide_grid
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout
from distgnn.nn.loss import LossRows, Targets, binary_cross_entropy, cross_entropy, softmax_cross_entropy
from distgnn.nn.metrics import micro_f1, scores
from distgnn.nn.optim import make
from distgnn.train.full_graph import train
from oracle_scores import labelled

from .problem import ALGORITHMS, Problem
from .test_loss import N, layouts

CLASSES = 7
PARTS = {"train": 1, "val": 2, "test": 3}


def problem(classes=CLASSES, seed=0):
    """Make labels with no node in class 0, all in class 1, two unlabelled nodes, and many equal logits."""
    r = np.random.default_rng(seed)
    labels = (r.random((N, classes)) < 0.4).astype(np.int8)
    labels[:, 0], labels[:, 1] = 0, 1
    labels[[4, 9]] = -1
    return np.round(r.standard_normal((N, classes)) * 3), labels, r.integers(0, 4, N).astype(np.uint8)


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("classes", [2, CLASSES])
def test_loss_and_gradient_are_the_serial_ones(comm, passes, backend, classes):
    """Also with fewer classes than ranks they are cut over, and where a rank has no nodes."""
    Z, labels, split = problem(classes)
    loss, G = reference.binary_cross_entropy(Z, labels, labelled(labels, split, 1))
    for layout in layouts(comm, backend):
        logits, targets = dg.scatter(Z, layout), Targets(layout, classes, labels, split)
        for overwrite in (False, True):
            got, gradient = cross_entropy(logits, targets, overwrite)
            assert got == pytest.approx(loss, rel=1e-12)
            whole = dg.gather(gradient)
            if comm.Get_rank() == 0:
                np.testing.assert_allclose(whole, G, rtol=1e-10, atol=1e-15)


@pytest.mark.ranks(1, 4)
def test_large_logits_stay_finite_and_one_that_is_infinite_is_seen(comm, passes, backend):
    _, labels, split = problem()
    signs = np.where(labels == 1, 1.0, -1.0)
    for layout in layouts(comm, backend):
        targets = Targets(layout, CLASSES, labels, split)
        for Z, expected in ((1e4 * signs, 0), (-1e4 * signs, 1e4)):
            loss, G = cross_entropy(dg.scatter(Z, layout), targets)
            assert loss == pytest.approx(expected) and np.isfinite(backend.to_host(G.block)).all()
        node = labelled(labels, split, 1)[0]
        for wrong, column in ((np.inf, 0), (-np.inf, 1), (np.nan, 0), (np.nan, 1)):  # against the label
            Z = np.zeros((N, CLASSES))
            Z[node, column] = wrong
            with np.errstate(invalid="ignore"):
                assert not np.isfinite(cross_entropy(dg.scatter(Z, layout), targets)[0])


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_weighted_sum_over_some_rows_against_finite_differences(comm, passes, backend, weighted):
    """A minibatch has such a sum: the mean over classes of a node, times its weight."""
    r = np.random.default_rng(0)
    Z, chosen = r.standard_normal((N, 4)), np.sort(r.permutation(N)[:9])
    labels, weights = r.integers(0, 2, (N, 4)), r.uniform(0.5, 2, N) if weighted else np.ones(N)

    def expected(logits):
        p = 1 / (1 + np.exp(-logits))
        return -(weights[:, None] * np.log(np.where(labels == 1, p, 1 - p)))[chosen].sum() / 4 / 2

    numeric = np.zeros_like(Z)
    for place in np.ndindex(Z.shape):
        nudged = Z.copy()
        nudged[place] += 1e-6
        numeric[place] = (expected(nudged) - expected(Z)) / 1e-6
    for layout in layouts(comm, backend):
        (first, last), cols = layout.ranges(Z.shape)
        rows = chosen[(chosen >= first) & (chosen < last)]
        mine = backend.asarray(weights[rows]) if weighted else None
        own = backend.asarray(labels[rows, slice(*cols)].astype(np.uint8))
        loss, G = cross_entropy(dg.scatter(Z, layout), LossRows(backend.asarray(rows - first), own, 2, mine))
        assert loss == pytest.approx(expected(Z), rel=1e-12)
        whole = dg.gather(G)
        if comm.Get_rank() == 0:
            np.testing.assert_allclose(whole, numeric, atol=1e-5)


def test_the_serial_scores_are_the_textbooks() -> None:
    """F1 of 2 hits, 3 said and 4 there; areas of pairs counted one by one, ties half."""
    labels = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1]])
    Z = np.array([[2.0, 1, -1], [3, -1, -4], [-5, 0, -1]])
    every = np.arange(3)
    assert reference.micro_f1(Z, labels, every) == pytest.approx(2 * 2 / (3 + 4))
    assert reference.macro_rocauc(Z, labels, every) == 1.0  # of the classes 0 and 2
    Z, labels, _ = problem()
    nodes = labelled(labels, np.ones(N), 1)
    areas = []
    for z, y in zip(Z[nodes].T, labels[nodes].T, strict=True):
        pairs = [(a > b) + (a == b) / 2 for a in z[y == 1] for b in z[y == 0]]
        areas += [np.mean(pairs)] if pairs else []
    assert len(areas) == CLASSES - 2
    assert reference.macro_rocauc(Z, labels, nodes) == pytest.approx(np.mean(areas), rel=1e-14)
    assert np.isnan(reference.micro_f1(Z, labels, nodes[:0]))
    assert reference.micro_f1(-abs(Z), 0 * labels, nodes) == 0


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("metric", ["f1", "rocauc"])
def test_scores_are_the_serial_ones(comm, backend, metric):
    """Scores of all nodes at once: means over ranks would differ. Without a node for testing, there is no
    score.
    """
    Z, labels, split = problem()
    measure = reference.METRICS[metric][0]
    for test in (3, 0):
        split = np.where(split == 3, test, split)
        for layout in layouts(comm, backend):
            targets = Targets(layout, CLASSES, labels, split, metric)
            got = scores(dg.scatter(Z, layout), targets)
            expected = {
                f"{p}_{metric}": measure(Z, labels, labelled(labels, split, k)) for p, k in PARTS.items()
            }
            assert got == pytest.approx(expected, rel=1e-13, nan_ok=True)
            assert np.isnan(got[f"test_{metric}"]) == (not test) and 0 < got[f"train_{metric}"] < 1


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("metric", ["f1", "rocauc"])
def test_logits_that_are_not_finite_have_no_score(comm, backend, metric):
    Z, labels, split = problem()
    for layout in layouts(comm, backend):
        targets = Targets(layout, CLASSES, labels, split, metric)
        for node, fine in ((4, True), (labelled(labels, split, 2)[-1], False)):  # node 4 has no labels
            wrong = Z.copy()
            wrong[node, -1] = np.nan
            logits = dg.scatter(wrong, layout)
            if fine:
                assert scores(logits, targets) == scores(dg.scatter(Z, layout), targets)
                continue
            with pytest.raises(FloatingPointError, match="1 logits of labelled nodes are not finite"):
                scores(logits, targets)


@pytest.mark.ranks(4)
def test_what_travels(comm, backend):
    """One word for the loss, twelve for F1; for areas each labelled node's logits once."""
    Z, labels, split = problem(8)
    grid = dg.Grid(comm, backend=backend, rows=2, cols=2)
    layout = Layout(grid, Cut(("rows",), dg.layout.partition(N, 2)), Cut(("cols",)))
    logits, targets = dg.scatter(Z, layout), Targets(layout, 8, labels, split, "rocauc")
    share, other = 3 / 2, sum(targets.counts) - len(targets.rows)
    for what, words in ((cross_entropy, share), (micro_f1, 12 * share), (scores, 8 * share + 2 * other)):
        with dg.Ledger() as ledger:
            what(logits, targets)
        assert ledger.words == round(words)


@pytest.mark.ranks(1, 3)
def test_wrong_targets_raise_on_every_rank(comm, backend):
    """Only the last rank's are wrong; the others must not wait for it."""
    P, rank = comm.Get_size(), comm.Get_rank()
    layout = Layout(dg.Grid(comm, backend=backend, rows=P), Cut(("rows",), dg.layout.partition(N, P)), Cut())
    labels, split = problem()[1:]
    two, some = labels.copy(), labels.copy()
    two[-1, 3], some[-1, 3] = 2, -1
    for what, given in (
        ("label 2 where there are 0 and 1 for each class", two),
        ("labels of some classes only", some),
        (r"labels of shape \(23, 6\) given for 23 nodes", labels[:, :6]),
        ("numbers, got complex128", labels * 1j),
    ):
        with pytest.raises((ValueError, RuntimeError), match=what):
            Targets(layout, CLASSES, given if rank == 0 else None, split)
    for given, metric, what in (
        (labels, "accuracy", "several classes of a node have f1 and rocauc"),
        (labels[:, 2], "f1", "one class of a node has accuracy; its micro F1 is the accuracy"),
    ):
        with pytest.raises(ArgumentError, match=what):
            Targets(layout, CLASSES, given, split, metric)


def several(p: Problem) -> Problem:
    """Return the same graph, where a node may have several of the classes."""
    r = np.random.default_rng(7)
    rows = (r.random((p.n, p.classes)) < 0.4).astype(np.int8)
    rows[p.labels < 0] = -1
    p.labels = rows
    return p


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_is_that_of_the_reference(comm, name, backend):
    """Every algorithm, those that cut classes too, with dropout, biases and trained features."""
    p, options = several(Problem()), {"dropout": 0.3, "bias": True}
    grid = wide_grid(comm, name, backend)
    model, X, _ = p.model(grid, name, **options)
    targets = model.targets(p.labels, p.split, "rocauc")
    got = list(train(model, X, targets, make("adam", 0.05), 3, train_features=True))
    serial = p.reference(**options)
    expected = serial.train(p.X, p.labels, p.split, 3, lr=0.05, train_features=True, metric="rocauc")
    for ours, theirs in zip(got, expected, strict=True):
        assert {key: ours[key] for key in theirs} == pytest.approx(theirs, rel=1e-9)
    np.testing.assert_allclose(model.get_weights()[0], serial.weights[0], rtol=1e-6)
    grid.free()


def test_the_losses_are_chosen_by_the_labels(backend):
    """Two numbers of a class each are not the same problem as one of two classes."""
    from mpi4py import MPI

    grid = dg.Grid(MPI.COMM_SELF, backend=backend, rows=1)
    layout = Layout(grid, Cut(("rows",), dg.layout.partition(N, 1)), Cut())
    Z, labels, split = problem(3)
    logits = dg.scatter(Z, layout)
    several, single = Targets(layout, 3, labels, split), Targets(layout, 3, labels[:, 2], split)
    assert (several.metric, single.metric) == ("f1", "accuracy")
    for targets, loss in ((several, binary_cross_entropy), (single, softmax_cross_entropy)):
        assert cross_entropy(logits, targets)[0] == loss(logits, targets)[0]
