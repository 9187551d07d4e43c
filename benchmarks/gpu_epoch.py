"""Seconds per epoch of a three-layer GCN on one GPU, beside PyTorch, PyTorch Geometric and DGL.

    python benchmarks/gpu_epoch.py --out results/gpu_epoch.md

One rank, widths 128-128-128-40, no dropout, Adam, every node a training node. All have the same graph,
normalised beforehand, the same features and the same first weights, and losses are compared. Peers run in a
process of their own (``gpu_epoch_peers.py``), one after the other. Losses of the first ten epochs must agree:
later ones drift apart by rounding, as ``--drift`` shows on the host, without a GPU. An epoch is timed between
two moments at which the device is idle; the median leaves out the first twenty, in which distgnn chooses its
kernels. It multiplies the features by A in every epoch as its peers do (``keep_aggregate=False``), once more
as CUDA graphs. ``--wire`` trains once more with products that read 16 bits, whose losses may differ by
``--wire-tolerance``. Graphs are R-MAT:
rmat-K-D has 2^K nodes and D neighbours per node, duplicates counted; rmat-16-492 has Reddit's degree. With
``--kept-in`` they are kept in a folder; ``--make`` does no more than that, while other work goes on, say.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from cases import rmat
from distgnn.arrays import backend
from distgnn.local.narrow import KINDS
from distgnn.nn.optim import Adam
from distgnn.train.full_graph import train
from gpu_spmm import device_name

WIDTHS = [128, 128, 128, 40]
TOLERANCE, COMPARED = 1e-3, 10  # of relative differences between losses, in so many epochs
PEERS = Path(__file__).with_name("gpu_epoch_peers.py")
HEADER = "graph", "non-zeros", "by", "ms per epoch", "distgnn is faster by", "losses differ by"


def main() -> int:
    parser = table.arguments(__doc__)
    parser.add_argument("--graphs", nargs="+", default=["rmat-16-492", "rmat-20-16"], metavar="rmat-K-D")
    parser.add_argument("--epochs", type=int, default=20, help="timed, after those to warm up")
    parser.add_argument("--warm-up", type=int, default=20, help="epochs")
    parser.add_argument("--wire", nargs="+", choices=KINDS, default=[], help="also with such products")
    parser.add_argument("--wire-tolerance", type=float, default=1e-2, help="of losses (0.01)")
    parser.add_argument("--kept-in", type=Path, metavar="FOLDER", help="read graphs from here, or save them")
    parser.add_argument("--make", action="store_true", help="make the graphs for --kept-in, and no more")
    parser.add_argument("--drift", action="store_true", help="float32 beside float64, on the host")
    args = parser.parse_args()
    if args.make:
        for name in args.graphs:
            print(f"{name}: {normalized(name, args.kept_in).nnz} non-zeros", flush=True)
        return 0
    if args.drift:
        tell(args, f"{table.heading(args)}\n", *drift(args), "")
        return 0
    if "cupy" not in backend.available():
        print("gpu_epoch: no GPU here, or no CuPy", file=sys.stderr)
        return 2
    device = device_name(backend.get("cupy").xp)
    tell(args, f"{table.heading(args)}; {device}\n", *table.columns(*HEADER))
    found = [compare(name, args) for name in args.graphs]
    wrong = False
    for of_wire, allowed in ((False, TOLERANCE), (True, args.wire_tolerance))[: 1 + bool(args.wire)]:
        worst = max(apart[of_wire] for apart in found)
        kind = "with 16 bits " if of_wire else ""
        verdict = f"\nLargest relative difference of losses {kind}{worst:.1e}, allowed {allowed:.0e}."
        tell(args, verdict + "**WRONG**" * (worst > allowed))
        wrong |= worst > allowed
    tell(args, "")
    return int(wrong)


def tell(args: argparse.Namespace, *lines: str) -> None:
    """Print lines, and append them to ``--out`` at once: a run may be cut off."""
    print(*lines, sep="\n", flush=True)
    if args.out:
        with args.out.open("a") as file:
            print(*lines, sep="\n", file=file)


def compare(name: str, args: argparse.Namespace) -> dict[bool, float]:
    """Tell the rows of one graph; return the largest relative difference between losses, False: of all others
    than those (True) of products that read 16 bits.
    """
    A = normalized(name, args.kept_in)
    worst, own = {False: 0.0, True: 0.0}, None
    with tempfile.TemporaryDirectory() as folder:
        for answer in every(A, Path(folder), args.warm_up + args.epochs, args.wire):
            if "reason" in answer:
                tell(args, f"| {name} | {A.nnz} | {answer['name']} | {answer['reason']} | | |")
                continue
            own = own or answer
            seconds, least = (float(np.median(x["seconds"][args.warm_up :])) for x in (answer, own))
            apart = difference(answer["losses"], own["losses"])
            of_wire = "float16" in answer["name"]
            worst[of_wire] = max(worst[of_wire], apart)
            numbers = f"{1e3 * seconds:.3f} | {seconds / least:.2f} | {apart:.1e}"
            tell(args, f"| {name} | {A.nnz} | {answer['name']} | {numbers} |")
    return worst


def normalized(name: str, folder: Path | None) -> sp.csr_array:
    """Make the graph of this name, or read it from the folder; a process that makes it now is waited for."""
    if folder is None:
        return made(name)
    file = folder / f"{name}.npz"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            sp.save_npz(file.with_suffix(".part.npz"), made(name), compressed=False)
            file.with_suffix(".part.npz").replace(file)
    return sp.load_npz(file)


def made(name: str) -> sp.csr_array:
    _, scale, degree = name.split("-")
    return rmat(1 << int(scale), float(degree))


def difference(losses: list[float], others: list[float], epochs: int = COMPARED) -> float:
    """Return the largest relative difference in the first epochs; infinite where a loss is not a number."""
    apart = np.abs(np.subtract(losses, others)[:epochs]) / np.abs(others[:epochs])
    return float(np.nan_to_num(apart, nan=np.inf).max())


def drift(args: argparse.Namespace) -> Iterator[str]:
    """Give the table of trainings in float32, with A X W in either order, beside one in float64."""
    epochs = args.warm_up + args.epochs
    yield from table.columns("graph", "order", f"apart in {COMPARED} epochs", f"in {epochs} epochs")
    for name in args.graphs:
        A = normalized(name, args.kept_in)
        with tempfile.TemporaryDirectory() as folder:
            exact = ours(A, Path(folder), epochs, where="numpy", dtype=np.float64)["losses"]
            for order in ("transform-first", "aggregate-first"):
                losses = ours(A, Path(folder), epochs, where="numpy", product_order=order)["losses"]
                apart = [f"{difference(losses, exact, some):.1e}" for some in (COMPARED, epochs)]
                yield f"| {name} | {order} | {' | '.join(apart)} |"


def every(A: sp.csr_array, folder: Path, epochs: int, wires: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run distgnn and then its peers; give each result as soon as it is known."""
    for wire, cuda_graph in ((None, False), (None, True), *((wire, True) for wire in wires)):
        yield ours(A, folder, epochs, wire, cuda_graph)
        backend.get("cupy").xp.get_default_memory_pool().free_all_blocks()
    command = [sys.executable, "-W", "ignore", str(PEERS), str(folder), str(epochs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield from map(json.loads, process.stdout)
    if process.returncode:
        yield {"name": "peers", "reason": f"ended with exit status {process.returncode}"}


def ours(
    A: sp.csr_array, folder: Path, epochs: int, wire: str | None = None, cuda_graph: bool = False,
    where: str = "cupy", dtype: Any = np.float32, product_order: str = "auto",
) -> dict[str, Any]:  # fmt: skip
    """Train, and save the problem for the peers."""
    on, rng, n = backend.get(where), np.random.default_rng(0), A.shape[0]
    X = rng.standard_normal((n, WIDTHS[0]), np.float32)
    labels = rng.integers(0, WIDTHS[-1], n)
    operator = dg.distribute(A.astype(dtype), dg.Grid(MPI.COMM_SELF, backend=on, wire=wire, rows=1), "1d")
    model = dg.nn.GCN(operator, WIDTHS, keep_aggregate=False, product_order=product_order)
    model.tune()  # as ``distgnn train`` does
    problem = {"indptr": A.indptr, "indices": A.indices, "data": A.data, "X": X, "labels": labels}
    problem |= {p.name: on.to_host(p.block) for p in model.parameters}
    for name, array in problem.items():
        np.save(folder / f"{name}.npy", array)
    targets = model.targets(labels.astype(np.int32), np.ones(n, np.uint8))
    how: Any = {"eval_every": 0, "cuda_graph": cuda_graph}
    run = train(model, dg.scatter(X.astype(dtype), model.input_layout), targets, Adam(0.01), epochs, **how)
    losses, seconds = [], []
    for _ in range(epochs):
        on.synchronize()
        started = time.perf_counter()
        losses.append(next(run)["loss"])
        on.synchronize()
        seconds.append(time.perf_counter() - started)
    name = ", ".join(["distgnn", *filter(None, ["CUDA graphs" if cuda_graph else "", wire])])
    return {"name": name, "losses": losses, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
