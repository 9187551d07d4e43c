"""The backend of arrays without numbers, and its kernels, which compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.arrays.backend import Backend, Mark
from distgnn.arrays.csr import CSR, ThinCSR
from distgnn.arrays.csr import KERNELS as BLOCKS
from distgnn.arrays.tuning import TUNING
from distgnn.layout import Range
from distgnn.local import memory_of
from distgnn.local.additive import KERNELS as ADDITIVE
from distgnn.local.covers import KERNELS as COVERS
from distgnn.local.crossing import KERNELS as CROSSINGS
from distgnn.local.csr_rows import KERNELS as MATRICES
from distgnn.local.edges import KERNELS as EDGES
from distgnn.local.elementwise import KERNELS as PASSES
from distgnn.local.gemm import KERNELS as DENSE_PRODUCTS
from distgnn.local.heads import KERNELS as HEADS
from distgnn.local.initial import KERNELS as WEIGHTS
from distgnn.local.narrow import KERNELS as ROUNDING
from distgnn.local.rows import KERNELS as ROWS
from distgnn.local.spmm import KERNELS as SPARSE_PRODUCTS
from distgnn.operators.covers import KERNELS as EXCHANGES
from distgnn.plan.dry.covers import exchanged, split
from distgnn.plan.dry.crossing import crossing
from distgnn.plan.dry.shapes import Functions, ShapeArray, ShapeMatrix


class ShapeBackend(Backend):
    """Arrays with shapes and without numbers, which cost nothing (see ``shapes.py``)."""

    name = "shapes"
    xp = Functions()

    def bind(self, device: int) -> str:
        return "nothing"

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        return self.xp.ascontiguousarray(x, dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return ShapeArray(shape, dtype)

    zeros = empty

    def room(self, nbytes: int) -> Any:
        return ShapeArray((nbytes,), np.uint8)

    def address(self, x: Any) -> int:
        return int(x.address)

    def to_host(self, x: Any) -> np.ndarray:
        """Return the host array that the array was made from, or zeros."""
        if not isinstance(x, ShapeArray):
            return np.asarray(x)
        return np.zeros(x.shape, x.dtype) if x.known is None else np.asarray(x.known)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return ShapeArray(shape, dtype)

    def copy_in(self, host: Any, array: Any) -> None:
        pass

    def carry(self, source: Any, target: Any, after: Mark) -> Mark:
        return after

    def at_a_time(self) -> int:
        return TUNING.launched_numbers


SHAPES = ShapeBackend()
backend.register(ShapeArray, SHAPES)


def _written(place: int) -> Callable[..., None]:
    """Wrap a kernel whose argument at this place is written to: its numbers are not known any more."""

    def kernel(*arguments: Any, **_: Any) -> None:
        memory_of(arguments[place]).known = None

    return kernel


def _nothing(*_: Any) -> None:
    """Do nothing: a kernel without a result."""


# -- rows and columns of sparse matrices ---------------------------------------------------------------------


def _row_starts(A: CSR, first: int, last: int) -> Range:
    """Return row pointers: all rows have as many non-zeros."""
    return A.nnz * first // max(A.shape[0], 1), A.nnz * last // max(A.shape[0], 1)


def _columns(A: CSR, bounds: Sequence[int], on: Backend, thin: bool) -> list[CSR]:
    """Return columns: all have as many non-zeros."""
    cut = _cut(A.shape, A.nnz, A.dtype, tuple(bounds))
    return [CSR.from_scipy(block, on, thin=thin) for block in cut]


@cache
def _cut(shape: tuple[int, int], nnz: int, dtype: Any, bounds: Sequence[int]) -> list[ShapeMatrix]:
    before = [nnz * end // max(shape[1], 1) for end in bounds]
    sizes = zip(pairwise(bounds), pairwise(before), strict=True)
    return [ShapeMatrix((shape[0], b - a), j - i, dtype) for (a, b), (i, j) in sizes]


@cache
def _slots(
    matrix: ShapeMatrix, on: Backend, dtype: Any, thin: bool, purpose: str
) -> tuple[type[CSR], dict[str, Any]]:  # fmt: skip
    """Return the type of a block, and what it consists of."""
    with ledger.apart():
        block, _ = CSR.laid_out(matrix, on, dtype, thin, purpose)
    own = ("filled", "ends") if isinstance(block, ThinCSR) else ("indptr",)
    names = "shape", "purpose", "buffer", "data", "indices", *own
    return type(block), {name: getattr(block, name) for name in names}


def _laid(
    matrix: ShapeMatrix, on: Backend, dtype: Any, thin: bool, purpose: str
) -> tuple[CSR, None]:  # fmt: skip
    """Lay out a block; those that are alike share arrays, which have no numbers."""
    kind, parts = _slots(matrix, on, dtype, thin, purpose)
    block = object.__new__(kind)
    for name, part in parts.items():
        setattr(block, name, part)
    block.cached, block.pattern = {}, {}
    ledger.holds(block, purpose, block.buffer.nbytes // on.holders)
    return block, None


def _joined(blocks: Sequence[CSR], on: Backend, thin: bool) -> CSR:
    shape = blocks[0].shape[0], sum(A.shape[1] for A in blocks)
    return CSR.from_scipy(ShapeMatrix(shape, sum(A.nnz for A in blocks), blocks[0].dtype), on, thin=thin)


def _transposed(A: CSR, on: Backend) -> CSR:
    return CSR.empty(A.shape[::-1], A.nnz, A.dtype, on, A.purpose)


def _keep_columns(A: ShapeMatrix, columns: Any) -> ShapeMatrix:
    return ShapeMatrix((A.shape[0], columns.size), A.nnz, A.dtype, A.filled)


def _side_by_side(blocks: Sequence[ShapeMatrix]) -> ShapeMatrix:
    shape = blocks[0].shape[0], sum(A.shape[1] for A in blocks)
    return ShapeMatrix(shape, sum(A.nnz for A in blocks), blocks[0].dtype)


BLOCKS.register("shapes", {
    "fill": _nothing, "laid": _laid, "row_starts": _row_starts, "columns": _columns,
    "joined": _joined, "transposed": _transposed,
    "filled": lambda A: A.T.columns_read(),
    "pointers": lambda A: ShapeArray((A.shape[0] + 1,), A.ends.dtype), "thin rows": CSR._view,
})  # fmt: skip
MATRICES.register("shapes", {
    "compact": lambda A: A,
    "owners": lambda counts, total: ShapeArray((total,), np.int64),
    "columns_read": lambda A: A.columns_read(), "keep_columns": _keep_columns, "side_by_side": _side_by_side,
})  # fmt: skip
COVERS.register("shapes", {"split": split})
CROSSINGS.register("shapes", {"crossing": crossing})
EXCHANGES.register("shapes", {"exchanged": exchanged})


# -- products and passes -------------------------------------------------------------------------------------


def _positive_bits(block: ShapeArray) -> ShapeArray:
    return type(memory_of(block))((-(-block.size // 8),), np.uint8)


def _dropout(block: ShapeArray, out: ShapeArray, *_: Any) -> ShapeArray:
    out.known = None
    return out


def _loss(
    logits: ShapeArray, rows: ShapeArray, labels: Any, position: Any, share: float, out: ShapeArray | None
) -> tuple[ShapeArray, ShapeArray]:
    """Return the losses of these rows, and the gradient."""
    losses = type(rows)(rows.shape, np.float64)
    return losses, type(logits)(logits.shape, logits.dtype) if out is None else out


def _column_sums(block: ShapeArray) -> ShapeArray:
    return type(block)((1, block.shape[1]), block.dtype)


def _average(sums: ShapeArray, count: ShapeArray, known: float) -> bool:
    """Take the mean of minibatches' gradients: there is always something."""
    return True


