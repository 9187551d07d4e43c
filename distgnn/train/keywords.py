"""Keyword arguments of fit and Settings, for type checkers; ``tests/keywords.py`` writes this file."""

# ruff: noqa: F401

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import numpy as np

    from distgnn.partition import Wanted


class FitSettings(TypedDict, total=False):
    algorithm: str | None
    grid: str | Mapping[str, int] | None
    replication: int | Literal["auto"] | None
    sparsity_aware: bool | str | None
    overlap: bool
    wire: Literal["bfloat16", "float16"] | None
    product_order: Literal["auto", "aggregate-first", "transform-first"]
    keep_aggregate: bool
    recompute: int
    block_rows: int | None
    tune_gemm: bool
    order: str | None
    dtype: Literal["float32", "float64"] | type[np.floating[Any]] | np.dtype[Any]
    tf32: bool
    mixed_precision: bool
    cuda_graph: bool | None
    backend: str | None
    sampler: Literal["sage", "shadow", "ladies", "fastgcn", "saint", "cluster", "vertices", "none"] | None
    fanout: int | Sequence[int] | None
    batch_size: int | None
    parts: str | None
    batches_per_update: int | None
    bulk: int | Literal["auto"] | None
    partition_graph: bool | None
    importance: Literal["zou", "counts"] | None
    rescale: bool | None
    renormalize: bool | None
    recipe: Literal["kipf-welling", "graphsage", "gat", "plain"]
    model: str | None
    layers: int | None
    hidden: int | Sequence[int] | None
    heads: int | Sequence[int] | None
    bias: bool | None
    residual: bool
    layer_norm: bool
    dropout: float | None
    attention_dropout: float | None
    activation: Literal["relu", "elu"] | None
    train_features: bool
    normalize_features: bool | None
    standardize_features: bool | None
    epochs: int | None
    optimizer: str
    lr: float | None
    momentum: float
    weight_decay: float | Sequence[float] | None
    clip: float | None
    schedule: str | None
    warmup: int
    keep_best: Literal["val", "none"] | None
    patience: int | None
    eval_every: int
    loss: Literal["softmax", "binary", "mse"] | None
    metric: Literal["accuracy", "f1", "rocauc", "r2"] | None
    log: str | os.PathLike[str] | None
    trace: str | os.PathLike[str] | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int
    resume: bool
    force: bool
    check: bool | int | str


class AllSettings(FitSettings, total=False):
    seed: int
    quiet: bool
    verify: bool
