"""Ends of layers, forward and backward, in the products that write what they change.

No product on a host does so. Here each does it right after itself, so that one that is not the last of its
rows, or whose ranks still have to sum, shows in the numbers.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

import distgnn as dg
from distgnn.arrays.kernels import Kernels
from distgnn.local import elementwise
from distgnn.nn.networks import NETWORKS
from distgnn.nn.optim import make
from distgnn.nn.whole_weights import collect
from distgnn.operators import make_grid
from distgnn.sampling import GraphSage, Replicated
from distgnn.train import MinibatchTraining
from distgnn.train.full_graph import train
from loops import each

from .problem import ALGORITHMS, Problem

ON = {"dropout": 0.4, "bias": True}
OPTIONS = {
    "dropout": ON,
    "aggregate first": ON | {"product_order": "aggregate-first"},
    "residual, norm": ON | {"residual": True, "layer_norm": True},
    "recomputed": ON | {"recompute": 2, "activation": "elu"},
}


@contextmanager
def ending():
    """Let dense and sparse products end what they write; give the number of ends by product and kind."""
    counts = Counter()
    dense, sparse = (sys.modules[f"distgnn.local.{name}"].KERNELS for name in ("gemm", "spmm"))
    one = np.zeros((1, 1))
    multiply, multiply_sparse = dense.kernel("gemm", one), sparse.kernel("spmm", one)

    def end(product, then, out):
        if then is not None and then.any:
            assert not then.done
            elementwise.apply(then, out)
            counts[product, type(then).__name__] += 1

    def gemm(A, B, out, accumulate, form, trans_a, then):
        multiply(A, B, out, accumulate, form, trans_a, then)
        end("gemm", then, out)

    def spmm_then(A, B, out, accumulate, then):
        multiply_sparse(A, B, out, accumulate)
        end("spmm", then, out)

    with pytest.MonkeyPatch.context() as patch:
        for table, functions in ((dense, {"gemm": gemm}), (sparse, {"spmm_then": spmm_then})):
            patch.setitem(table.rows, "numpy", [Kernels(functions), *table.rows["numpy"]])
        yield counts


def trained(comm, algorithm, network="gcn", symmetric=False, epochs=2, **options):
    """Return the losses of some epochs and the bytes of what was trained."""
    problem, grid = Problem(), make_grid(comm, algorithm, backend="numpy")
    if symmetric:
        problem.A = (problem.A + problem.A.T).tocsr()
    A = dg.distribute(problem.A.astype(np.float32), grid, algorithm)
    model = NETWORKS[network](A, [problem.width, 8, 8, 8, problem.classes], **options)
    targets = model.targets(problem.labels, problem.split)
    X = dg.scatter(problem.X.astype(np.float32), model.input_layout)
    records = train(model, X, targets, make("adam"), epochs, train_features=True)
    losses = [record["loss"] for record in records]
    assert len(set(losses)) == epochs
    weights = [collect(p.matrix).tobytes() for p in model.parameters]
    grid.free()
    return losses, weights


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@each("options", OPTIONS)
def test_equal_losses_and_weights(comm, algorithm, options):
    symmetric = options == "dropout"
    expected = trained(comm, algorithm, symmetric=symmetric, **OPTIONS[options])
    with ending():
        assert trained(comm, algorithm, symmetric=symmetric, **OPTIONS[options]) == expected


@pytest.mark.ranks(1)
@each("network", NETWORKS)
def test_equal_losses_of_other_networks(comm, network):
    expected = trained(comm, "1d", network, dropout=0.3, bias=True)
    with ending():
        assert trained(comm, "1d", network, dropout=0.3, bias=True) == expected


@pytest.mark.ranks(1)
@each("network", NETWORKS)
def test_equal_losses_of_minibatches(comm, network):
    """Blocks have more columns than rows: products with own rows end some of a gradient's rows alone."""
    problem, grid = Problem(), make_grid(comm, "1d", backend="numpy")
    matrix = problem.A.astype(np.float32)
    A, sampler = dg.distribute(matrix, grid, "1d"), GraphSage(Replicated(matrix), [2, 2, 2])

    def losses():
        model = NETWORKS[network](A, [problem.width, 8, 8, problem.classes], dropout=0.3, bias=True)
        targets = model.targets(problem.labels, problem.split)
        X = dg.scatter(problem.X.astype(np.float32), model.input_layout)
        training = MinibatchTraining(model, X, targets, sampler, 4, 1)
        return [record["loss"] for record in training.train(make("adam"), 2)]

    expected = losses()
    with ending():
        assert losses() == expected
    grid.free()


#: By algorithm, ranks and order the ends in dense and in sparse products, forward and backward, of four
#: layers in an epoch and of its evaluation. The end of the last layer is its bias.
ENDS = {
    ("1d", 1, "aggregate-first"): (8, 0, 0, 3),
    ("1d", 1, "transform-first"): (0, 3, 8, 0),
    ("1d", 4, "aggregate-first"): (8, 0, 0, 3),
    ("1d", 4, "transform-first"): (0, 3, 8, 0),
    ("2d", 4, "aggregate-first"): (8, 0, 0, 0),
    ("2d", 4, "transform-first"): (0, 3, 0, 0),
    ("3d", 1, "aggregate-first"): (8, 0, 0, 3),
    ("3d", 4, "aggregate-first"): (2, 0, 0, 0),  # of the layer whose sums no axis cuts
}


@pytest.mark.ranks(1, 4)
def test_ends_are_in_products(comm):
    for (algorithm, ranks, order), expected in ENDS.items():
        if ranks == comm.size:
            with ending() as counts:
                trained(comm, algorithm, epochs=1, **ON, product_order=order)
            kinds = ("gemm", "Epilogue"), ("gemm", "Kept"), ("spmm", "Epilogue"), ("spmm", "Kept")
            assert tuple(counts[kind] for kind in kinds) == expected, (algorithm, ranks, order)


@pytest.mark.ranks(1, 4)
def test_ends_of_graphsage_are_in_products(comm):
    """All ends but that of the layer whose narrower product an evaluation adds are in products."""
    with ending() as counts:
        trained(comm, "1d", "sage", epochs=1, **ON)
    assert counts == {("gemm", "Epilogue"): 7, ("gemm", "Kept"): 3}
