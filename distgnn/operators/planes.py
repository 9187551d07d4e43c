"""Shards of A in the layers of 3D, of which ranks of a node hold what they have in common once.

The planes over which A is cut go around with the layers, so that on a node the same entries are wanted more
than once. On hosts a shard may be rows of a larger one, of any layer and any rank of the node:

    grid 1 x 2 x 2     layer 0     layer 1     layer 2
    y = 0, z = 0       A(0, :)     A(0, 0)     A(:, 0)
    y = 1, z = 0       A(0, :)     A(1, 0)     A(:, 1)

A(0, 0) and A(1, 0) are rows of A(:, 0), which the first rank has. Of a symmetric matrix, a shard may also be
the transpose of one, or of rows of one: A(0, :) that of A(:, 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from distgnn import ledger, local
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.shared import of_mate
from distgnn.layout import Range
from distgnn.operators.kept import cached_property
from distgnn.operators.loading import Holders, load
from distgnn.operators.sources import BlockSource

Window = tuple[Range, Range]


class Planes:
    """The shards of a rank by layer, each loaded when a layer first uses it, or one that it is rows of.

    Args:
        sources: give the blocks of the matrix of layer 0, and perhaps of another one in odd layers.
        windows: rows and columns of A that this rank has in each layer until they are the same again.

    Attributes:
        held: by layer. lends: ranks of a node lend each other shards.
    """

    def __init__(self, grid: Grid, sources: Sequence[BlockSource], windows: Sequence[Window]) -> None:
        self.grid, self.sources, self.windows = grid, sources, list(windows)
        self.held: dict[int, Plane] = {}
        self.lends = grid.shares_memory and len(sources) == 1
        self.symmetric = bool(sources[0].symmetric)

    def __getitem__(self, number: int) -> Plane:
        """Return the plane of a layer. Collective the first time."""
        key = number % len(self.windows)
        if key not in self.held:
            self.held[key] = self._plane(key)
        return self.held[key]

    def _plane(self, key: int) -> Plane:
        window, outer = self.windows[key], self.outer.get(key)
        if outer is not None:
            _ = self[outer]
            rows = self.lent(window)
            everywhere = self.grid.world.lowest(int(rows is not None))
            if rows is not None and everywhere:
                self.grid.nonzeros += rows.nnz
                return Plane(self, window, rows, whole=False)
        source, lasting = self.sources[key % len(self.sources)], self.symmetric or bool(self.outer)
        (A,) = load(self.grid, source, [window], lasting=lasting and self.lends)
        return Plane(self, window, A)

    @cached_property
    def outer(self) -> dict[int, int]:
        """Layers of whose shards on each node another layer's are rows, by that. Collective the first time.

        One that comes later is loaded before its time only where all ranks are on one node: there it takes no
        more than this one would.
        """
        if not self.lends:
            return {}
        every = self.grid.world.gather_objects((self.grid.node, self.windows))
        return outer_layers(every, len(self.windows))

    def lent(self, window: Window) -> CSR | None:
        """Return a shard that this rank or another one of the node holds, or rows of it. Collective.

        None where nobody has it.
        """
        held = {plane.window: plane.A for plane in self.held.values() if plane.whole}
        own = next((of for of in held if contains(of, window)), None)
        wanted = partial(contains, inner=window) if own is None else None
        lent = of_mate(self.grid.world, self.grid.node, wanted, held)
        key_and_shard = lent if own is None else (own, held[own])
        if key_and_shard is None:
            return None
        ((first, _), _), block = key_and_shard
        rows = block.row_block(window[0][0] - first, window[0][1] - first)
        if rows is not block:
            ledger.holds(rows, "adjacency", rows.indptr.nbytes)
        return rows


@dataclass(frozen=True)
class Plane:
    """A rank's shard of A in some layers.

    Attributes:
        window: its rows and columns; whole: it is loaded, not rows of another one.
    """

    planes: Planes
    window: Window
    A: CSR
    whole: bool = True

    @property
    def grid(self) -> Grid:
        """The grid of A."""
        return self.planes.grid

    @cached_property
    def At(self) -> CSR:
        """The shard, transposed where it is, or the one that is its transpose. Collective."""
        mirror = self.mirror
        key, held = ([self.window], [self.A]) if mirror is None else (("mirrored", self.grid.rank), [])
        made = Holders(self.grid, key).transposed(held)
        return made[0] if mirror is None else mirror

    @cached_property
    def mirror(self) -> CSR | None:
        """The transpose, if a rank of the node holds it or rows around it in any layer. Collective."""
        planes = self.planes
        return planes.lent(self.window[::-1]) if planes.lends and planes.symmetric else None

    @cached_property
    def mirrored(self) -> bool:
        """True where no rank has to make the transpose of its shard. Collective."""
        able = self.planes.lends and self.planes.symmetric
        return able and self.grid.world.lowest(int(self.mirror is not None)) == 1

    def transpose(self) -> CSR:
        """Return the transpose of the shard. Collective the first time."""
        mirror = self.mirror if self.mirrored else None
        return self.At if mirror is None else mirror

    @cached_property
    def keeps_transpose(self) -> bool:
        """True where all ranks have room for the transpose, or a product needs it. Collective, once."""
        if self.mirrored or not local.transposes(self.A.data):
            return True
        filled = sum(ledger.books().held.values()) + CSR.nbytes(*self.A.header())
        there = TUNING.filled_memory * self.grid.share_of_memory()
        return self.grid.world.lowest(int(filled <= there)) == 1


def contains(outer: Window, inner: Window) -> bool:
    """Tell whether a window has the columns of another one, and its rows."""
    (top, bottom), (first, last) = outer[0], inner[0]
    return outer[1] == inner[1] and top <= first and last <= bottom


def outer_layers(every: Sequence[tuple[object, Sequence[Window]]], layers: int) -> dict[int, int]:
    """Find the layers whose shards are, on every node, rows of those of another layer, which is none of them.

    Args:
        every: the node of each rank, and its windows by layer.

    Examples:
        >>> halves, whole = [(0, 2), (2, 4)], (0, 4)
        >>> y_and_z = [(y, z) for y in halves for z in halves]
        >>> outer_layers([("node", [(z, whole), (y, z), (whole, y)]) for y, z in y_and_z], 3)
        {1: 2}
    """
    held: dict[tuple[object, int], dict[Range, set[Range]]] = {}  # rows by columns, by node and layer
    for node, windows in every:
        for layer, (rows, columns) in enumerate(windows):
            held.setdefault((node, layer), {}).setdefault(columns, set()).add(rows)
    one_node = len({node for node, _ in every}) == 1
    outer: dict[int, int] = {}
    for layer in range(layers):
        for other in [*range(layer), *range(layer + 1, layers if one_node else 0)]:
            free = other not in outer and layer not in outer.values()
            if free and _inside(held, layer, other) and (other < layer or not _inside(held, other, layer)):
                outer[layer] = other
                break
    return outer


def _inside(
    held: Mapping[tuple[object, int], Mapping[Range, set[Range]]], layer: int, other: int
) -> bool:  # fmt: skip
    """Tell whether on each node all shards of a layer are rows of shards of the other."""
    return all(
        any(contains((around, columns), (rows, columns)) for around in held[node, other].get(columns, ()))
        for (node, number), by_columns in held.items() if number == layer
        for columns, every in by_columns.items()
        for rows in every
    )  # fmt: skip