DENSE_PRODUCTS.register("shapes", {"gemm": _written(2)})
SPARSE_PRODUCTS.register("shapes", {"spmm": _written(2)})
EDGES.register("shapes", {
    "multiply": _written(4), "dots": _written(4),
    "end_sums": _written(3), "of_rows": _written(2), "row_sums": _written(2), "row_maxima": _written(2),
    "softmax": _written(1), "softmax_back": _written(2),
    "transposition": lambda A: type(A.indices)((A.nnz,), A.indices.dtype),
})  # fmt: skip
HEADS.register("shapes", {
    "sums": lambda X, vectors, out, *_: [_written(0)(made) for made in out], "add": _written(0),
    "dots": lambda X, numbers, *_: backend.of(X).empty((len(numbers), X.shape[1]), X.dtype),
    "scaled_dots": lambda X, D, scale: backend.of(X).empty((1, X.shape[1]), X.dtype),
})  # fmt: skip
ADDITIVE.register("shapes", {"scores": _written(6), "slope_sums": _written(5)})
ROWS.register("shapes", {"gather_rows": _written(2), "scatter_add": _written(2)})
WEIGHTS.register("shapes", {
    "glorot": lambda seed, layer, shape, rows, cols, dtype: ShapeArray((rows.size, cols.size), dtype),
})  # fmt: skip
ROUNDING.register("shapes", {"narrow": _written(1), "narrow_rows": _written(2), "widen": _written(1)})
PASSES.register("shapes", {
    "relu": _written(0), "elu": _written(0), "elu_back": _written(0), "positive_bits": _positive_bits,
    "keep_positive": _written(0), "dropout": _dropout, "dropout_entries": _written(2),
    "cross_entropy": _loss, "binary_cross_entropy": _loss, "squared_error": _loss,
    "column_sums": _column_sums, "adam": _written(0), "average": _average,
})  # fmt: skip

TABLES = (
    BLOCKS, MATRICES, COVERS, CROSSINGS, EXCHANGES, DENSE_PRODUCTS, SPARSE_PRODUCTS, EDGES, ADDITIVE, ROWS,
    HEADS, WEIGHTS, ROUNDING, PASSES,
)  # fmt: skip
