"""The weights of a checkpoint and what network they belong to, as one file that needs no distgnn to read.

Arrays, by name, of an L-layer network, the number of whose heads in the last layer is K, or 1:

    layers.0.weight ... layers.L-1.weight      (fan in, fan out); of GraphSAGE (2 fan in, fan out); of GAT
                                               and GATv2 the last is (fan in, K fan out)
    layers.0.bias ... layers.L-1.bias          (fan out), with bias=True
    layers.0.left, layers.0.right ...          (columns of the weight), of GAT: attention's
    layers.0.left, layers.0.attention ...      of GATv2: as the weight, W', and (its columns)
    norms.0.weight, norms.0.bias ... of L-2    (fan out), with layer_norm=True: gain and shift
    features.mean, features.spread             (width), with standardize_features=True
    features                                   (nodes, width), with train_features=True: trained ones, with
                                               rows in the order of the store that the config calls "order"

In row vectors, with A the matrix of the store (``distgnn prepare --normalize``), H_0 = X and l = 0 ... L-1:

    Z_l = A H_l W_l + b_l              of GraphSAGE: [H_l | mean of the neighbours' rows of H_l] W_l + b_l
    Z_l = P H_l W_l + b_l              of GAT and GATv2, by head, with P the softmax over the stored entries
                                       (i, j) of a row of A, of e_ij = leaky_relu(left · Y_i + right · Y_j),
                                       Y = H_l W_l, or of GATv2 attention · leaky_relu((H_l W')_i + Y_j), with
                                       slope 0.2; heads stand beside each other, in layer L-1 Z is their mean
    Z_l = Z_l + H_l                    with residual=True, where l < L-1 and the layer's widths are equal
    H_{l+1} = relu(norm_l(Z_l))        where l < L-1, or elu; norm_l with layer_norm=True, with epsilon 1e-5

Z_{L-1} are the logits. With normalize_features=True, rows of X are first divided by their sums of absolute
values; then, with standardize_features=True, X is (X - features.mean) / features.spread. In PyTorch a linear
layer holds its weight transposed; with PyG, whose ``GCNConv`` normalises as ``--normalize gcn`` does:

    found = numpy.load("model.npz")                      # or safetensors.torch.load_file("model.safetensors")
    config = json.loads(str(found["config"]))            # or of safetensors the metadata, by safe_open
    conv = GCNConv(*found["layers.0.weight"].shape, bias=config["bias"])
    conv.lin.weight.data = torch.tensor(found["layers.0.weight"]).T.contiguous()
    conv.bias.data = torch.tensor(found["layers.0.bias"])

The config is JSON: "model" (gcn, sage, gat or gatv2), "widths", "heads" (of each layer, or false),
"activation" (relu or elu), "bias", "residual", "layer_norm", "dropout", "dtype",
"train_features", "normalize_features", "standardize_features", "normalize", "self_loops" and "multilabel" (of
the graph), "loss" (softmax, binary, or mse, where Z_{L-1} are the numbers that are predicted), "order",
"class_names" (a list, or null where classes have none), "epoch" (after which these were the weights), and the
version of "distgnn".
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn
from distgnn.arrays import backend
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError
from distgnn.files.output import check_output, replaced, writing
from distgnn.nn.norm import EPSILON
from distgnn.train.checkpoint import BEST, opened, saved_scaling
from distgnn.train.predict import chosen

assert EPSILON == 1e-5  # as the text above says

FORMATS = (".npz", ".safetensors")
#: Names in a checkpoint, whose numbers are those of layers, and in the exported file.
NAMES = {"W": "layers.{}.weight", "b": "layers.{}.bias", "g": "norms.{}.weight", "s": "norms.{}.bias"}
#: What of a run's identity describes the network; what is not there is off.
CONFIG = (
    "model widths heads bias residual layer_norm dropout dtype train_features normalize_features "
    "standardize_features"
).split()
#: Arrays of attention by model: the vectors, and the matrices.
ATTENTION = {"gat": (("left", "right"), ()), "gatv2": (("attention",), ("left",))}


def export_weights(
    weights: str | os.PathLike[str], out: str | os.PathLike[str], which: str | None = None,
    force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Write the weights of a checkpoint as ``.npz`` or ``.safetensors``, laid out as this module says. Not
    collective: on one rank, which holds all weights.

    Examples:
        >>> export_weights("weights", "model.npz")["widths"]  # doctest: +SKIP
        [1433, 16, 7]

    Args:
        weights: the path of the checkpoint. which: "best" or "last", see :class:`Predictor`.
        out: the file. force: replace it if there is one.

    Returns:
        the config.

    Raises:
        ArgumentError: another kind of file, one that may not be replaced, a package that is not installed, or
            no best weights in it. UserError: the checkpoint can't be read, or the file not be written.
    """
    out = Path(out)
    if out.suffix not in FORMATS:
        raise ArgumentError("out", out, f"expected a file {' or '.join(FORMATS)}")
    check_output("out", out, force)
    packed = _npz if out.suffix == ".npz" else _safetensors(out)
    arrays, config = contents(weights, which)
    with writing("out", out), replaced(out) as file:
        file.write(packed(arrays, json.dumps(config)))
    return config


