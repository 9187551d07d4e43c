"""A sparse matrix cut over a grid by an algorithm: products, operations on its entries, semirings.

Operations on stored entries are a basis of graph networks with edge weights of their own (Bharadwaj, Buluç,
Demmel, IPDPS 2022; Besta et al., SC 2023). One head of graph attention, whose scores are
leaky_relu(s_i + t_j):

    P = A.edge_softmax(s, t)                        # s: m x 1, t: n x 1
    Z = A.multiply(H, values=P)                     # forward

    dH = A.multiply_adjoint(G, values=P)            # back, from G, the gradient of Z
    ds, dt = A.attention_back(P, G, H)

``edge_softmax`` and ``attention_back`` fuse what can be had step by step:

    scores = A.edge_sum(s, t)
    P = scores.leaky_relu().softmax()

    dP = A.sddmm(G, H)
    d = scores.leaky_relu_back(P.softmax_back(dP))
    ds, dt = d.row_sums(), d.column_sums()
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.comm.checks import compare
from distgnn.errors import ArgumentError
from distgnn.layout import Layout
from distgnn.local.epilogue import Ending
from distgnn.operators import edge_passes
from distgnn.operators.aggregate import Picked, SemiringProducts
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense
from distgnn.operators.edge_products import AdditiveScores, SoftmaxEdges, additive_scores, dots, end_sums
from distgnn.operators.edges import DistEdges, Function, Masked, Through, check_edges, made
from distgnn.operators.kept import cached_property
from distgnn.operators.moves import Moves
from distgnn.operators.prices import Prices
from distgnn.operators.sources import blocks


class DistSparse(Operator):
    """A sparse matrix cut over the grid by one of the algorithms. All methods are collective.

    Attributes: beside those of :class:`~distgnn.operators.base.Operator`,
        algorithm: where blocks of A are, and how numbers reach them.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self._layers = algorithm, dict[Algorithm, DistSparse]()
        self.name, self.grid, self.number = algorithm.name, algorithm.grid, algorithm.number
        self.shape, self.dtype, self.symmetric = algorithm.shape, algorithm.dtype, algorithm.symmetric
        self.input_layout, self.output_layout = algorithm.input_layout, algorithm.output_layout
        self.inner_layouts, self.column_axis = algorithm.inner_layouts, algorithm.column_axis
        self.weights = algorithm.weights

    @property
    def moves(self) -> Moves:
        """The moves of products with dense matrices."""
        return self.algorithm.moves

    @property
    def pattern(self) -> Moves:
        """The moves of the stored entries. Collective the first time."""
        return self.algorithm.pattern

    @cached_property
    def semirings(self) -> SemiringProducts:
        """The products over semirings."""
        return SemiringProducts(self.algorithm)

    @property
    def prices(self) -> Prices:
        """The prices of operations, in words and messages of this rank."""
        return Prices(self)

    @property
    def nnz(self) -> int:
        return self.algorithm.nnz

    def layer(self, number: int) -> DistSparse:
        algorithm = self.algorithm.layer(number)
        if algorithm is self.algorithm:
            return self
        self._layers.setdefault(self.algorithm, self)
        if algorithm not in self._layers:
            self._layers[algorithm] = made_of = DistSparse(algorithm)
            made_of._layers = self._layers
        return self._layers[algorithm]

    @property
    def reads_rounded(self) -> bool:
        return self.grid.reads_rounded and self.grid.size == 1 and self.moves.piecewise

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        self.algorithm.multiply(H.block, T.block)

    def _multiply_then(self, H: DistDense, T: DistDense, then: Ending) -> None:
        self.algorithm.multiply(H.block, T.block, then)

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        self.algorithm.multiply_adjoint(G.block, F.block)

    def _multiply_adjoint_then(self, G: DistDense, F: DistDense, then: Ending) -> None:
        self.algorithm.multiply_adjoint(G.block, F.block, then)

    def _times_sparse(self, B: Operator) -> Operator:
        product = self.algorithm.times_sparse(B.algorithm) if isinstance(B, DistSparse) else None
        return super()._times_sparse(B) if product is None else DistSparse(product)

    @property
    def _one_piece(self) -> Any:
        return self.algorithm.one_piece()

    def diagonal(self) -> DistDense:
        """Return the entry (i, i) of each node i, n x 1, in ``output_layout``. Collective.

        Ranks ask the source for it; nothing travels between ranks, but from one that alone has the matrix.

        Raises:
            ValueError: A is not square. ValueError or RuntimeError: a rank's own blocks
                (:class:`LocalBlocks`) lack what stands on the diagonal beside its rows. On every rank.
        """
        return diagonal(self.algorithm)

    def edges(self, values: Function | None = None, heads: int = 1) -> DistEdges:
        """Make edges of A's own values, or of a function of the nodes at the ends of each entry.

        Args:
            values: is given the nodes of rows and of columns of this rank's entries, int64 (entries,), and
                returns numbers (entries,) or (entries, heads). Copies of an entry must get the same.
            heads: how many numbers an entry has; what one number is given for is repeated.

        Cost: of a function, the first time, the nodes of the columns: :meth:`edge_sum`'s of one head.

        Raises:
            ArgumentError: numbers of another shape, on every rank; what the function raises, likewise.
        """
        return made(self.pattern, values, heads)

    def edge_sum(self, u: DistDense, v: DistDense) -> DistEdges:
        """Compute u_i + v_j for each stored entry (i, j) and head.

        The adjoint: ``du = dE.row_sums()``, ``dv = dE.column_sums()``.

        Args:
            u: m x heads in ``output_layout``; v: n x heads in ``input_layout``.

        Cost: the words of ``A @ v`` without sums in 1D and 1.5D; in others, what the rank lacks of the rows
        of ``u`` and ``v`` that its entries have.

        Raises:
            ValueError: shapes, layouts or dtypes don't fit, on every rank.
        """
        self._check_ends(u, v)
        compare("A.edge_sum(u, v)", A=self, u=u, v=v)
        return end_sums(self.pattern, u, v)

    def edge_softmax(self, u: DistDense, v: DistDense, slope: float = 0.2) -> SoftmaxEdges:
        """Compute softmax(leaky_relu(u_i + v_j)) over each row, by head: the weights of graph attention.

        Equals ``A.edge_sum(u, v).leaky_relu(slope).softmax()`` but keeps no scores. The adjoint:
        ``du, dv = A.edge_softmax_back(P, dP)``.

        Args:
            u: m x heads in ``output_layout``; v: n x heads in ``input_layout``. slope: not negative.

        Cost: the words of :meth:`edge_sum` and of
        :meth:`~distgnn.operators.edges.DistEdges.softmax`. One pass over the entries where the rank has whole
        rows in one block. Memory: beside the result, a bit for each of its numbers.

        Raises:
            ArgumentError: a negative slope. ValueError: as of :meth:`edge_sum`. On every rank.
        """
        self._check_ends(u, v)
        if not slope >= 0:
            raise ArgumentError("slope", slope, "must not be negative")
        compare(f"A.edge_softmax(u, v, slope={slope})", A=self, u=u, v=v)
        return SoftmaxEdges.of_sums(self.pattern, u, v, float(slope))

    def edge_softmax_back(
        self, P: SoftmaxEdges, gradient: DistEdges, overwrite: bool = False
    ) -> tuple[DistDense, DistDense]:
        """Compute the gradients of u and v from that of ``P = A.edge_softmax(u, v)``. Collective.

        With d = leaky_relu_back(P (g - Σ P g)), they are its sums by row and by column.

        Args:
            overwrite: put d in place of the gradient, which saves its memory.

        Cost: one of the two all-reduces of the softmax,
        :meth:`~distgnn.operators.edges.DistEdges.row_sums` and
        :meth:`~distgnn.operators.edges.DistEdges.column_sums`.

        Raises:
            ArgumentError: edges of another operator, or not of :meth:`edge_softmax`. On every rank.
        """
        check_edges(self.pattern, P)
        if not isinstance(P, SoftmaxEdges):
            raise ArgumentError("P", repr(P), "expected what A.edge_softmax(u, v) returned")
        check_edges(self.pattern, gradient)
        compare("A.edge_softmax_back(P, gradient)", A=self, P=P, gradient=gradient)
        return P.back(gradient, overwrite)

    def attention_back(
        self, P: SoftmaxEdges, G: DistDense, H: DistDense, through: Through | None = None
    ) -> tuple[DistDense, DistDense]:
        """Compute the gradients of u and v from G, that of ``A.multiply(H, values=P)``. Collective.

        Equals ``A.edge_softmax_back(P, A.sddmm(G, H, P.heads))``, but P is gone, and where one rank has the
        whole matrix in `1d`, `1.5d` or `rdm`, the gradients of the entries had its memory.

        Args:
            P: of :meth:`edge_softmax`. G: m x f in ``output_layout``; H: n x f in ``input_layout``.
            through: a mask between P and the product, that of dropout. It gets numbers, (entries, heads), to
                change in place, and a slice that says which of this rank's entries they are of.

        Cost: that of :meth:`sddmm` and of :meth:`edge_softmax_back`.

        Raises:
            ArgumentError, ValueError: as of these. On every rank.
        """
        check_edges(self.pattern, P)
        if not isinstance(P, SoftmaxEdges):
            raise ArgumentError("P", repr(P), "expected what A.edge_softmax(u, v) returned")
        check_pair(self, "G", G, "H", H)
        check_heads(P.heads, H.shape[1])
        compare("A.attention_back(P, G, H)", A=self, P=P, G=G, H=H)
        return P.back_of_product(G, H, through)

    def _check_ends(self, u: DistDense, v: DistDense) -> None:
        check_operand(self, u, "u", 0, self.output_layout)
        check_operand(self, v, "v", 1, self.input_layout)
        if u.shape[1] != v.shape[1]:
            raise ValueError(f"{self.name}: u has {u.shape[1]} heads, v has {v.shape[1]}")

    def sddmm(self, U: DistDense, V: DistDense, heads: int = 1) -> DistEdges:
        """Compute U_i · V_j for each stored entry (i, j) and head: a sampled dense-dense product.

        The adjoint: ``dU = A.multiply(V, values=dE)``, ``dV = A.multiply_adjoint(U, values=dE)``.

        Args:
            U: m x f in ``output_layout``; V: n x f in ``input_layout``; head k has columns k f/heads to
                (k + 1) f/heads.

        Cost: see the moves of the algorithm, such as :class:`~distgnn.operators.row_moves.RowMoves`.

        Raises:
            ArgumentError: heads that do not divide f. ValueError: as of :meth:`edge_sum`. On every rank.
        """
        check_pair(self, "U", U, "V", V)
        check_heads(heads, V.shape[1])
        compare(f"A.sddmm(U, V, heads={heads})", A=self, U=U, V=V)
        return dots(self.pattern, U, V, heads)

    def additive_scores(
        self, L: DistDense, R: DistDense, a: Any, heads: int = 1, slope: float = 0.2
    ) -> AdditiveScores:
        """Compute a · leaky_relu(L_i + R_j) for each stored entry (i, j) and head: additive attention.

        Brody, Alon and Yahav (ICLR 2022), equation 7. The adjoint: ``dL, dR, da = scores.back(dE)``.

        Args:
            L: m x f in ``output_layout``; R: n x f in ``input_layout``; head k has columns k f/heads to
                (k + 1) f/heads.
            a: f numbers, the same on all ranks. slope: of negative sums.

        Cost: in words that of :meth:`sddmm`. Beside the scores, a bit for each entry and column is kept.

        Raises:
            ArgumentError: heads that do not divide f, or another number of weights. ValueError: as of
                :meth:`edge_sum`. On every rank.
        """
        check_pair(self, "L", L, "R", R)
        check_heads(heads, R.shape[1])
        weights = self.grid.backend.asarray(a, self.dtype)
        if weights.shape != (R.shape[1],):
            raise ArgumentError("a", weights.shape, f"expected ({R.shape[1]},), a number for each column")
        compare(f"A.additive_scores(L, R, a, heads={heads}, slope={slope})", A=self, L=L, R=R)
        return additive_scores(self.pattern, L, R, weights, heads, float(slope))

    def multiply(
        self, H: DistDense, out: DistDense | None = None, values: DistEdges | Masked | None = None,
        *, then: Ending | None = None,
    ) -> DistDense:  # fmt: skip
        """Compute ``A H``; ``H`` in ``input_layout``, the result in ``output_layout``, in ``out`` if given.

        Unlike ``A @ H``, nothing is checked; ``out`` shares no memory with ``H``. With ``values``, edges of
        this operator, they stand in place of A's, for each head in its columns of ``H``, and all is checked.
        The adjoint: ``dE = A.sddmm(G, H, E.heads)``, ``dH = A.multiply_adjoint(G, values=E)``. ``then``: what
        becomes of the result, which is done with it where a kernel can; it says so.
        """
        if values is None:
            return super().multiply(H, out, then=then)
        self._check_product(values, "H", H, 1, self.input_layout)
        out = self._room(out, 0, H)
        out.origin = compare("A.multiply(H, values=E)", A=self, X=H, E=values)
        edge_passes.multiply(self.pattern, values, H, out)
        return out

    def multiply_adjoint(
        self, G: DistDense, out: DistDense | None = None, values: DistEdges | Masked | None = None
    ) -> DistDense:
        """Compute ``Aᵀ G``, in ``out`` if given; ``G`` in ``output_layout``, result in ``input_layout``.

        ``values``: as of :meth:`multiply`.
        """
        if values is None:
            return super().multiply_adjoint(G, out)
        self._check_product(values, "G", G, 0, self.output_layout)
        out = self._room(out, 1, G)
        out.origin = compare("A.multiply_adjoint(G, values=E)", A=self, X=G, E=values)
        edge_passes.multiply_adjoint(self.pattern, values, G, out)
        return out

    def aggregate(
        self, H: DistDense, reduce: str = "sum", combine: str = "pattern", keep: bool = False
    ) -> Any:
        """Reduce over the stored entries of each row what they make of their rows of H, in each column.

        max and min: NaN is picked before all numbers, and of equal numbers that of the smallest node, on
        every algorithm, grid and order of nodes. Rows without entries get 0, and with max or min and plus
        the number that changes nothing, -inf or inf.

        Args:
            H: n x f in ``input_layout``, of A's dtype.
            reduce: sum, mean (the sum over the number of stored entries), max or min.
            combine: what an entry of value a makes of a number h: times (a h), plus (a + h), pattern (h).
            keep: also return what :meth:`aggregate_back` needs, a :class:`Picked`: for max and min one
                integer for each entry of the result.

        Returns:
            m x f in ``output_layout``; with ``keep``, this and the Picked.

        Cost: the words and messages of ``A @ H``; sparsity-aware `rdm` with one process row sends whole
        columns, and makes a copy of A the first time. Where ``A @ H`` has sums over ranks (1.5D, Split-3D,
        3D), max and min send a node with each of their numbers, twice the words of the sums. mean: the
        first time, an all-reduce of m/rows numbers over the ranks that cut A's columns.

        Raises:
            ArgumentError: another reduction or combination; covers, but for sum of times; float32 beside 2³¹
                nodes or more. ValueError: shape, layout or dtype don't fit. On every rank.
        """
        how = self.semirings.semiring(reduce, combine)
        check_operand(self, H, "H", 1, self.input_layout)
        origin = compare(f"A.aggregate(H, {reduce}, {combine})", A=self, H=H)
        T = self._room(None, 0, H)
        held = self.semirings.forward(how, H, T)
        T.origin = origin
        return (T, Picked(self, how, T.shape, held)) if keep else T

    def aggregate_back(self, G: DistDense, picked: Any) -> DistDense:
        """Compute the gradient of H from G, that of the result, m x f in ``output_layout``.

        Of max and min each entry of G goes to the entry of H that was picked, of sum to all of the row's
        neighbours, of mean likewise, divided by their number; with times, multiplied by the values of A.

        Args:
            picked: of ``aggregate(…, keep=True)``.

        Returns:
            n x f in ``input_layout``.

        Cost: the words and messages of ``A.T @ G`` where rows that are needed, or panels in 2D and 3D,
        travel backwards. With whole blocks sums travel instead of G: as many words in 1D, in 1.5D no more
        over all ranks together. In Split-3D, max and min also gather a node for each entry of G that they
        gather.

        Raises:
            ArgumentError: what is not from this operator, or was not kept. ValueError: as of
                :meth:`aggregate`. On every rank.
        """
        if not isinstance(picked, Picked):
            problem = "expected what A.aggregate(H, …, keep=True) returns beside the product"
            raise ArgumentError("picked", type(picked).__name__, problem)
        if picked.A is not self:
            raise ArgumentError("picked", repr(picked), f"is of another operator than {self!r}")
        check_operand(self, G, "G", 0, self.output_layout)
        if G.shape != picked.shape:
            raise ValueError(f"{self.name}: G is {G.shape}, the product was {picked.shape}")
        origin = compare("A.aggregate_back(G, picked)", A=self, G=G, picked=picked)
        F = self._room(None, 1, G)
        self.semirings.back(picked.how, picked.held, G, F)
        F.origin = origin
        return F

    def _check_product(self, E: Any, name: str, X: DistDense, side: int, layout: Layout[Any]) -> None:
        check_edges(self.pattern, E)
        check_operand(self, X, name, side, layout)
        check_heads(E.heads, X.shape[1])


