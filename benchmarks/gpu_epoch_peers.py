"""The networks of ``gpu_epoch.py`` in PyTorch and PyTorch Geometric, in a process without distgnn.

    python benchmarks/gpu_epoch_peers.py EPOCHS FOLDER ... -- [PEER ...]

A FOLDER holds a problem as ``gpu_epoch.py`` saved it; a PEER is a part of names, all: of every one. Prints a
line of JSON per folder and peer: both names, and the losses and seconds of its epochs or the reason why there
are none.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

Problem = dict[str, Any]
Network = tuple[list[Any], Callable[[int, Any], Any]]  # weights, and (index of a layer, H) -> its Z
GRAPHED, TF32 = "CUDA graphs", "TF32"  # in the name of a peer


def load(folder: Path) -> Problem:
    """Load the CSR arrays of A, X, labels, first weights by name, as tensors, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    files = {path.stem: torch.from_numpy(np.load(path)).to(device) for path in sorted(folder.glob("*.npy"))}
    weights = {name.removeprefix("_"): files.pop(name) for name in list(files) if name.startswith("_")}
    network = json.loads((folder / "network.json").read_text())
    return files | network | {"weights": weights, "device": device}


def csr(problem: Problem) -> Any:
    n = len(problem["indptr"]) - 1
    return torch.sparse_csr_tensor(problem["indptr"], problem["indices"], problem["data"], size=(n, n))


def edges(problem: Problem) -> tuple[Any, Any]:
    """Return source and target of every non-zero."""
    counts = problem["indptr"].diff()
    rows = torch.repeat_interleave(torch.arange(len(counts), device=problem["device"]), counts)
    return problem["indices"].long(), rows


def of_torch(problem: Problem, aggregate_first: bool) -> Network:
    """Train by ``torch.sparse`` in CSR; the transpose that backward multiplies by is A itself, which is
    symmetric. With A X first there are five sparse products in an epoch, as in ours, else six.
    """
    A, weights = csr(problem), [W.requires_grad_() for W in problem["weights"].values()]

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, H: Any) -> Any:
            return A @ H

        @staticmethod
        def backward(context: Any, G: Any) -> Any:
            return A @ G

    def layer(index: int, H: Any) -> Any:
        if index == 0 and aggregate_first:
            return (A @ H) @ weights[0]
        return Product.apply(H @ weights[index])

    return weights, layer


def of_edge_index(problem: Problem) -> Network:
    """Train by PyG's `EdgeIndex`, which keeps both orders of its entries."""
    from torch_geometric import EdgeIndex

    sources, targets = edges(problem)
    size = 2 * (len(problem["labels"]),)
    how: Any = {"sparse_size": size, "sort_order": "row", "is_undirected": True}
    graph = EdgeIndex(torch.stack([targets, sources]), **how)
    graph.fill_cache_()
    weights = [W.requires_grad_() for W in problem["weights"].values()]
    return weights, lambda index, H: graph.matmul(H @ weights[index], problem["data"])


def of_pyg(problem: Problem, with_csr: bool) -> Network:
    from torch_geometric.nn import GCNConv

    weights = list(problem["weights"].values())
    layers = [GCNConv(*W.shape, normalize=False, bias=False) for W in weights]
    for layer, W in zip(layers, weights, strict=True):
        layer.lin.weight = torch.nn.Parameter(W.T.contiguous())
    graph = (csr(problem),) if with_csr else (torch.stack(edges(problem)), problem["data"])
    return [layer.lin.weight for layer in layers], lambda index, H: layers[index](H, *graph)


def of_attention(problem: Problem) -> Network:
    """Train by PyG's layers of attention, two of them."""
    from torch_geometric.nn import GATConv, GATv2Conv

    kind, heads, weights = {"gat": GATConv, "gatv2": GATv2Conv}, problem["heads"], problem["weights"]
    index, layers = torch.stack(edges(problem)), []
    for layer, count in enumerate(heads):
        fan_in, columns = weights[f"W{layer}"].shape
        options = {"heads": count, "concat": layer == 0, "add_self_loops": False, "bias": False}
        wide = columns // count
        layers.append(kind[problem["model"]](fan_in, wide, **options).to(problem["device"]))
        for name, parameter in named(problem["model"], layers[-1]).items():
            value = weights.get(f"{name}{layer}")
            if value is not None:
                value = value.T if parameter.dim() == 2 else value
                parameter.data.copy_(value.reshape(parameter.shape))
    trained = [parameter for layer in layers for parameter in layer.parameters()]
    return trained, lambda at, H: layers[at](H, index)


