"""The serial oracle itself: its gradients against finite differences, its pieces against the textbook."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.nn.reference import normalize
from oracle import GCNReference, spmm
from oracle_scores import accuracy, labelled, softmax_cross_entropy

N, WIDTHS = 17, [5, 4, 6, 3]


def problem() -> tuple[sp.csr_array, np.ndarray, np.ndarray, np.ndarray]:
    r = np.random.default_rng(1)
    A = sp.csr_array(np.where(r.random((N, N)) < 0.3, r.standard_normal((N, N)), 0))
    return A, r.standard_normal((N, 5)), r.integers(0, 3, N), r.integers(0, 4, N).astype(np.uint8)


def test_spmm_is_the_dense_product() -> None:
    A, X, _, _ = problem()
    np.testing.assert_allclose(spmm(A, X), A.toarray() @ X)


def test_cross_entropy_is_the_textbook_formula() -> None:
    Z, labels = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]), np.array([0, 2, 1])
    loss, G = softmax_cross_entropy(Z, labels, np.array([0, 1]))
    p = np.exp(Z[0]) / np.exp(Z[0]).sum()
    assert loss == pytest.approx((-np.log(p[0]) + np.log(3)) / 2)
    np.testing.assert_allclose(G[0], (p - [1, 0, 0]) / 2)
    np.testing.assert_allclose(G[1], [1 / 6, 1 / 6, 1 / 6 - 1 / 2])
    assert not G[2].any()


def test_cross_entropy_of_large_logits_and_of_no_nodes() -> None:
    loss, G = softmax_cross_entropy(np.array([[1e4, -1e4]]), np.array([1]), np.array([0]))
    assert loss == 2e4 and np.isfinite(G).all()
    assert softmax_cross_entropy(np.ones((2, 2)), np.zeros(2, int), np.array([], int))[0] == 0


def test_accuracy_takes_the_first_of_equal_logits() -> None:
    Z = np.array([[1.0, 1.0], [0.0, 2.0], [3.0, 3.0]])
    assert accuracy(Z, np.array([0, 1, 1]), np.arange(3)) == pytest.approx(2 / 3)
    assert np.isnan(accuracy(Z, np.array([0, 1, 1]), np.array([], int)))


def test_nodes_without_label_belong_to_no_part() -> None:
    assert labelled(np.array([0, -1, 2]), np.array([1, 1, 1]), 1).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("dropout", "bias", "deep"),
    [(0.0, False, False), (0.0, True, False), (0.4, False, False), (0.4, True, True)],
)
def test_gradients_are_those_of_finite_differences(dropout: float, bias: bool, deep: bool) -> None:
    """`deep`: with residual connections and layer norm."""
    A, X, labels, split = problem()
    rows, widths = labelled(labels, split, 1), [5, 5, 4, 3] if deep else WIDTHS
    how = {"seed": 2, "dropout": dropout, "bias": bias, "residual": deep, "layer_norm": deep}
    model = GCNReference(A, widths, dtype=np.float64, **how)
    for layer, (gain, shift) in enumerate(zip(model.gains, model.shifts, strict=True)):
        gain[...], shift[...] = np.linspace(0.5, 2, len(gain)), 0.2 * (layer + 1)
    for layer, b in enumerate(model.biases):
        b[...] = 0.1 * (layer + 1)
    _, dW, db, dX = model.gradients(X, labels, rows, epoch=3)
    pairs = [*zip(model.weights, dW, strict=True), *zip(model.biases, db, strict=True), (X, dX)]
    for layer, (by_gain, by_shift) in model.norm_gradients.items():
        pairs += [(model.gains[layer], by_gain), (model.shifts[layer], by_shift)]
    assert len(pairs) == 1 + len(dW) + len(db) + 4 * deep
    for parameter, gradient in pairs:
        numeric = np.zeros_like(parameter)
        for index in np.ndindex(*parameter.shape):
            old = parameter[index]
            parameter[index] = old + 1e-6
            above = model.gradients(X, labels, rows, epoch=3)[0]
            parameter[index] = old - 1e-6
            below = model.gradients(X, labels, rows, epoch=3)[0]
            parameter[index] = old
            numeric[index] = (above - below) / 2e-6
        np.testing.assert_allclose(gradient, numeric, atol=1e-7)


def test_one_step_of_every_optimizer() -> None:
    """Against the update rules worked out for one number."""
    A, X, labels, split = problem()
    rows = labelled(labels, split, 1)
    before = GCNReference(A, [5, 3], dtype=np.float64)
    g = before.gradients(X, labels, rows)[1][0]
    w = before.weights[0]
    expected = {
        "sgd": w - 0.1 * (g + 0.3 * w),
        "adam": w - 0.1 * np.sign(g + 0.3 * w),
        "adamw": w * (1 - 0.1 * 0.3) - 0.1 * np.sign(g),
    }
    for name, result in expected.items():
        model = GCNReference(A, [5, 3], dtype=np.float64)
        list(model.train(X, labels, split, 1, name, lr=0.1, weight_decay=0.3))
        np.testing.assert_allclose(model.weights[0], result, atol=1e-5)


def test_weight_decay_per_layer_and_momentum() -> None:
    A, X, labels, split = problem()
    plain, decayed, fast = (GCNReference(A, [5, 4, 3], dtype=np.float64) for _ in range(3))
    list(plain.train(X, labels, split, 1, "sgd", lr=0.1))
    list(decayed.train(X, labels, split, 1, "sgd", lr=0.1, weight_decay=[0.5, 0.0]))
    np.testing.assert_array_equal(plain.weights[1], decayed.weights[1])
    assert abs(plain.weights[0] - decayed.weights[0]).max() > 1e-3
    losses = [record["loss"] for record in fast.train(X, labels, split, 30, "sgd", lr=0.1, momentum=0.9)]
    assert losses[-1] < losses[0]


def test_node_order_does_not_matter() -> None:
    """The same graph in another order, told the original ids, trains to the same weights with dropout."""
    A, X, labels, split = problem()
    p = np.random.default_rng(5).permutation(N)
    one = GCNReference(A, WIDTHS, dropout=0.5, dtype=np.float64)
    other = GCNReference(sp.csr_array(A[p][:, p]), WIDTHS, dropout=0.5, dtype=np.float64, nodes=p)
    first = [record["loss"] for record in one.train(X, labels, split, 5)]
    second = [record["loss"] for record in other.train(X[p], labels[p], split[p], 5)]
    np.testing.assert_allclose(first, second, rtol=1e-12)


def test_training_leaves_its_inputs_alone() -> None:
    A, X, labels, split = problem()
    copies = X.copy(), labels.copy(), split.copy()
    model = GCNReference(A, WIDTHS, dtype=np.float64)
    list(model.train(X, labels, split, 3, train_features=True))
    for array, copy in zip((X, labels, split), copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert abs(model.features - X).max() > 0


def test_normalize_is_the_textbook_formula():
    A = np.array([[0.0, 1, 0, 0], [1, 2, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    loops = np.array([1.0, 0, 1, 1])  # node 1 has one already
    with_loops = A + np.diag(loops)
    scale = np.diag(1 / np.sqrt(with_loops.sum(axis=1)))
    normal = normalize(sp.csr_array(A), dtype=np.float64)
    np.testing.assert_allclose(normal.toarray(), scale @ with_loops @ scale, rtol=1e-15)
    assert (normal != normal.T).nnz == 0
    bare = normalize(sp.csr_array(A), self_loops=False).toarray()
    assert np.isfinite(bare).all() and not bare[3].any()
