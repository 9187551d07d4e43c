"""CSR times dense on a GPU: the choice of a variant of ``kernels/csr_spmm.cu``, and of its rows.

A variant is described in the kernel's source; few of its numbers are compiled (`kernel_names`). P and S
decide in which order a row is summed, so they follow from the matrix, the width and B's alignment, on every
GPU alike. All else changes no bit and is tuned, unless ``DISTGNN_SPMM_TUNE=0``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.arrays.cupy_backend import event_clock
from distgnn.local.cuda import launch as gpu
from distgnn.local.cuda.elementwise import ending
from distgnn.local.cuda.launch import THREADS, WARP, Array, address, blocks_for, c_type, check
from distgnn.local.cuda.narrow import KINDS, Rounded, stored, vector
from distgnn.local.epilogue import Ending
from distgnn.local.tuner import FLEETING, Tuner

FILE = "csr_spmm.cu"
VECTOR_BYTES = 16  # what one load instruction of a lane fetches at most
LARGE = 1 << 20  # non-zeros from which sorting rows and waiting for a number pay before the first product
RESIDENT = 1 << 18  # lanes that a large GPU has room for; nominal, so that results don't depend on the GPU
SHORT = 8  # non-zeros of a row that shares a group where rows are visited by length
MOST = 8  # rows of a group


@dataclass(frozen=True)
class Variant:
    """V columns per load, G lanes side by side on a row of B, P teams of them on a row.

    Rows of more than S non-zeros are cut; K short rows per group, one after the other.

    ``sorted``: rows are visited by length, so that the groups of a warp end together; with K > 1 the longer
    ones have a group each. ``padded``: B is first copied to rows of whole 16-byte vectors.
    """

    V: int
    G: int
    P: int
    S: int
    K: int = 1
    sorted: bool = False
    padded: bool = False

    def __str__(self) -> str:
        numbers = " ".join(f"{name}{getattr(self, name)}" for name in "VGPSK")
        return f"{numbers}{' sorted' * self.sorted}{' padded' * self.padded}"

    def arguments(self, ends: bool) -> str:
        """Return the last template arguments of the kernel, for products with an epilogue or without."""
        return f"{self.V},{str(self.K > 1).lower()},{str(ends).lower()}"

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.V * self.G

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return THREADS // WARP * (WARP // (self.G * self.P))

    def panels(self, f: int) -> int:
        """Return the number of column panels that a product of width ``f`` falls into."""
        return -(-f // self.width)


def kernel_names() -> list[str]:
    """List the kernels of products, all that a variant may ask for, and that of `Pieces`."""
    vectors = [("float", (4, 2, 1)), ("double", (2, 1)), *((kind, (8, 4)) for kind in KINDS.values())]
    ways = ("false,false", "true,false", "false,true")  # rows in turn, epilogue
    shapes = [f"{V},{way}" for V in (8, 4, 2, 1) for way in ways]
    numbers = [(number, shape) for number, widths in vectors for shape in shapes if int(shape[0]) in widths]
    names = [f"spmm<{number},{index},{shape}>" for index in ("int", "int64") for number, shape in numbers]
    return [*names, "cut_rows<int>", "cut_rows<int64>"]


def in_flight(V: int, itemsize: int) -> int:
    """Return U, the non-zeros that a team has in flight: at most 64 bytes of B per lane."""
    return 2 if itemsize == 8 and V > 1 else 4


@dataclass(frozen=True)
class Size:
    """The sizes that choose a variant: an (m, k) matrix of nnz non-zeros, B of width f, bytes of a number."""

    m: int
    k: int
    nnz: int
    f: int
    itemsize: int

    @property
    def average(self) -> float:
        """Non-zeros per row."""
        return self.nnz / max(self.m, 1)

    def longest_piece(self, G: int, P: int) -> int:
        """Return S, a power of two: the share of a group, were all non-zeros spread over `RESIDENT` lanes."""
        return min(max(32, 16 * P, gpu.power_of_two(self.nnz * G * P / RESIDENT)), 1 << 20)


def teams(G: int, most: float) -> int:
    """Return P, a power of two up to ``most``: the largest of those that leave fewest lanes idle."""
    fitting = [P for P in (1, 2, 4, 8, 16, 32) if P <= max(most, 1) and G * P <= WARP]
    return max(fitting, key=lambda P: (WARP // (G * P) * G * P, P))


def variant_for(size: Size, V: int) -> Variant:
    """Return the variant expected to be best with vectors of V."""
    vectors, average = -(-size.f // V), size.average
    G = min(vectors, WARP)
    # Narrow rows of B are cheaper than indices, which more teams read side by side.
    P = teams(G, average / (2 if vectors <= 2 else 8))
    order = average >= 8 and size.nnz >= LARGE
    # Short rows share groups, as long as there are some for every place of a warp on a large GPU.
    K = min(MOST, gpu.power_of_two(size.m * G / (2 * RESIDENT))) if P == 1 and (average < 8 or order) else 1
    return Variant(V, G, P, size.longest_piece(G, P), K, sorted=order)


def candidates(size: Size, alignment: int, ends: bool = False) -> list[Variant]:
    """List the variants worth trying, the expected best first; all of them give the same bits.

    alignment: of B's first element, in bytes; B's leading dimension is its width, or that of `Rounded`.
    ends: whether the product has an epilogue, which is compiled for rows that have a group each.
    Panels narrower than a warp are not: where B fills the L2 cache four times over, those of 64 columns took
    1.1 times as long on an H200, those of 32 and 16 up to twice (benchmarks/results/gpu.md).
    """
    f, widest = size.f, VECTOR_BYTES // size.itemsize
    fits = lambda v: v <= widest and f % v == 0 and alignment % (v * size.itemsize) == 0  # noqa: E731
    V = vector(f) if size.itemsize == 2 else next(filter(fits, (4, 2, 1)))
    first = variant_for(size, V)
    if ends:
        first = replace(first, K=1)
    variants = [first, replace(first, sorted=not first.sorted, K=1 if first.sorted else first.K)]
    if first.K > 1:
        variants.append(replace(first, K=1))
    if V < widest and f >= widest and size.average >= 8:
        # The copy costs as much as gathering two rows per row of B.
        G = min(-(-f // widest), WARP // first.P)
        variants.append(replace(first, V=widest, G=G, padded=True))
    return variants


class RowFacts:
    """The facts that are known of a block's rows; kept in ``block.pattern``.

    Made without waiting for the GPU, unless the block is `LARGE`.

    Attributes:
        indptr, indices: the block's, or copies where its packing left 64-bit numbers at odd addresses.
    """

    def __init__(self, xp: Any, A: CSR) -> None:
        m = A.shape[0]
        if m > np.iinfo(np.int32).max - MOST * gpu.THREADS:  # groups behind the last row count on
            raise ValueError(f"the kernels number rows with 32 bits; a block of {m} rows must be cut")
        self.xp, self.shape, self.nnz = xp, A.shape, A.nnz
        self.tuners: dict[Any, Tuner[Variant]] = {}
        self.indptr, self.indices = aligned(A.indptr), aligned(A.indices)
        self._pieces: dict[int, Pieces] = {}
        self._by_length: tuple[Array, Array, Array] | None = None
        self._longer: int | None = None

    @classmethod
    def of(cls, xp: Any, A: CSR) -> RowFacts:
        """Return the plan of a block, made once."""
        if "cuda" not in A.pattern:
            A.pattern["cuda"] = cls(xp, A)
        return A.pattern["cuda"]

    def size(self, f: int, itemsize: int) -> Size:
        """Return the sizes that a variant is chosen by for a width."""
        return Size(*self.shape, self.nnz, f, itemsize)

    def pieces(self, longest: int) -> Pieces:
        """Return the rows of more non-zeros than ``longest``, cut."""
        if longest not in self._pieces:
            self._pieces[longest] = Pieces(self.xp, self.indptr, self.nnz, longest)
        return self._pieces[longest]

    def by_length(self) -> tuple[Array, Array, Array]:
        """Return the rows (int32), and where their entries begin and end; longest first.

        The order is in steps of four: rows that take as long stay in the order of the matrix, for the sake of
        the caches.
        """
        if self._by_length is None:
            lengths = self.xp.diff(self.indptr).astype(np.int32)
            rows = self.xp.argsort(-(lengths + 3 >> 2), kind="stable").astype(np.int32)
            self._by_length = rows, self.indptr[rows], self.indptr[rows + 1]
        return self._by_length

    def longer_rows(self) -> int:
        """Count the rows of more than `SHORT` non-zeros, which come first in `by_length`; waits once."""
        if self._longer is None:
            self._longer = int(self.xp.count_nonzero(self.xp.diff(self.indptr) > SHORT))
        return self._longer


class Pieces:
    """Long rows, cut on the GPU.

    Attributes:
        most: at most so many pieces; 0 if no row can be long. total: int32 (1), how many there are.
        table: what the kernels know as Piece, 32 bytes each.
    """

    def __init__(self, xp: Any, indptr: Array, nnz: int, longest: int) -> None:
        self.most = 2 * nnz // longest if nnz > longest else 0
        self.total: Array = None
        self.table: Array = None
        self._arrived: dict[tuple[int, int], Array] = {}
        if self.most:
            m = indptr.size - 1
            self.total, self.table = xp.zeros(1, np.int32), xp.empty((self.most, 4), np.int64)
            arguments = np.int32(m), indptr, np.int32(longest), self.total, self.table
            gpu.launch(xp, FILE, f"cut_rows<{c_type(indptr)}>", blocks_for(m), *arguments)
        if self.most and nnz >= LARGE:
            self.most = int(self.total[0])

    def arrived(self, xp: Any, panels: int) -> Array:
        """Return counters of the current stream, 0 between products.

        Products on other streams may run beside.
        """
        key = xp.cuda.get_current_stream().ptr, panels
        if key not in self._arrived:
            self._arrived[key] = xp.zeros((panels, self.most), np.int32)
        return self._arrived[key]


def spmm(
    A: CSR, B: Array | Rounded, out: Array | Rounded, accumulate: bool = False,
    variant: Variant | None = None, then: Ending | None = None,
) -> Any:  # fmt: skip
    """Multiply like ``local.spmm``; ValueError for other types than float32 and float64.

    variant: for the tuned one. then: done in the same launch, but bits only of a multiple of 8 columns. out:
    in 16 bits where :func:`writes_rounded`.
    """
    xp, (m, k), f = gpu.library(B), A.shape, B.shape[1]
    if A.dtype.char not in "fd":
        raise ValueError(f"spmm: values must be float32 or float64, not {A.dtype}")
    check("spmm", (k, f), A.dtype, B=B)
    check("spmm", (m, f), A.dtype, out=out)
    if isinstance(out, Rounded) and (accumulate or not writes_rounded(B, then)):
        raise ValueError("spmm: makes 16 bits of 16 bits alone, with all that becomes of a product by itself")
    if m and f:
        plan = RowFacts.of(xp, A)
        width = 0 if variant is None else variant.width  # that of a chosen one is a multiple of 8 if f is
        then = None if then is not None and then.remember and (f % 8 or width % 8) else then
        work = lambda way: _launch(xp, plan, A.data, B, out, accumulate, way, then)  # noqa: E731
        if variant is not None:
            work(variant)
        else:
            _tuner(xp, A, B, plan, then is not None or isinstance(out, Rounded)).run(work)
    return out


def writes_rounded(B: Array | Rounded, then: Ending | None) -> bool:
    """Tell whether a product by B makes 16 bits: all that becomes of it is done before it is rounded."""
    return isinstance(B, Rounded) and (then is None or not then.remember or B.shape[1] % 8 == 0)


def _launch(
    xp: Any, plan: RowFacts, weights: Array, B: Array | Rounded, out: Array | Rounded, accumulate: bool,
    variant: Variant, then: Ending | None,
) -> None:  # fmt: skip
    (m, f), panels = out.shape, variant.panels(out.shape[1])
    number, numbers, _ = stored(B)
    if variant.padded:
        numbers = _padded(xp, numbers, variant.V)
    pieces = plan.pieces(variant.S)
    cut: tuple[Any, ...] = np.int32(0), None, None, None, np.int32(0), None, np.int32(np.iinfo(np.int32).max)
    if pieces.most:
        width = -(-f // variant.V) * variant.V
        sums = xp.empty((pieces.most, width), out.dtype), np.int32(width)
        arrived = pieces.arrived(xp, panels), np.int32(variant.S)
        cut = np.int32(pieces.most), pieces.total, pieces.table, *sums, *arrived
    rounds = isinstance(out, Rounded)
    if rounds and variant.V != vector(f):
        raise ValueError(f"spmm: {variant} does not write whole vectors of 16 bits of {f} columns")
    ends = rounds or (then is not None and (then.any or then.remember))
    if ends:
        variant = replace(variant, K=1)
    alone = m if variant.K == 1 else plan.longer_rows() if variant.sorted else 0
    rows = plan.by_length() if variant.sorted else (None, plan.indptr, plan.indptr)
    shift = np.int32(not variant.sorted)  # from where a row begins to where it ends
    tasks = pieces.most, alone, -(-(m - alone) // variant.K)
    blocks = [-(-count // variant.groups) for count in tasks]
    G, P, U = variant.G, variant.P, in_flight(variant.V, numbers.itemsize)
    turn = min(G, U) * P
    shape = G, P, -(-(1 << 16) // G), WARP // (G * P), turn, G * P // turn * turn, blocks[0], sum(blocks[:2])
    factors = plan.indices, weights, numbers, np.int32(numbers.shape[1]), np.int32(f)
    empty = not accumulate or ends
    no_bits = None, np.int32(0), None
    target = (None, out.bits, np.int32(out.bits.shape[1]), out.beyond) if rounds else (out, *no_bits)
    written = *target, np.int32(accumulate), np.int32(empty)
    of_rows = *map(np.int32, (m, alone, variant.K)), *rows, shift
    name = f"spmm<{number},{c_type(plan.indices)},{variant.arguments(ends)}>"
    arguments = *map(np.int32, shape), *cut, *of_rows, *factors, *written
    gpu.launch(xp, FILE, name, (sum(blocks), panels), *arguments, *ending(xp, then, out))


def _tuner(xp: Any, A: CSR, B: Array | Rounded, plan: RowFacts, ending: bool) -> Tuner[Variant]:
    """Return the tuner of such products, apart for those with an epilogue."""
    number, numbers = B.kind if isinstance(B, Rounded) else B.dtype.name, stored(B)[1]
    f, alignment = B.shape[1], min(address(numbers) & -address(numbers), VECTOR_BYTES)
    key = f, alignment, number, ending
    if key not in plan.tuners:
        size = plan.size(f, numbers.itemsize)
        fixed = FLEETING in A.pattern or os.environ.get("DISTGNN_SPMM_TUNE", "1") == "0"
        tried = candidates(size, alignment, ending)[: 1 if fixed else None]
        label = f"spmm of {A.shape[0]} x {A.shape[1]}, {A.nnz} non-zeros, {f} columns of {number}"
        label += ", and what becomes of them" * ending
        plan.tuners[key] = Tuner(tried, label, *event_clock(xp))
    return plan.tuners[key]


def _padded(xp: Any, B: Array, V: int) -> Array:
    k, f = B.shape
    padded = xp.empty((k, -(-f // V) * V), B.dtype)
    padded[:, :f] = B
    padded[:, f:] = 0
    return padded


def aligned(array: Array) -> Array:
    """Return the array, or a copy where it lies where no GPU loads its numbers from."""
    return array if address(array) % array.itemsize == 0 else array.copy()
