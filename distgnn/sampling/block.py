"""The result of a sampler: one block per layer, and for every minibatch its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from distgnn.arrays import backend
from distgnn.local.csr_rows import repeated
from distgnn.local.stack import Stack

Array = Any


@dataclass(frozen=True)
class Block:
    """The sampled adjacency matrix of one layer of one minibatch.

    ``Z = A H[cols]`` are rows of ``rows``. The arrays are where the graph is.

    Attributes:
        rows, cols: int64 ids of the output and the input vertices; each once. Positions in the graph's order
            where a sampler was asked for positions.
        indptr, indices, data: CSR of A; `indices` are positions in `cols`, not sorted within a row.
    """

    rows: Array
    cols: Array
    indptr: Array
    indices: Array
    data: Array

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.rows), len(self.cols)

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return len(self.data)

    def means(self, dtype: Any) -> Array:
        """Return the values with which a product takes means of the sample: 1 / (non-zeros of the row)."""
        counts = self.indptr[1:] - self.indptr[:-1]
        return repeated(1 / backend.module(counts).maximum(counts, 1).astype(dtype), counts, self.nnz)

    @property
    def A(self) -> Any:
        """A matrix of the same arrays: SciPy's, or CuPy's on a GPU."""
        parts = self.data, self.indices, self.indptr
        return backend.of(self.data).csr_matrix(parts, self.shape)


@dataclass(frozen=True)
class Sample:
    """One minibatch, ready for the forward pass.

    Attributes:
        batch: int64 ids of the vertices whose loss counts, ``blocks[-1].rows``.
        blocks: in the order in which the network applies them: ``blocks[l].rows`` are ``blocks[l + 1].cols``.
        inputs: int64 ids of the vertices whose features are needed, ``blocks[0].cols``.
        loss_weights: float64 (len(batch)) by which each vertex's loss counts; None where all count alike.
        population: over how many vertices the weighted sum of losses is an estimate; None without weights.
    """

    batch: Array
    blocks: tuple[Block, ...]
    loss_weights: Array | None = None
    population: int | None = None

    @property
    def inputs(self) -> Array:
        """The nodes whose features the sample reads."""
        return self.blocks[0].cols

    @property
    def edges(self) -> int:
        """Non-zeros of all blocks."""
        return sum(block.nnz for block in self.blocks)

    def renamed(self, name: Callable[[Array], Array]) -> Sample:
        """Return the same sample with other numbers for its vertices."""
        blocks = tuple(replace(block, rows=name(block.rows), cols=name(block.cols)) for block in self.blocks)
        return replace(self, batch=name(self.batch), blocks=blocks)


class Layer(NamedTuple):
    """The blocks of one layer of a bulk, stacked: rows, columns, CSR row pointers, positions, values."""

    rows: Stack
    cols: Stack
    indptr: Array
    indices: Stack
    data: Array

    def blocks(self) -> list[Block]:
        """List one block per minibatch, views into the stacked arrays."""
        made = []
        for rows, cols, own in zip(self.rows.slices, self.cols.slices, self.indices.slices, strict=True):
            A = self.indptr[rows.start : rows.stop + 1] - own.start, self.indices.ids[own], self.data[own]
            made.append(Block(self.rows.ids[rows], self.cols.ids[cols], *A))
        return made


def samples(layers: list[Layer]) -> list[Sample]:
    """Make one sample per minibatch, from the layers of a bulk, that of the batches first."""
    stacks: list[Any] = [layer.blocks() for layer in reversed(layers)]
    return [Sample(blocks[-1].rows, blocks) for blocks in zip(*stacks, strict=True)]
