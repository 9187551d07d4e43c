"""Loss and accuracy where rows and classes are cut, against the serial formulas."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn.arrays.tuning import TUNING
from distgnn.layout import Cut, Layout
from distgnn.nn.loss import LossRows, Targets, softmax_cross_entropy
from distgnn.nn.metrics import accuracies
from oracle_scores import accuracy, labelled
from oracle_scores import softmax_cross_entropy as serial_loss

from ..operators.orders import node_order

N, CLASSES = 23, 7
PARTS = {"train_acc": 1, "val_acc": 2, "test_acc": 3}


def problem(classes=CLASSES, seed=0):
    r = np.random.default_rng(seed)
    labels = r.integers(0, classes, N).astype(np.int32)
    labels[4] = -1
    return r.standard_normal((N, classes)) * 3, labels, r.integers(0, 4, N).astype(np.uint8)


def layouts(comm, backend):
    """Yield layouts with rows over one axis, classes over another, copies over a third, in all sizes."""
    P = comm.Get_size()
    for rows, cols in {(1, 1), (P, 1), (1, P), (P // 2, 2), (2, P // 4)}:
        if rows * cols and P % (rows * cols) == 0:
            grid = dg.Grid(comm, backend=backend, copies=P // (rows * cols), rows=rows, cols=cols)
            parts = dg.layout.partition(N, rows)
            if rows > 1:
                parts[1] = 0  # a rank without nodes
            yield Layout(grid, Cut(("rows",), parts), Cut(("cols",)))


def place(layout, Z, labels, split):
    return dg.scatter(Z, layout), Targets(layout, Z.shape[1], labels, split)


@pytest.mark.ranks(4)
def test_passes_over_few_rows_change_no_bit(comm, backend, monkeypatch):
    """Rows of logits whose classes are cut are gone through in passes, which look for own classes in each."""
    Z, labels, _ = problem()
    split, found = np.ones(N, np.uint8) * (labels >= 0), []
    for numbers in (1 << 16, 8):
        for at_a_time in ("cached_numbers", "launched_numbers"):
            monkeypatch.setattr(TUNING, at_a_time, numbers)
        for layout in layouts(comm, backend):
            logits, targets = place(layout, Z, labels, split)
            found.append([softmax_cross_entropy(logits, targets, overwrite) for overwrite in (False, True)])
    loss, _ = serial_loss(Z, labels, labelled(labels, split, 1))
    half = len(found) // 2
    for one_pass, few_rows in zip(found[:half], found[half:], strict=True):
        for (expected, whole), (got, gradient) in zip(one_pass, few_rows, strict=True):
            assert got == expected == pytest.approx(loss, rel=1e-12)
            assert backend.to_host(gradient.block).tobytes() == backend.to_host(whole.block).tobytes()


@pytest.mark.ranks(1, 4, 8)
@pytest.mark.parametrize("classes", [1, 3, CLASSES])
def test_loss_and_gradient_are_the_serial_ones(comm, backend, classes):
    """Also with fewer classes than ranks they are cut over, and where a rank has no nodes."""
    Z, labels, split = problem(classes)
    loss, G = serial_loss(Z, labels, labelled(labels, split, 1))
    for layout in layouts(comm, backend):
        logits, targets = place(layout, Z, labels, split)
        for overwrite in (False, True):
            got, gradient = softmax_cross_entropy(logits, targets, overwrite)
            assert got == pytest.approx(loss, rel=1e-12, abs=1e-15)
            whole = dg.gather(gradient)
            if comm.Get_rank() == 0:
                np.testing.assert_allclose(whole, G, rtol=1e-10, atol=1e-15)


@pytest.mark.ranks(1, 4)
def test_logits_and_labels_are_not_changed(comm, backend):
    """A loss in place was once right on one rank and wrong from the second epoch where classes were cut."""
    Z, labels, split = problem()
    for layout in layouts(comm, backend):
        logits, targets = place(layout, Z, labels, split)
        before = backend.to_host(logits.block).copy(), backend.to_host(targets.train_labels).copy()
        first = softmax_cross_entropy(logits, targets)[0]
        assert softmax_cross_entropy(logits, targets)[0] == first
        np.testing.assert_array_equal(backend.to_host(logits.block), before[0])
        np.testing.assert_array_equal(backend.to_host(targets.train_labels), before[1])


@pytest.mark.ranks(1, 4)
def test_targets_are_copies(comm, backend):
    _, labels, split = problem()
    layout = Layout(dg.Grid(comm, backend=backend, rows=comm.Get_size()), Cut(("rows",), None), Cut())
    layout = Layout(layout.grid, Cut(("rows",), dg.layout.partition(N, comm.Get_size())), Cut())
    mine = labels.copy()
    targets = Targets(layout, CLASSES, mine, split)
    kept = backend.to_host(targets.labels).copy()
    mine[:] = 0
    np.testing.assert_array_equal(backend.to_host(targets.labels), kept)


@pytest.mark.ranks(1, 4)
def test_large_logits_stay_finite(comm, backend):
    Z, labels, split = problem()
    Z *= 1e4
    expected = serial_loss(Z, labels, labelled(labels, split, 1))[0]
    for layout in layouts(comm, backend):
        logits, targets = place(layout, Z, labels, split)
        assert softmax_cross_entropy(logits, targets)[0] == pytest.approx(expected)


@pytest.mark.ranks(1, 4)
def test_loss_counts_training_nodes_of_the_whole_graph(comm, backend):
    """Not those of this rank, and not every copy of a node."""
    Z, labels, split = problem()
    for layout in layouts(comm, backend):
        targets = place(layout, Z, labels, split)[1]
        assert targets.counts[1:] == [len(labelled(labels, split, part)) for part in (1, 2, 3)]


@pytest.mark.ranks(1, 4, 8)
def test_accuracies_are_the_serial_ones_and_ties_go_to_the_first_class(comm, backend):
    Z, labels, split = problem()
    Z = np.round(Z)  # many equal logits, in blocks of different ranks too
    for layout in layouts(comm, backend):
        logits, targets = place(layout, Z, labels, split)
        for name, found in accuracies(logits, targets).items():
            assert found == accuracy(Z, labels, labelled(labels, split, PARTS[name]))


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_no_answer(comm, backend, number):
    """Neither right nor wrong, whether or not another class has a larger logit."""
    Z, labels, split = problem()
    node = labelled(labels, split, 2)[-1]
    for layout in layouts(comm, backend):
        targets = place(layout, Z, labels, split)[1]
        for column in (0, CLASSES - 1, Z[node].argmin(), Z[node].argmax()):
            for where, fine in ((4, True), (node, False)):  # node 4 has no label
                wrong = Z.copy()
                wrong[where, column] = number
                logits = dg.scatter(wrong, layout)
                if fine:
                    assert accuracies(logits, targets)["val_acc"] >= 0
                    continue
                with pytest.raises(FloatingPointError, match="the logits of 1 labelled nodes are not finite"):
                    accuracies(logits, targets)


@pytest.mark.ranks(1, 2)
def test_accuracy_of_no_nodes_is_nan(comm, backend):
    Z, labels, split = problem()
    split[split == 3] = 0
    layout = next(layouts(comm, backend))
    logits, targets = place(layout, Z, labels, split)
    assert np.isnan(accuracies(logits, targets)["test_acc"])


@pytest.mark.ranks(1, 4)
def test_logits_never_travel(comm, backend):
    """Two words per training node over the axis that cuts the classes, two more of scalars: no block of
    logits.
    """
    P = comm.Get_size()
    Z, labels, split = problem()
    layout = Layout(
        dg.Grid(comm, backend=backend, cols=P), Cut((), dg.layout.partition(N, 1)), Cut(("cols",))
    )
    logits, targets = place(layout, Z, labels, split)
    with dg.Ledger() as ledger:
        softmax_cross_entropy(logits, targets)
    assert ledger.words == round(2 * (P - 1) / P * (2 * targets.counts[1] + 1))


@pytest.mark.ranks(1, 3)
def test_wrong_targets_raise_on_every_rank(comm, backend):
    """Only rank 0 has them, and only the last rank's are wrong; the others must not wait for it."""
    P, rank = comm.Get_size(), comm.Get_rank()
    grid = dg.Grid(comm, backend=backend, rows=P)
    layout = Layout(grid, Cut(("rows",), dg.layout.partition(N, P)), Cut())
    labels, split = problem()[1:]
    last = np.arange(N) == N - 1
    for what, *given in (
        ("label 7", np.where(last, CLASSES, labels), split),
        ("label -2", np.where(last, -2, labels), split),
        ("split", labels, np.where(last, 4, split)),
        (r"labels of shape \(22,\) given for 23 nodes", labels[1:], split),
        (r"split of shape \(23, 1\) given for 23 nodes", labels, split[:, None]),
        ("split must be whole numbers, got float64", labels, split / 2),
    ):
        with pytest.raises((ValueError, RuntimeError), match=what):
            Targets(layout, CLASSES, *(given if rank == 0 else (None, None)))


