"""Graphs of the programs that measure one GPU, by name, kept in a folder if one is given.

    python benchmarks/gpu_graphs.py NAME ... --kept-in FOLDER      makes them, and no more

Names of matrices with random values, of 2^K nodes: rmat-K, uniform-K (16 columns drawn at random in each
row), dense-K (128), reddit-K (degrees log-normal around 256), sbm-K, road-K. Of normalised adjacency
matrices: rmat-K-D, D neighbours per node, duplicates counted; rmat-16-492 has Reddit's degree.
"""

from __future__ import annotations

import argparse
import fcntl
import math
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from distgnn import gallery


def uniform(n: int, degree: int) -> sp.csr_array:
    """Make rows of ``degree`` columns drawn at random."""
    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, n, (n, degree)), axis=1).ravel()
    return sp.csr_array((np.ones(n * degree), indices, np.arange(n + 1) * degree), shape=(n, n))


def reddit(n: int, degree: int = 256) -> sp.csr_array:
    """Make a graph of degrees log-normal around ``degree``; a fifth of the columns get four fifths of the
    draws.
    """
    rng = np.random.default_rng(0)
    degrees = np.minimum(rng.lognormal(math.log(degree) - 0.5, 1, n).astype(np.int64) + 1, n)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    drawn = (n * rng.random(indptr[-1], np.float32) ** 7).astype(np.int64)  # 0.2^(1/7) = 0.8
    A = sp.csr_array((np.ones(len(drawn), np.float32), drawn * 40503 % n, indptr), shape=(n, n))
    A.sort_indices()
    return A


def graph(name: str) -> sp.csr_array:
    """Make the matrix of this name; see the module."""
    kind, exponent, *degree = name.split("-")
    n = 1 << int(exponent)
    if degree:
        from cases import rmat  # which needs MPI

        return rmat(n, float(degree[0]))
    if kind in ("uniform", "dense"):
        A = uniform(n, 16 if kind == "uniform" else 128)
    elif kind == "reddit":
        A = reddit(n)
    else:
        A = {"rmat": gallery.rmat, "sbm": gallery.sbm, "road": gallery.road}[kind](n).A
    A.data = np.random.default_rng(1).uniform(0.5, 1, A.nnz)
    return A


def kept(name: str, folder: Path | None) -> sp.csr_array:
    """Make the matrix, or read it from the folder; a process that makes it now is waited for."""
    if folder is None:
        return graph(name)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.npz"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            sp.save_npz(file.with_suffix(".part.npz"), graph(name), compressed=False)
            file.with_suffix(".part.npz").replace(file)
    return sp.load_npz(file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--kept-in", type=Path, metavar="FOLDER", required=True)
    args = parser.parse_args()
    for name in args.names:
        print(f"{name}: {kept(name, args.kept_in).nnz} non-zeros", flush=True)


if __name__ == "__main__":
    main()
