"""The network of ``gpu_epoch.py`` in PyTorch, PyTorch Geometric and DGL, in a process without distgnn.

    python benchmarks/gpu_epoch_peers.py FOLDER EPOCHS

FOLDER holds the problem as ``gpu_epoch.py`` saved it. Prints a line of JSON per peer: its name, and the
losses and seconds of its epochs or the reason why there are none.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Problem = dict[str, Any]
Network = tuple[list[Any], Callable[[int, Any], Any]]  # weights, and (index of a layer, H) -> A H W


def load(folder: Path) -> Problem:
    """Load the CSR arrays of A, X, labels and W0, W1, ... as tensors, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    files = {path.stem: torch.from_numpy(np.load(path)).to(device) for path in sorted(folder.glob("*.npy"))}
    weights = [files.pop(name) for name in list(files) if name.startswith("W")]
    return files | {"weights": weights, "device": device}


def csr(problem: Problem) -> Any:
    n = len(problem["indptr"]) - 1
    return torch.sparse_csr_tensor(problem["indptr"], problem["indices"], problem["data"], size=(n, n))


def edges(problem: Problem) -> tuple[Any, Any]:
    """Return source and target of every non-zero."""
    counts = problem["indptr"].diff()
    rows = torch.repeat_interleave(torch.arange(len(counts), device=problem["device"]), counts)
    return problem["indices"].long(), rows


def of_torch(problem: Problem) -> Network:
    """Train by ``torch.sparse`` in CSR; the transpose that backward multiplies by is A itself, which is
    symmetric.
    """
    A, weights = csr(problem), [W.requires_grad_() for W in problem["weights"]]

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, H: Any) -> Any:
            return A @ H

        @staticmethod
        def backward(context: Any, G: Any) -> Any:
            return A @ G

    return weights, lambda index, H: Product.apply(H @ weights[index])


def of_pyg(problem: Problem, with_csr: bool) -> Network:
    from torch_geometric.nn import GCNConv

    layers = [GCNConv(*W.shape, normalize=False, bias=False) for W in problem["weights"]]
    for layer, W in zip(layers, problem["weights"], strict=True):
        layer.lin.weight = torch.nn.Parameter(W.T.contiguous())
    graph = (csr(problem),) if with_csr else (torch.stack(edges(problem)), problem["data"])
    return [layer.lin.weight for layer in layers], lambda index, H: layers[index](H, *graph)


def of_dgl(problem: Problem) -> Network:
    import dgl
    from dgl.nn import GraphConv

    graph = dgl.graph(edges(problem), num_nodes=len(problem["labels"]))
    layers = [GraphConv(*W.shape, norm="none", bias=False) for W in problem["weights"]]
    for layer, W in zip(layers, problem["weights"], strict=True):
        layer.weight = torch.nn.Parameter(W)
    return [layer.weight for layer in layers], lambda index, H: layers[index](
        graph, H, edge_weight=problem["data"]
    )


PEERS: dict[str, Callable[[Problem], Network]] = {
    "torch.sparse, CSR": of_torch,
    "PyG, CSR adjacency": lambda problem: of_pyg(problem, True),
    "DGL": of_dgl,
    "PyG, edge index": lambda problem: of_pyg(problem, False),  # last: it takes the most time and memory
}


def train(problem: Problem, network: Network, epochs: int) -> tuple[list[float], list[float]]:
    """Train; return losses and seconds of the epochs, each timed between two moments at which the device is
    idle.
    """
    weights, product = network
    optimizer = torch.optim.Adam(weights, lr=0.01)
    losses, seconds = [], []
    for _ in range(epochs):
        synchronize()
        started = time.perf_counter()
        optimizer.zero_grad()
        H = problem["X"]
        for index in range(len(weights)):
            H = product(index, torch.relu(H) if index else H)
        loss = torch.nn.functional.cross_entropy(H, problem["labels"])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        synchronize()
        seconds.append(time.perf_counter() - started)
    return losses, seconds


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    for name, make in PEERS.items():
        problem = load(folder)
        answer: dict[str, Any] = {"name": f"{name}; torch {torch.__version__}, {problem['device']}"}
        try:
            answer["losses"], answer["seconds"] = train(problem, make(problem), epochs)
        except (ImportError, RuntimeError) as error:  # not installed, or out of memory
            answer["reason"] = f"{type(error).__name__}: {error}".splitlines()[0]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