@pytest.mark.ranks(1, 3)
def test_targets_that_are_cut_already(comm, backend):
    """Cut like the logits, with the nodes in the same order, on all ranks; or refused."""
    P, p = comm.Get_size(), np.random.default_rng(2).permutation(N)
    grid = dg.Grid(comm, backend=backend, rows=P)
    plain, ordered = (Cut(("rows",), dg.layout.partition(N, P), order) for order in (None, node_order(p)))
    Z, labels, split = problem()
    layout = Layout(grid, ordered, Cut())
    columns = [dg.scatter(values[:, None], layout) for values in (labels, split)]
    assert softmax_cross_entropy(dg.scatter(Z, layout), Targets(layout, CLASSES, *columns))[
        0
    ] == pytest.approx(serial_loss(Z, labels, labelled(labels, split, 1))[0], rel=1e-12)
    with pytest.raises(ValueError, match="labels must be cut like the logits"):
        Targets(Layout(grid, plain, Cut()), CLASSES, *columns)
    with pytest.raises(ValueError, match="labels must be cut like the logits"):
        Targets(layout, CLASSES, dg.scatter(np.stack((labels, labels), axis=1), layout), columns[1])
    if P > 1:
        with pytest.raises(
            (ValueError, RuntimeError), match="split must be cut like the logits on all ranks"
        ):
            Targets(layout, CLASSES, columns[0], columns[1] if comm.Get_rank() == 0 else split)
    targets = Targets(Layout(grid, plain, Cut()), CLASSES, labels, split)
    for judge in (softmax_cross_entropy, accuracies):
        with pytest.raises(ValueError, match="logits are cut over .* in order of the test, .* their targets"):
            judge(dg.scatter(Z, layout), targets)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_weighted_sum_over_some_rows_against_finite_differences(comm, passes, backend, weighted):
    """A minibatch has such a sum. All layouts: classes and rows cut, rows without loss."""
    r = np.random.default_rng(0)
    Z, chosen = r.standard_normal((N, 4)), np.sort(r.permutation(N)[:9])
    labels, weights = r.integers(0, 4, N), r.uniform(0.5, 2, N) if weighted else np.ones(N)

    def expected(logits):
        sums = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(N), labels]
        return (weights * sums)[chosen].sum() / 2

    numeric = np.zeros_like(Z)
    for place in np.ndindex(Z.shape):
        nudged = Z.copy()
        nudged[place] += 1e-6
        numeric[place] = (expected(nudged) - expected(Z)) / 1e-6
    for layout in layouts(comm, backend):
        first, last = layout.ranges(Z.shape)[0]
        rows = chosen[(chosen >= first) & (chosen < last)]
        mine = backend.asarray(weights[rows]) if weighted else None
        targets = LossRows(backend.asarray(rows - first), backend.asarray(labels[rows]), 2, mine)
        for overwrite in (False, True):
            loss, G = softmax_cross_entropy(dg.scatter(Z, layout), targets, overwrite)
            assert loss == pytest.approx(expected(Z), rel=1e-12)
            whole = dg.gather(G)
            if comm.Get_rank() == 0:
                np.testing.assert_allclose(whole, numeric, atol=1e-5)
