"""Rows, columns and products of a sparse matrix that a rank holds whole, as samplers ask for them.

The matrix is SciPy's, or on a GPU a :class:`CSR` block; products are SciPy's, or on a GPU :class:`Product`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.arrays.backend import Backend
from distgnn.arrays.blocking import every, rows_within
from distgnn.arrays.csr import CSR, index_type
from distgnn.arrays.kernels import Kernels, KernelTable
from distgnn.arrays.tuning import TUNING
from distgnn.layout import Range
from distgnn.local import cuda, host, neighbours
from distgnn.local.csr_rows import row_pointers, with_indices
from distgnn.local.cuda import Product as Product
from distgnn.local.relabel import Relabelling
from distgnn.local.spgemm import spgemm, spgemm_row_blocks
from distgnn.local.stack import Stack

Array = Any


class Distribution(NamedTuple):
    """A row of weights: columns, float64 values, and on a GPU the prefix sums of values that are positive."""

    columns: Array
    values: Array
    sums: Array = None


def held(owner: object, matrix: sp.csr_array, on: Backend) -> Any:
    """Make the matrix to multiply by and to draw from, on a backend, from SciPy's.

    Its bytes are charged as long as the owner lives.
    """
    return KERNELS.on(on, "held")(owner, matrix, on)


def multiply(Q: Any, A: Any, indptr: Array) -> Any:
    """Compute ``Q A``.

    Q: SciPy's matrix or a Product; A: what :func:`held` made; indptr: A's row pointers, int64.
    """
    return KERNELS.kernel("multiply", A.data)(Q, A, indptr)


def row_blocks(Q: Any, A: Any, indptr: Array, entries: int | None) -> Iterator[tuple[Range, Any]]:
    """Yield ``Q A`` in row blocks of at most so many estimated non-zeros; on a GPU as a whole."""
    return KERNELS.kernel("row_blocks", A.data)(Q, A, indptr, entries)


def row_lengths(indptr: Array, rows: Array) -> Array:
    """Count the entries in each of these rows: int64."""
    return KERNELS.kernel("row_lengths", rows)(indptr, rows)


def row_entries(indptr: Array, rows: Array) -> tuple[Array, Array]:
    """Return positions of the entries of these rows, one row after another; and where each row begins.

    Both int64; the latter (len(rows) + 1). Waits for a GPU.
    """
    return KERNELS.kernel("row_entries", rows)(indptr, rows)


def compact(places: Array, count: int) -> Array:
    """List the `count` numbers i for which places[i] < places[i + 1].

    Places rise by steps of 0 or 1 from 0.
    """
    return KERNELS.kernel("compact", places)(places, count)


def rows_of(indptr: Array, indices: Array, data: Array, shape: tuple[int, int]) -> Any:
    """Make a matrix to multiply from the left with, of these parts, int64 and the type of the data."""
    return KERNELS.kernel("rows_of", indices)(indptr, indices, data, shape)


def distribution(columns: np.ndarray, values: np.ndarray, on: Backend) -> Distribution:
    """Keep a row of weights on a backend."""
    return KERNELS.on(on, "distribution")(columns, values, on)


def repeated(row: Distribution, times: int, width: int) -> Iterator[Any]:
    """Yield the matrix of ``width`` columns whose rows are all this one, in row blocks.

    The number of entries of a block is bounded.
    """
    return KERNELS.kernel("repeated", row.values)(row, times, width)


def _held_on_host(owner: object, matrix: sp.csr_array, on: Backend) -> sp.csr_array:
    matrix = with_indices(matrix, index_type(matrix.nnz, *matrix.shape))
    ledger.holds(owner, "adjacency", int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes))
    return matrix


def _held_on_gpu(owner: object, matrix: sp.csr_array, on: Backend) -> CSR:
    return CSR.from_scipy(matrix, on)


def _multiply_on_host(Q: sp.csr_array, A: sp.csr_array, indptr: Array) -> sp.csr_array:
    return spgemm(Q, A)


def _multiply_on_gpu(Q: Any, A: CSR, indptr: Array) -> Product:
    on = backend.of(A.data)
    Q = CSR.from_scipy(Q, on) if sp.issparse(Q) else Q
    with ledger.timed("spmm", "spgemm", on=on):
        product, multiplications = cuda.spgemm(Q, A, indptr)
    ledger.charge("spmm", "spgemm", flops=2 * multiplications)
    return product


def _row_blocks_on_host(Q: Any, A: Any, indptr: Array, entries: int | None) -> Iterator[tuple[Range, Any]]:
    return spgemm_row_blocks(Q, A, entries)


def _row_blocks_on_gpu(Q: Any, A: Any, indptr: Array, entries: int | None) -> Iterator[tuple[Range, Any]]:
    yield (0, Q.shape[0]), _multiply_on_gpu(Q, A, indptr)


def _row_lengths_on_host(indptr: Array, rows: Array) -> Array:
    return indptr[rows + 1] - indptr[rows]


def _row_entries_on_host(indptr: Array, rows: Array) -> tuple[Array, Array]:
    counts = (indptr[1:] - indptr[:-1])[rows]
    offsets = row_pointers(counts)
    return np.arange(offsets[-1]) + np.repeat(indptr[rows] - offsets[:-1], counts), offsets


def _row_entries_on_gpu(indptr: Array, rows: Array) -> tuple[Array, Array]:
    positions, _, offsets = cuda.entries_of(indptr, rows)
    return positions, offsets


def _compact_on_host(places: Array, count: int) -> Array:
    return np.flatnonzero(places[1:] != places[:-1])


def _rows_of_on_host(indptr: Array, indices: Array, data: Array, shape: tuple[int, int]) -> sp.csr_array:
    kind = index_type(shape[1], len(indices))
    return sp.csr_array((data, indices.astype(kind), indptr.astype(kind)), shape=shape)


def _rows_of_on_gpu(indptr: Array, indices: Array, data: Array, shape: tuple[int, int]) -> Product:
    return Product(indptr, indices, data, shape)


def _distribution_on_host(columns: np.ndarray, values: np.ndarray, on: Backend) -> Distribution:
    return Distribution(columns, values)


def _distribution_on_gpu(columns: np.ndarray, values: np.ndarray, on: Backend) -> Distribution:
    sums = on.asarray(np.cumsum(values)) if (values > 0).all() else None
    return Distribution(on.asarray(columns), on.asarray(values), sums)


def _repeated_on_host(row: Distribution, times: int, width: int) -> Iterator[sp.csr_array]:
    for first, last in every(times, rows_within(TUNING.product_entries, len(row.values))):
        count = last - first
        parts = np.tile(row.values, count), np.tile(row.columns, count)
        yield sp.csr_array((*parts, np.arange(count + 1) * len(row.values)), shape=(count, width))


def _repeated_on_gpu(row: Distribution, times: int, width: int) -> Iterator[Product]:
    on = backend.of(row.values)
    for first, last in every(times, rows_within(TUNING.device_entries, len(row.values))):
        count = last - first
        columns, values = on.xp.tile(row.columns, count), on.xp.tile(row.values, count)
        sums = None if row.sums is None else on.xp.tile(row.sums, count)
        ends = np.arange(count + 1) * len(row.values)
        yield Product(on.asarray(ends), columns, values, (count, width), ends, sums)


def _edges_on_gpu(
    A: CSR, indptr: Array, rows: Stack, cols: Stack, scale: Array | None, _: Relabelling
) -> tuple[Array, Stack, Array]:
    """Pick all entries of A in these rows and columns without a copy of the rows, on a GPU.

    Each value is multiplied by the scale of its column. Returns row pointers, labels, values. The host waits
    for the sizes of two results.
    """
    lists = rows.arrays, cols.arrays
    places, of_rows, offsets = cuda.entries_of(indptr, rows.ids)
    entries = places, of_rows
    ledger.charge("spmm", "spgemm", flops=2 * places.size)
    labelled = cuda.find_columns(*lists, entries, A.indices)
    pointers = labelled[1][offsets]
    bounds = pointers[rows.bounds]
    ends = backend.of(bounds).to_host(bounds)
    labels, values = cuda.keep_entries(*lists, entries, labelled, int(ends[-1]), A.data, scale)
    return pointers, Stack(labels, bounds, ends), values


KERNELS = KernelTable(
    numpy=[
        Kernels({"neighbours": neighbours.draw, "edges": neighbours.edges}, "fd", host.usable),
        Kernels({
            "held": _held_on_host, "multiply": _multiply_on_host, "row_blocks": _row_blocks_on_host,
            "row_lengths": _row_lengths_on_host, "row_entries": _row_entries_on_host,
            "compact": _compact_on_host, "rows_of": _rows_of_on_host, "distribution": _distribution_on_host,
            "repeated": _repeated_on_host,
        }),
    ],
    cupy=[
        Kernels({
            "held": _held_on_gpu, "multiply": _multiply_on_gpu, "row_blocks": _row_blocks_on_gpu,
            "row_lengths": cuda.row_lengths, "row_entries": _row_entries_on_gpu, "compact": cuda.compact,
            "rows_of": _rows_of_on_gpu, "distribution": _distribution_on_gpu, "repeated": _repeated_on_gpu,
            "edges": _edges_on_gpu,
        })
    ],
)  # fmt: skip