def diagonal(A: Algorithm) -> DistDense:
    """Return the entry (i, i) of each node i.

    A rank asks the source for what stands on the diagonal beside its rows. Where rows and columns are in two
    orders, it asks for whole rows, and looks for the columns of their nodes.
    """
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"{A.name}: only square matrices have a diagonal of nodes, this one is {A.shape}")
    shape, layout, columns = (A.shape[0], 1), A.output_layout, A.input_layout.rows
    rows, (left, right) = layout.ranges(shape)
    alike = layout.rows.order == columns.order
    window = rows, rows if alike else (0, A.shape[1])
    given = blocks(A.source, [window] if left < right else [])
    with A.grid.world.together():
        entries = np.zeros((rows[1] - rows[0], right - left), A.dtype)
        for block in given:
            entries[:, 0] = block.diagonal() if alike else _of_nodes(block, layout.rows.ids(*rows), columns)
    return DistDense(A.grid.backend.asarray(entries), layout, shape)


def _of_nodes(block: Any, nodes: np.ndarray, columns: Any) -> np.ndarray:
    """Return the entries of these rows, of these nodes, in the columns of the same nodes."""
    row = np.repeat(np.arange(len(nodes)), np.diff(block.indptr))
    own = columns.ids(0, block.shape[1])[block.indices] == nodes[row]
    entries = np.zeros(len(nodes), block.dtype)
    entries[row[own]] = block.data[own]
    return entries


