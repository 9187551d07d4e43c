"""Gradients whose messages have 16 bits, of a mean over nodes and of its sum, beside the exact ones.

    mpiexec -n 4 python benchmarks/float16_gradients.py --scales 12 16 20

float16 has no normal numbers below 6.1e-5 and none below 6.0e-8, and the gradient of a mean over n nodes has
entries of about 1/n. So networks send gradients of the sum over nodes, and divide them where they reach the
weights. The rows "mean" show a network that does not, by patching the number of nodes to 1.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from cases import rmat
from distgnn.comm.launch import abort_on_error
from distgnn.nn import gcn
from distgnn.nn.optim import Adam
from distgnn.train.full_graph import train

WIDTHS = [16, 48, 48, 40]
WAYS = ((None, "sum"), ("bfloat16", "sum"), ("float16", "sum"), ("float16", "mean"))


def main() -> None:
    abort_on_error()
    parser = table.arguments(__doc__)
    parser.add_argument("--scales", type=int, nargs="+", default=[12, 16, 20], help="2 to this many nodes")
    parser.add_argument("--epochs", type=int, default=30)
    args, comm = parser.parse_args(), MPI.COMM_WORLD
    apart = *(f"dW{i} apart" for i in range(3)), f"losses of {args.epochs} epochs apart"
    lines = [table.heading(args, comm.size), "", *table.columns("nodes", "messages", "gradients of", *apart)]
    for scale in args.scales:
        lines += compared(comm, 1 << scale, args.epochs)
    if comm.rank == 0:
        table.publish(args, "\n".join([*lines, ""]))


def compared(comm: MPI.Intracomm, n: int, epochs: int) -> list[str]:
    """Return the rows of one graph: largest differences by a gradient's largest entry. Collective."""
    rng, rows = np.random.default_rng(0), []
    A = rmat(n, 4)
    X = rng.standard_normal((n, WIDTHS[0]), np.float32)
    labels = rng.integers(0, WIDTHS[-1], n).astype(np.int32)
    exact: Any = None
    for wire, of in WAYS:
        grid = dg.make_grid(comm, "1d", backend="numpy", wire=wire)
        with mock.patch.object(gcn, "mean_over", gcn.mean_over if of == "sum" else lambda targets: 1):
            gradients, losses = trained(A, grid, X, labels, epochs)
        grid.free()
        exact = exact or (gradients, losses)
        apart = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(gradients, exact[0], strict=True)]
        cells = [f"{x:.1e}" for x in (*apart, np.abs(losses / exact[1] - 1).max())]
        rows += [f"| 2^{n.bit_length() - 1} | {wire} | {of} | {' | '.join(cells)} |"] if wire else []
    return rows


def trained(A: Any, grid: dg.Grid, X: Any, labels: Any, epochs: int) -> tuple[list[Any], np.ndarray]:
    """Return the first gradients of the weights, and the losses of a training from there. Collective."""
    model = gcn.GCN(dg.distribute(A, grid, "1d"), WIDTHS, seed=1, bias=False)
    targets, H = model.targets(labels, np.ones(len(labels), np.uint8)), dg.scatter(X, model.input_layout)
    gradients = [block.copy() for block in model.gradients(H, targets)[2]]
    losses = [record["loss"] for record in train(model, H, targets, Adam(0.01), epochs, eval_every=0)]
    return gradients, np.array(losses)


if __name__ == "__main__":
    main()
