"""Kernels that an epoch of two layers launches, by network, counted on the stand-in for CuPy. Needs no GPU.

    PYTHONPATH=tests python benchmarks/launches.py

Of 256 nodes, 16 features, 16 hidden columns and 5 classes, on one rank, without CUDA graphs, which have
the same launches, but for the evaluation.
"""

from __future__ import annotations

import os

import numpy as np
from mpi4py import MPI

import distgnn as dg
from distgnn import gallery
from distgnn.nn import Adam
from distgnn.nn.networks import NETWORKS
from distgnn.operators import make_grid
from distgnn.train.full_graph import train
from mpi_helpers.gpu import stand_in
from table import arguments, columns, heading, publish

WIDTHS = [16, 16, 5]
DROPOUT = 0.5
EIGHT = {"heads": [8, 8]}


def launches(stand_in, network: str, evaluate: bool, **options) -> int:
    """Count the launches of an epoch after those in which kernels are chosen."""
    random, A = np.random.default_rng(0), gallery.rmat(256, degree=16).A.astype(np.float32)
    grid = make_grid(MPI.COMM_SELF, "1d", backend="cupy")
    model = NETWORKS[network](dg.distribute(A, grid, "1d"), WIDTHS, **options)
    labels, split = random.integers(0, WIDTHS[-1], 256).astype(np.int32), np.ones(256, np.uint8)
    X = dg.scatter(random.standard_normal((256, WIDTHS[0])).astype(np.float32), model.input_layout)
    every = 1 if evaluate else 0
    epochs = train(model, X, model.targets(labels, split), Adam(0.01), 6, eval_every=every)
    for _ in range(5):
        next(epochs)
    with stand_in.observed() as seen:
        next(epochs)
    return seen.counts["launches"]


def main() -> None:
    args = arguments(__doc__).parse_args()
    os.environ["DISTGNN_SPMM_TUNE"] = "0"
    lines = columns("network", "an epoch", "evaluated", "dropout", "dropout, evaluated", "8 and 8 heads")
    with stand_in() as asked:
        for network in NETWORKS:
            attends = NETWORKS[network].attends
            drops = {"dropout": DROPOUT} | ({"attention_dropout": DROPOUT} if attends else {})
            ways = [({}, False), ({}, True), (drops, False), (drops, True), *[(EIGHT, False)] * attends]
            counts = [str(launches(asked, network, evaluate, **options)) for options, evaluate in ways]
            lines.append(f"| {network} | {' | '.join(counts + [''] * (5 - len(counts)))} |")
    publish(args, "\n".join([heading(args), "", *lines]))


if __name__ == "__main__":
    main()