def check_heads(heads: int, width: int) -> None:
    """Raise ArgumentError unless so many heads share the columns evenly."""
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise ArgumentError("heads", heads, f"must divide the {width} columns")


def check_pair(A: Any, left: str, U: Any, right: str, V: Any) -> None:
    """Raise, on every rank alike, unless U has a row for each row of A, V for each column, of one width."""
    check_operand(A, U, left, 0, A.output_layout)
    check_operand(A, V, right, 1, A.input_layout)
    if U.shape[1] != V.shape[1]:
        raise ValueError(f"{A.name}: {left} has {U.shape[1]} columns, {right} has {V.shape[1]}")


def check_operand(A: Any, X: Any, name: str, side: int, layout: Layout[Any]) -> None:
    """Raise, on every rank alike, unless X has a row for each row (0) or column (1) of A, cut so."""
    if not isinstance(X, DistDense):
        raise TypeError(f"{A.name}: {name} must be a DistDense (see scatter), got {type(X).__name__}")
    if X.shape[0] != A.shape[side]:
        raise ValueError(f"{A.name}: {name} has {X.shape[0]} rows, A is {A.shape[0]} x {A.shape[1]}")
    if not X.layout.same(layout, X.shape):
        raise ValueError(f"{A.name}: {name} is cut over {X.layout.words()}, needed is {layout.words()}")
    if X.dtype != A.dtype:
        raise ValueError(f"{A.name}: A holds {A.dtype}, {name} holds {X.dtype}")
