"""All instances of the kernels' templates that the package asks for, by file.

Tests compile these for real GPUs; the stand-in for CuPy refuses others.
"""

from __future__ import annotations

from collections.abc import Sequence

from distgnn.local.cuda import csr, gemm_columns
from distgnn.local.cuda.gemm import FILE as GEMM
from distgnn.local.cuda.gemm import kernel_names as dense_names
from distgnn.local.cuda.launch import WARP
from distgnn.local.cuda.narrow import KINDS

_LANES = [1 << power for power in range(WARP.bit_length())]
_ELEMENTS = ("float", "double")
_INDICES = ("int", "int64")
_HALVES = tuple(KINDS.values())


def _each(name: str, *choices: Sequence[object]) -> list[str]:
    """List a template with each combination of its arguments."""
    names = [name]
    for number, choice in enumerate(choices):
        names = [f"{start}{',' if number else '<'}{argument}" for start in names for argument in choice]
    return [f"{start}>" for start in names]


def _of_edges() -> list[str]:
    names = _each("edge_tasks", _INDICES)
    for element, V in (("float", 4), ("double", 2)):
        ways = [("edge_dots", f"{G},{V}") for G in _LANES] + [("edge_dots", "1,1"), ("edge_dots", "8,1")]
        ways += [("edge_products", way) for way in ("8,1", "32,1", f"16,{V}", f"32,{V}")]
        names += [name for each, way in ways for name in _each(each, (element,), _INDICES, (way,))]
    return names


KERNELS = {
    csr.FILE: csr.kernel_names(),
    GEMM: dense_names(),
    gemm_columns.FILE: gemm_columns.kernel_names(),
    "rows.cu": [
        *_each("gather_rows", ("uint4", "uint2", "unsigned"), _LANES),
        *_each("add_rows", _ELEMENTS, _LANES),
    ],
    "aggregate.cu": [
        *_each("best", _ELEMENTS, _INDICES),
        *_each("best_back", _ELEMENTS, _INDICES),
    ],
    "narrow.cu": [
        *(name for each in ("narrow", "narrow_padded", "widen") for name in _each(each, _HALVES)),
        *_each("narrow_rows", _HALVES, _LANES),
    ],
    "activation.cu": [
        "dropout_keys",
        *_each("activate", _ELEMENTS),
        *_each("elu", _ELEMENTS),
        *_each("drop_rows", _ELEMENTS),
        *_each("keep_positive", _ELEMENTS),
    ],
    "layer_norm.cu": [*_each("layer_norm", _ELEMENTS), *_each("layer_norm_backward", _ELEMENTS)],
    "column_sums.cu": _each("column_sums", (*_ELEMENTS, *_HALVES), _ELEMENTS),
    "softmax_cross_entropy.cu": [
        *_each("softmax_cross_entropy", ("float",), ("float", "Bfloat16"), ("4,1", "4,4", "1,4")),
        *_each("softmax_cross_entropy", ("double",), ("double",), ("2,1", "2,4", "1,4")),
    ],
    "scores.cu": _each("count_hits", _ELEMENTS),
    "binary_cross_entropy.cu": _each("binary_cross_entropy", _ELEMENTS),
    "sample.cu": ["sample_weighted", "sample_ones", "ring_times", "inclusion"],
    "extract.cu": [
        "row_lengths", "row_keys", "row_entries", "compact", "enter_ids", "mark_first", "number_ids",
        *_each("find_columns", _INDICES),
        *_each("sum_runs", _ELEMENTS),
        *_each("keep_entries", _ELEMENTS),
        *_each("expand_products", _ELEMENTS, _INDICES),
    ],
    "edges.cu": _of_edges(),
    "edge_softmax.cu": [
        *_each("edge_softmax", _ELEMENTS, _INDICES, ("true", "false")),
        *_each("edge_softmax_phase", _ELEMENTS, _INDICES),
        *_each("edge_softmax_back", _ELEMENTS),
    ],
    "additive.cu": [
        *_each("edge_signs", _ELEMENTS, _INDICES),
        *_each("edge_scores", _ELEMENTS, _INDICES, ("1,8", "8,8", "8,1")),
        *_each("edge_slopes", _ELEMENTS, _INDICES, ("8,8", "32,8", "32,1")),
    ],
    "heads.cu": [
        *_each("head_sums", _ELEMENTS),
        *_each("add_heads", _ELEMENTS),
        *_each("head_dots", _ELEMENTS, ("double",)),
        "head_dots<float,float>",
    ],
    "optimizers.cu": [name for each in ("adam", "sgd", "sum_squares") for name in _each(each, _ELEMENTS)],
}  # fmt: skip
