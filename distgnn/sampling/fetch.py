"""Feature fetching: the rows of a matrix that a rank's minibatch reads (matrix-sampling paper, section 6)."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

from distgnn import local
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.rows import Rows
from distgnn.comm.steps import Steps, abandon, at_once
from distgnn.errors import TrainingError, check_type
from distgnn.local import csr_rows
from distgnn.local.distinct import distinct
from distgnn.operators.cut_matrix import CutMatrix
from distgnn.operators.dense import DistDense
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.sampling.ids import Ids, checked


class Features:
    """Rows of features by node id, wherever they are held: arrays, or CSR blocks of sparse features.

    Args:
        H: (n, f) in block rows over the axis ``rows`` of a grid, with copies along its other axes, as 1d and
            1.5d hold it: every process column has all of it. Cut otherwise, it raises ValueError.

    Cost of :meth:`fetch`, in words received: D f + D', where D distinct ids are other ranks' and those of the
    process column ask this rank for D' rows; two all-to-allvs of at most P/c - 1 messages. With D₀ distinct
    ids spread evenly over the nodes, D = D₀ (1 - c/P), and a process column moves D₀ f (P/c - 1) words.

    Of a row of sparse features come its length and two words per entry.
    """

    def __init__(self, H: DistDense | SparseFeatures) -> None:
        check_type("H", H, CutMatrix, "a DistDense in block rows, as load_features or scatter make it")
        grid = H.grid
        if H.layout.row_axes != ("rows",) or grid.count(*H.layout.col_axes) != 1:
            cut = f"({', '.join(H.layout.row_axes)}) x ({', '.join(H.layout.col_axes)})"
            problem = "features are fetched from block rows over the axis rows"
            raise ValueError(f"{problem}; these are cut over {cut}")
        self.grid, self.column, self.backend = grid, grid.along("rows"), grid.backend
        self.block, self.shape, self.dtype = H.block, H.shape, H.dtype
        self.parts = H.layout.rows.vector(grid, H.shape[0])
        self.ids = Ids(H.shape[0], H.layout.rows.order)

    def fetch(self, ids: Any) -> Any:
        """Fetch the rows of these nodes: (len(ids), f), new, on the grid's backend.

        Collective over the process column; ids that are no integers in 0..n-1 raise ValueError on all of it.

        Args:
            ids: in any order, with repeats, each rank its own, possibly none.
        """
        with self.column.together():
            positions = self.ids.positions(ids)
        rows = self._fetch(positions)
        if not isinstance(rows, CSR):
            self.grid.workspace.forget(rows)
        return rows

    def borrow(self, positions: Any) -> Any:
        """Fetch the rows at these positions of the features' order, into memory of the grid's workspace.

        The positions are on the host or the device; the memory is to be given back to the workspace.
        Collective as :meth:`fetch`. A sampler's positions are not checked where they are on a GPU, which
        would have to be waited for.
        """
        if not backends.of(positions).on_device:
            with self.column.together():
                positions = checked(positions, self.shape[0])
        return self._fetch(positions)

    def wanted(self, positions: Any) -> Steps[Wanted]:
        """Tell the ranks which rows this one wants, at positions of a sampler. Collective, as :meth:`fetch`.

        Two steps, of sparse features three; none where this rank has all rows. A GPU is waited for once.
        """
        if self.column.size == 1:
            return Wanted(positions)
        wanted = distinct(positions, self.parts)
        rows = Rows(self.grid, self.column, wanted.rows, at_once=False, runs=wanted.runs)
        yield from rows.asking
        lengths = (yield from rows.lengths(self.block)) if isinstance(self.block, CSR) else None
        return Wanted(wanted.places, rows, lengths, wanted.rising)

    def coming(self, wanted: Wanted, overlap: bool = False) -> Coming:
        """Begin to :meth:`borrow`; with ``overlap``, messages travel while the caller computes."""
        return Coming(self, wanted, overlap)

    def _fetch(self, positions: Any) -> Any:
        with self.coming(at_once(self.wanted(positions))) as coming:
            return coming.take()

    def _block(self, packed: csr_rows.Packed) -> CSR:
        return _unpacked(packed, self.shape[1], self.dtype, self.backend)


class Wanted(NamedTuple):
    """The rows of features that a minibatch reads, of which their owners know.

    Attributes:
        places: of each row in the minibatch's order, among the distinct ones that are fetched, or in the
            block of a rank that has all.
        rows: distinct rows of the ranks of a process column; None where this rank has all.
        lengths: of the rows of sparse features.
        rising: the rows come in the minibatch's order, each once.
    """

    places: Any
    rows: Rows | None = None
    lengths: Any = None
    rising: bool = False


class Coming(AbstractContextManager["Coming"]):
    """Rows of features on their way, from the ranks of a process column. A context.

    Where it is left by an error of one rank, messages under way are abandoned. Where rows are not wanted any
    more, on all ranks alike, they are received and given back.

    Args:
        overlap: begin at once. Rows of this rank alone are picked when taken.
    """

    def __init__(self, features: Features, wanted: Wanted, overlap: bool = False) -> None:
        self.features, self.wanted, self.messages = features, wanted, ExitStack()
        self.rows: Any = None
        self.begun = False
        if overlap and wanted.rows is not None:
            self._begin(wanted.rows)

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is None or issubclass(kind, (GeneratorExit, TrainingError)):
            self.messages.close()
        else:
            self.messages.__exit__(kind, *error)
        if self.rows is not None:
            self.features.grid.workspace.give_back(self.rows)

    def driven(self) -> AbstractContextManager[None]:
        """Drive the messages during the computations inside."""
        return nullcontext() if self.rows is None else self.exchange.driven()

    def take(self) -> Any:
        """Wait for the rows. Their memory is the caller's, to be given back to the workspace."""
        features, (places, wanted, _, rising) = self.features, self.wanted
        if wanted is None:
            return picked(features.block, places, features.grid)
        if not self.begun:
            self._begin(wanted)
        if isinstance(features.block, CSR):
            return picked(features._block(at_once(self.packed)), places, features.grid)
        self.exchange.wait(range(features.column.size))
        self.messages.close()
        rows, self.rows = self.rows, None
        if rising:
            return rows
        ordered = picked(rows, places, features.grid)
        features.grid.workspace.give_back(rows)
        return ordered

    def _begin(self, wanted: Rows) -> None:
        features, self.begun = self.features, True
        if isinstance(features.block, CSR):
            self.packed = wanted.fetch_ragged(features.block, "features", self.wanted.lengths)
            self.messages.push(self._end_packed)
            next(self.packed)
            return
        self.rows = features.grid.workspace.borrow((wanted.received, features.shape[1]), features.dtype)
        self.exchange = self.messages.enter_context(wanted.fetch(features.block, self.rows, "features"))

    def _end_packed(self, kind: Any, error: BaseException | None, *_: object) -> None:
        """Receive sparse rows that were not taken, or with an error of this rank abandon them."""
        if error is None:
            self.packed.close()
        else:
            abandon(self.packed, error)


def picked(X: Any, rows: Any, grid: Grid) -> Any:
    """Return these rows of a block of features: a CSR block, or an array in memory of the workspace."""
    rows = grid.backend.asarray(rows)
    if isinstance(X, CSR):
        return _unpacked(csr_rows.gather(X, rows), X.shape[1], X.dtype, grid.backend)
    return local.gather_rows(X, rows, grid.workspace.borrow((rows.size, X.shape[1]), X.dtype))


def _unpacked(packed: csr_rows.Packed, width: int, dtype: Any, on: Backend) -> CSR:
    """Make a block of packed rows."""
    counts, columns, values = packed
    block = CSR.empty((counts.size, width), values.size, dtype, on, "features")
    block.data[...], block.indices[...] = values, columns
    block.indptr[...] = csr_rows.row_pointers(counts)
    return block