def contents(
    weights: str | os.PathLike[str], which: str | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:  # fmt: skip
    """Return the arrays by name that :func:`export_weights` writes, and the config."""
    reader = opened(weights, Comm(MPI.COMM_SELF, backend.get("numpy"), "self"))
    best, number = chosen(reader, which)
    trained, prefix = reader.meta["run"], BEST if best else ""
    arrays = {}
    for name, shape in reader.shapes.items():
        bare = name.removeprefix(prefix)
        if name.startswith(prefix) and "." not in bare:  # others are the optimiser's
            whole = reader.piece(name, (0, shape[0]), (0, shape[1]))
            called, flat = _named(bare, trained["model"])
            arrays[called] = whole.reshape(-1) if flat else whole
    if trained.get("standardize_features"):
        arrays |= {f"features.{name}": row for name, row in saved_scaling(reader.meta)._asdict().items()}
    config = {name: trained.get(name, False) for name in CONFIG}
    config |= {"activation": trained.get("activation", "relu")}
    config |= {name: trained[f"graph {name}"] for name in ("normalize", "self_loops")}
    config |= {"multilabel": bool(trained.get("graph multilabel"))}
    config |= {"loss": trained.get("loss", "binary" if config["multilabel"] else "softmax")}
    config |= {"class_names": reader.meta.get("class_names")}  # checkpoints of before have none
    config |= {"order": trained.get("order"), "epoch": number, "distgnn": distgnn.__version__}
    return dict(sorted(arrays.items())), config


def _named(bare: str, model: str) -> tuple[str, bool]:
    """Return what the array of a checkpoint is called, and whether it becomes one-dimensional."""
    vectors, matrices = ATTENTION.get(model, ((), ()))
    if bare == "X":
        return "features", False
    numbered = re.fullmatch(r"([A-Za-z_]+)(\d+)", bare)
    kind, layer = (numbered[1], numbered[2]) if numbered else (bare, "")
    if kind in (*vectors, *matrices):
        return f"layers.{layer}.{kind}", kind in vectors
    return (NAMES[kind].format(layer), kind != "W") if kind in NAMES and numbered else (bare, False)


def _npz(arrays: Mapping[str, np.ndarray], config: str) -> bytes:
    file = io.BytesIO()
    np.savez(file, config=np.array(config), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _safetensors(out: Path) -> Any:
    try:
        package = importlib.import_module("safetensors.numpy")
    except ImportError:
        problem = "needs safetensors; install with: pip install 'distgnn[safetensors]'; or write .npz"
        raise ArgumentError("out", out, problem) from None
    return lambda arrays, config: package.save(dict(arrays), metadata={"config": config})