def named(model: str, conv: Any) -> dict[str, Any]:
    """Return the parameters of PyG's layer by the names of ours."""
    if model == "gat":
        return {"W": conv.lin.weight, "left": conv.att_dst, "right": conv.att_src, "b": conv.bias}
    return {"W": conv.lin_l.weight, "left": conv.lin_r.weight, "attention": conv.att, "b": conv.bias}


PEERS: dict[str, Callable[[Problem], Network]] = {
    "torch.sparse, six products": partial(of_torch, aggregate_first=False),
    "torch.sparse, five products": partial(of_torch, aggregate_first=True),
    f"torch.sparse, five products, {TF32}": partial(of_torch, aggregate_first=True),
    f"torch.sparse, five products, {GRAPHED}": partial(of_torch, aggregate_first=True),
    f"torch.sparse, five products, {TF32}, {GRAPHED}": partial(of_torch, aggregate_first=True),
    "PyG, EdgeIndex": of_edge_index,
    "PyG, CSR adjacency": partial(of_pyg, with_csr=True),
    "PyG, edge index": partial(of_pyg, with_csr=False),  # last: it takes the most time and memory
}
OF_ATTENTION: dict[str, Callable[[Problem], Network]] = {"PyG, edge index": of_attention}


def train(problem: Problem, network: Network, epochs: int, graphed: bool) -> tuple[list[float], list[float]]:
    """Train; return losses and seconds of the epochs, each timed between two moments at which the device is
    idle.
    """
    weights, product = network
    active = torch.nn.functional.elu if problem["heads"] else torch.relu
    layers = len(problem["heads"]) or len(weights)
    on_gpu = problem["device"] == "cuda"
    optimizer = torch.optim.Adam(weights, lr=0.01, fused=on_gpu, capturable=graphed and on_gpu)

    def epoch() -> Any:
        optimizer.zero_grad(set_to_none=True)
        H = problem["X"]
        for index in range(layers):
            H = product(index, active(H) if index else H)
        loss = torch.nn.functional.cross_entropy(H, problem["labels"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses, seconds, run = list[float](), list[float](), epoch
    stream = torch.cuda.stream(torch.cuda.Stream()) if graphed else nullcontext()
    with stream:
        for index in range(epochs):
            if graphed and index == 3:  # by then all is there
                run = captured(epoch)
            synchronize()
            started = time.perf_counter()
            losses.append(float(run()))
            synchronize()
            seconds.append(time.perf_counter() - started)
    return losses, seconds


def captured(epoch: Callable[[], Any]) -> Callable[[], Any]:
    """Record an epoch as a CUDA graph; return the function that launches it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = epoch()

    def launch() -> Any:
        graph.replay()
        return loss

    return launch


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    end = sys.argv.index("--")
    epochs, folders, wanted = int(sys.argv[1]), sys.argv[2:end], sys.argv[end + 1 :]
    for folder in folders:
        loaded = load(Path(folder))
        for name, make in (OF_ATTENTION if loaded["heads"] else PEERS).items():
            if "all" in wanted or any(part in name for part in wanted):
                print(json.dumps(answered(folder, loaded, name, make, epochs)), flush=True)


def answered(
    folder: str, loaded: Problem, name: str, make: Callable[[Problem], Network], epochs: int
) -> dict[str, Any]:  # fmt: skip
    """Train a copy of the weights by a peer; return what it answers."""
    problem = loaded | {"weights": {key: W.clone() for key, W in loaded["weights"].items()}}
    answer: dict[str, Any] = {"folder": folder, "name": name, "tf32": TF32 in name}
    torch.backends.cuda.matmul.allow_tf32 = TF32 in name
    try:
        answer["losses"], answer["seconds"] = train(problem, make(problem), epochs, GRAPHED in name)
    except (ImportError, RuntimeError) as error:  # not installed, or out of memory
        answer["reason"] = f"{type(error).__name__}: {error}".splitlines()[0]
    answer["name"] += f"; torch {torch.__version__}" * (problem["device"] == "cpu")
    return answer


if __name__ == "__main__":
    main()
