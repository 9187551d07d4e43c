# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled host kernels as Python functions: arrays are checked, the GIL is released, and C runs.

Arrays come through the buffer protocol, so building this needs nothing of NumPy. See `distgnn.local.host`.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

ANY = "float32 float64 int32 int64 uint8 uint16 uint32 uint64"

ctypedef void *address  # C takes it for a pointer to anything


cdef extern from "elementwise.h" nogil:
    struct activate_arguments "activate":
        int64_t rows, width, ldx, ldy
        address x, bias, y, low, odd, columns, bits
        uint64_t threshold
        double scale
        bint relu

    struct adam_arguments "adam":
        int64_t count
        address w, m, v, g
        double shrink, decay, first, second, rate, correction, epsilon

    struct cross_entropy_arguments "cross_entropy":
        int64_t height, width, ldx, ldy, count
        address x, y, rows, labels, sums, own
        double share

    struct binary_cross_entropy_arguments "binary_cross_entropy":
        int64_t height, width, ldx, ldy, count
        address x, y, rows, labels, losses
        double share

    struct elementwise_set:
        void (*activate)(const activate_arguments *) noexcept nogil
        void (*adam)(const adam_arguments *) noexcept nogil
        void (*pack_positive)(address x, int64_t count, address bits) noexcept nogil
        void (*keep_positive)(address x, int64_t count, address bits, double scale) noexcept nogil
        void (*cross_entropy)(const cross_entropy_arguments *) noexcept nogil
        void (*binary_cross_entropy)(const binary_cross_entropy_arguments *) noexcept nogil
        void (*scatter_add)(
            address x, int64_t ldx, address rows, int64_t count, int64_t width, address y, int64_t ldy
        ) noexcept nogil

    void gather_rows(
        address x, int64_t ldx, address rows, bint wide, int64_t count, int64_t bytes, address out, int64_t ldout
    )


cdef extern from "aggregate.h" nogil:
    struct aggregate:
        int64_t rows, width, first, ldb, ldt, ldc
        bint wide, wide_indices, plus, least, merge
        address pointers, indices, values, B, codes, T, C
        int threads

    struct aggregate_back_arguments "aggregate_back":
        int64_t rows, width, columns, first, ldg, ldc, ldo
        bint wide, wide_indices
        address pointers, indices, values, G, C, places, out

    void aggregate_run(const spmm_set *set, const aggregate *a)
    void aggregate_back_run(const aggregate_back_arguments *a)


cdef extern from "edges.h" nogil:
    struct edge_pattern:
        int64_t rows, heads
        address pointers, indices
        bint wide

    struct edge_dots_arguments "edge_dots":
        edge_pattern at
        int64_t ldu, ldv
        address u, v, bounds, out

    struct edge_products_arguments "edge_products":
        edge_pattern at
        int64_t ldb, ldc
        address values, order, B, bounds, C
        bint accumulate

    struct edge_softmax_arguments "edge_softmax":
        edge_pattern at
        int64_t ldu, ldv, first
        address u, v, x, maxima, sums, signs
        double slope
        int phases

    struct edge_softmax_back_arguments "edge_softmax_back":
        edge_pattern at
        int64_t first
        address p, x, sums, totals, signs
        double slope
        int phases

    struct edge_scores_arguments "edge_scores":
        edge_pattern at
        int64_t width, ldu, ldv
        address u, v, a, bounds, out, signs
        double slope

    struct edge_slopes_arguments "edge_slopes":
        edge_pattern at
        int64_t width, ldc
        address values, order, signs, bounds, C
        double slope
        bint accumulate

    struct edge_set:
        void (*dots)(const edge_dots_arguments *) noexcept nogil
        void (*products)(const edge_products_arguments *) noexcept nogil
        void (*softmax)(const edge_softmax_arguments *) noexcept nogil
        void (*softmax_back)(const edge_softmax_back_arguments *) noexcept nogil
        void (*scores)(const edge_scores_arguments *) noexcept nogil
        void (*slopes)(const edge_slopes_arguments *) noexcept nogil


cdef extern from "narrow.h" nogil:
    struct narrow_arguments "narrow":
        int64_t count, width, ldx
        address x, rows, y

    struct widen_arguments "widen":
        int64_t count
        address x, y
        bint accumulate

    struct narrow_set:
        uint32_t (*narrow)(const narrow_arguments *) noexcept nogil
        void (*widen)(const widen_arguments *) noexcept nogil


cdef extern from "spmm.h" nogil:
    struct spmm:
        int64_t rows, nonzeros, width, ldb, ldc, ahead
        bint wide, wide_indices, accumulate
        address pointers, indices, values, B, C
        int threads

    struct spmm_set:
        const char *name
        const elementwise_set *passes
        const narrow_set *narrowing
        const edge_set *edges

    const spmm_set *const *spmm_sets()
    void spmm_run(const spmm_set *set, const spmm *s)


cdef extern from "volume.h" nogil:
    struct volume:
        int64_t nodes, capacity, work
        int32_t parts
        address pointers, columns, part, send, receive
        double send_bound, receive_bound, heat
        uint64_t seed

    int volume_run "volume_refine"(volume *v)


cdef extern from "sample.h" nogil:
    struct sample:
        int64_t rows, count
        const int64_t *pointers
        address weights, keys, picked, remaining, prefix, order

    struct sample_selected:
        int64_t rows, count
        const int64_t *pointers
        const int64_t *selected
        address keys, picked, prefix, positions, counts

    struct relabel:
        int64_t blocks
        address bounds, seed_bounds, ids, seeds, table, labels, added, added_bounds
        bint extend

    int64_t sample_run(const sample *s)
    int64_t sample_selected_run(const sample_selected *s)
    void relabel_run(const relabel *r)


cdef extern from "neighbours.h" nogil:
    enum:
        NEIGHBOURS_GATHERED

    struct graph:
        int64_t nodes, nonzeros
        address pointers, indices, values, table
        bint wide_indices, wide_values

    struct vertices:
        int64_t blocks
        address bounds, ids

    struct neighbours_drawn "neighbours":
        const graph *graph
        const vertices *rows
        int64_t count
        address keys, picked, prefix, entries, labels, values, columns, column_bounds

    struct edges_kept:
        const graph *graph
        const vertices *rows
        const vertices *columns
        address scale, ends, labels, values

    int64_t neighbours_count(const graph *g, const vertices *v, int64_t count, int64_t *ends, int64_t *longest)
    int64_t neighbours_run(const neighbours_drawn *n)
    int64_t edges_run(const edges_kept *k)


cdef extern from "spgemm.h" nogil:
    struct spgemm_product "spgemm":
        int64_t rows, width
        address a_pointers, a_indices, b_pointers, b_indices, a_values, b_values
        address sums, bits, pointers, indices, values
        bint wide_indices, wide

    int64_t spgemm_words(int64_t width)
    int64_t spgemm_run(const spgemm_product *s)


cdef extern from "entries.h" nogil:
    struct entry_keys:
        int64_t count
        address positions, shifts, out
        const int64_t *first
        const int64_t *next
        bint wide
        int shift, bits

    struct entry_records:
        int64_t count
        int size, low, high
        address records, room

    struct entry_rows_arguments "entry_rows":
        int64_t count, first
        address keys, counts, columns
        int bits
        bint wide

    struct entry_pattern:
        int64_t rows
        address counts, columns
        bint wide

    struct entry_hashes:
        entry_pattern at
        address row_ids, column_ids, weights, loops
        uint64_t n, key, sum, mirrored
        bint wide_ids, both

    struct entry_scales:
        entry_pattern at
        address left, right, weights, out
        bint wide_out

    void entry_keys_run(const entry_keys *k)
    int entry_sort_run "entry_sort"(const entry_records *r)
    int64_t entry_merge_run "entry_merge"(const entry_records *r)
    void entry_rows_run(const entry_rows_arguments *r)
    void entry_hash_run "entry_hash"(entry_hashes *h)
    void entry_scale_run "entry_scale"(const entry_scales *s)


cdef class Array:
    """An array that C may use: its address, shape and leading dimension, held until this object goes away."""

    cdef Py_buffer view
    cdef bint held
    cdef str name, kind

    def __cinit__(self, str name, array, str kinds, int ndim, bint writable=False):
        self.name = name
        cdef int flags = PyBUF_FORMAT | PyBUF_STRIDES | (PyBUF_WRITABLE if writable else 0)
        try:
            PyObject_GetBuffer(array, &self.view, flags)
        except (TypeError, BufferError, ValueError) as error:
            need = "a writable" if writable else "an"
            raise TypeError(f"{name}: need {need} array, got {type(array).__name__} ({error})") from None
        self.held = True
        self.kind = kind_of(self.view.format, self.view.itemsize)
        if self.kind not in kinds.split():
            raise TypeError(f"{name}: need an array of {kinds.replace(' ', ' or ')}, got {self.kind}")
        if self.view.ndim != ndim:
            raise ValueError(f"{name}: need {ndim} dimensions, got {self.view.ndim}")
        cdef Py_ssize_t last = self.view.strides[ndim - 1]
        if last != self.view.itemsize and self.view.shape[ndim - 1] > 1 and self.view.len > 0:
            raise ValueError(f"{name}: rows must be contiguous, got a stride of {last} bytes within a row")
        cdef Py_ssize_t lead = self.view.strides[0]
        if ndim == 2 and self.view.shape[0] > 1 and self.view.len > 0:
            if lead < self.view.shape[1] * self.view.itemsize or lead % self.view.itemsize:
                raise ValueError(f"{name}: rows must follow each other, got {lead} bytes between rows")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef int64_t extent(self, int axis) noexcept nogil:
        return self.view.shape[axis]

    cdef int64_t lead(self) noexcept nogil:
        """Elements from one row to the next."""
        return self.view.strides[0] // self.view.itemsize if self.view.shape[0] > 1 else self.view.shape[1]

    cdef uintptr_t start(self) noexcept nogil:
        return <uintptr_t>self.view.buf

    cdef uintptr_t stop(self) noexcept nogil:
        if self.view.len == 0 or self.view.ndim == 1:
            return self.start() + self.view.len
        cdef int64_t elements = (self.view.shape[0] - 1) * self.lead() + self.view.shape[1]
        return self.start() + elements * self.view.itemsize

    cdef int must_be_apart(self, Array other) except -1:
        """Arrays of no numbers are apart from all: rows of no columns begin anywhere."""
        if self.view.len and other.view.len and self.start() < other.stop() and other.start() < self.stop():
            raise ValueError(f"{self.name} shares memory with {other.name}")
        return 0

    cdef int must_be_or_be_apart(self, Array other) except -1:
        """The same array or one elsewhere: each entry may be read before it is written."""
        if self.start() != other.start() or self.lead() != other.lead():
            self.must_be_apart(other)
        return 0

    cdef int must_be_whole(self) except -1:
        """Without gaps between rows."""
        if self.view.len > 0 and self.lead() != self.extent(1):
            raise ValueError(f"{self.name}: must be contiguous, got gaps between rows")
        return 0

    cdef int must_have(self, int64_t first, int64_t second=-1) except -1:
        cdef bint fits = self.view.shape[0] == first and (second < 0 or self.view.shape[1] == second)
        if not fits:
            need = f"({first},)" if second < 0 else f"({first}, {second})"
            got = tuple([self.extent(axis) for axis in range(self.view.ndim)])
            raise ValueError(f"{self.name}: need shape {need}, got {got}")
        return 0


cdef str kind_of(const char *format, Py_ssize_t itemsize):
    cdef str code = (format.decode() if format is not NULL else "B").lstrip("@=<^")
    if code in ("f", "d"):
        return "float32" if itemsize == 4 else "float64"
    if code in ("i", "l", "q"):
        return f"int{8 * itemsize}"
    if code in ("B", "H", "I", "L", "Q"):
        return f"uint{8 * itemsize}"
    return f"format {code!r}"


cdef address pointer(Array array) noexcept:
    return NULL if array is None else array.view.buf


def isas():
    """Names of the instruction sets that this machine runs, best first."""
    names = []
    while spmm_sets()[len(names)] is not NULL:
        names.append(spmm_sets()[len(names)].name.decode())
    return names


cdef int check_isa(int isa) except -1:
    if not 0 <= isa < len(isas()):
        raise ValueError(f"isa: must lie in 0..{len(isas()) - 1}, got {isa}")
    return isa


cdef const elementwise_set *passes_over(Array array, int isa) except NULL:
    return &spmm_sets()[check_isa(isa)].passes[array.kind == "float64"]


def multiply(
    indptr, indices, values, B, out, *, bint accumulate=False, int64_t prefetch=-1, int threads=1, int isa=0
):
    """`out = A B`, or `out += A B` with `accumulate`, for a CSR matrix whose pattern is known to be sound.

    Args:
        indptr, indices: int32 or int64, both the same.
        values, B (k, f), out (m, f): float32 or float64, all the same. Rows of B and out may lie apart.
        prefetch: non-zeros to look ahead, 0 for none, -1 to choose.
        threads: of OpenMP. isa: position in `isas()`.

    Raises:
        TypeError, ValueError: an array that does not fit, that C cannot walk, or that `out` overlaps.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array X = Array("B", B, "float32 float64", 2), Y = Array("out", out, X.kind, 2, True)
    cdef Array V = Array("values", values, X.kind, 1), other
    cdef spmm s
    if P.extent(0) < 1:
        raise ValueError("indptr: need one more than there are rows, got none")
    s.rows, s.nonzeros, s.width = P.extent(0) - 1, J.extent(0), X.extent(1)
    Y.must_have(s.rows, s.width)
    V.must_have(s.nonzeros)
    if int(indptr[0]) != 0 or int(indptr[s.rows]) != s.nonzeros:
        raise ValueError(f"indptr: must rise from 0 to {s.nonzeros}, got {indptr[0]} to {indptr[s.rows]}")
    for other in (P, J, V, X):
        Y.must_be_apart(other)
    s.wide, s.wide_indices, s.accumulate = X.kind == "float64", P.kind == "int64", accumulate
    s.pointers, s.indices, s.values = pointer(P), pointer(J), pointer(V)
    s.B, s.ldb, s.C, s.ldc = pointer(X), X.lead(), pointer(Y), Y.lead()
    s.ahead, s.threads = prefetch, threads
    cdef const spmm_set *chosen = spmm_sets()[check_isa(isa)]
    with nogil:
        spmm_run(chosen, &s)


cdef int check_rows(Array rows, int64_t limit) except -1:
    """Numbers, int64 or int32, below the limit."""
    cdef bint wide = rows.kind == "int64"
    cdef int64_t i, number
    for i in range(rows.extent(0)):
        number = (<const int64_t *>rows.view.buf)[i] if wide else (<const int32_t *>rows.view.buf)[i]
        if number < 0 or number >= limit:
            raise ValueError(f"{rows.name}: must lie in 0..{limit - 1}, got {number} at position {i}")
    return 0


cdef int check_rising(Array rows, int64_t limit) except -1:
    """Rows, int64, below the limit, each above the one before."""
    cdef const int64_t *numbers = <const int64_t *>rows.view.buf
    cdef int64_t i
    check_rows(rows, limit)
    for i in range(1, rows.extent(0)):
        if numbers[i] <= numbers[i - 1]:
            raise ValueError(f"rows: must rise, got {numbers[i - 1]} and {numbers[i]} at position {i - 1}")
    return 0


def activate(
    x, out, bias=None, keys=None, uint64_t threshold=0, double scale=1.0, bits=None, *, bint relu=False, int isa=0
):
    """The pass of this name in elementwise.h; `out` may be `x`. x (m, f); bias (f); bits uint8.

    keys: uint32 low and odd (m) and columns (f), or None.
    """
    cdef Array X = Array("x", x, "float32 float64", 2), Y = Array("out", out, X.kind, 2, True)
    cdef Array given, L, O, J
    cdef activate_arguments a
    a.rows, a.width, a.ldx, a.ldy = X.extent(0), X.extent(1), X.lead(), Y.lead()
    Y.must_have(a.rows, a.width)
    Y.must_be_or_be_apart(X)
    a.x, a.y, a.bias, a.low, a.odd, a.columns, a.bits = pointer(X), pointer(Y), NULL, NULL, NULL, NULL, NULL
    a.threshold, a.scale, a.relu = threshold, scale, relu
    held = []  # while C reads them
    if bias is not None:
        given = Array("bias", bias, X.kind, 1)
        given.must_have(a.width)
        a.bias = pointer(given)
        held.append(given)
    if keys is not None:
        L, O, J = (Array(name, key, "uint32", 1) for name, key in zip(("low", "odd", "columns"), keys))
        L.must_have(a.rows)
        O.must_have(a.rows)
        J.must_have(a.width)
        a.low, a.odd, a.columns = pointer(L), pointer(O), pointer(J)
    if bits is not None:
        given = Array("bits", bits, "uint8", 1, True)
        given.must_have((a.rows * a.width + 7) // 8)
        Y.must_be_whole()
        a.bits = pointer(given)
        held.append(given)
    cdef const elementwise_set *passes = passes_over(X, isa)
    with nogil:
        passes.activate(&a)


def pack_positive(x, bits, *, int isa=0):
    """`bits = numpy.packbits(x > 0)`; x contiguous (m, f), bits uint8."""
    cdef Array X = Array("x", x, "float32 float64", 2), P = Array("bits", bits, "uint8", 1, True)
    cdef int64_t count = X.extent(0) * X.extent(1)
    X.must_be_whole()
    P.must_have((count + 7) // 8)
    cdef const elementwise_set *passes = passes_over(X, isa)
    with nogil:
        passes.pack_positive(X.view.buf, count, P.view.buf)


def keep_positive(x, bits, double scale=1.0, *, int isa=0):
    """`x *= scale * numpy.unpackbits(bits)`; x contiguous (m, f), bits uint8."""
    cdef Array X = Array("x", x, "float32 float64", 2, True), P = Array("bits", bits, "uint8", 1)
    cdef int64_t count = X.extent(0) * X.extent(1)
    X.must_be_whole()
    P.must_have((count + 7) // 8)
    cdef const elementwise_set *passes = passes_over(X, isa)
    with nogil:
        passes.keep_positive(X.view.buf, count, P.view.buf, scale)


def adam(
    w, g, m, v, *, double rate, double correction, double first, double second, double epsilon, double shrink,
    double decay, int isa=0,
):
    """A step of Adam on flat arrays of one type, as elementwise.h says."""
    cdef Array W = Array("w", w, "float32 float64", 1, True), G = Array("g", g, W.kind, 1)
    cdef Array M = Array("m", m, W.kind, 1, True), V = Array("v", v, W.kind, 1, True), other
    cdef adam_arguments a
    a.count = W.extent(0)
    for other in (G, M, V):
        other.must_have(a.count)
    a.w, a.g, a.m, a.v = pointer(W), pointer(G), pointer(M), pointer(V)
    a.shrink, a.decay, a.first, a.second = shrink, decay, first, second
    a.rate, a.correction, a.epsilon = rate, correction, epsilon
    cdef const elementwise_set *passes = passes_over(W, isa)
    with nogil:
        passes.adam(&a)


def cross_entropy(x, rows, labels, out, sums, own, double share, *, int isa=0):
    """Softmax cross-entropy of int64 rows of x and its gradient, as elementwise.h says; `out` may be `x`.
    Raises ValueError for rows that do not rise, a row not in x or a label that is no column.
    """
    cdef Array X = Array("x", x, "float32 float64", 2), Y = Array("out", out, X.kind, 2, True)
    cdef Array R = Array("rows", rows, "int64", 1), L = Array("labels", labels, "int64", 1)
    cdef Array S = Array("sums", sums, X.kind, 1, True), T = Array("own", own, X.kind, 1, True), other
    cdef cross_entropy_arguments e
    e.height, e.width, e.ldx, e.ldy, e.count = X.extent(0), X.extent(1), X.lead(), Y.lead(), R.extent(0)
    Y.must_have(e.height, e.width)
    for other in (L, S, T):
        other.must_have(e.count)
    check_rising(R, e.height)
    check_rows(L, e.width)
    Y.must_be_or_be_apart(X)
    e.x, e.y, e.rows, e.labels = pointer(X), pointer(Y), pointer(R), pointer(L)
    e.sums, e.own, e.share = pointer(S), pointer(T), share
    cdef const elementwise_set *passes = passes_over(X, isa)
    with nogil:
        passes.cross_entropy(&e)


def binary_cross_entropy(x, rows, labels, out, losses, double share, *, int isa=0):
    """Binary cross-entropy of int64 rows of x and its gradient, as elementwise.h says; `out` may be `x`;
    labels uint8 (rows, columns of x), losses float64. Raises ValueError for rows that do not rise, or a row
    not in x.
    """
    cdef Array X = Array("x", x, "float32 float64", 2), Y = Array("out", out, X.kind, 2, True)
    cdef Array R = Array("rows", rows, "int64", 1), L = Array("labels", labels, "uint8", 2)
    cdef Array S = Array("losses", losses, "float64", 1, True)
    cdef binary_cross_entropy_arguments e
    e.height, e.width, e.ldx, e.ldy, e.count = X.extent(0), X.extent(1), X.lead(), Y.lead(), R.extent(0)
    Y.must_have(e.height, e.width)
    L.must_have(e.count, e.width)
    L.must_be_whole()
    S.must_have(e.count)
    check_rising(R, e.height)
    Y.must_be_or_be_apart(X)
    e.x, e.y, e.rows, e.labels = pointer(X), pointer(Y), pointer(R), pointer(L)
    e.losses, e.share = pointer(S), share
    cdef const elementwise_set *passes = passes_over(X, isa)
    with nogil:
        passes.binary_cross_entropy(&e)


def gather(x, rows, out):
    """`out[i] = x[rows[i]]`; x and out of one type, rows int32 or int64. Raises ValueError for a row not in x."""
    cdef Array X = Array("x", x, ANY, 2), R = Array("rows", rows, "int32 int64", 1)
    cdef Array Y = Array("out", out, X.kind, 2, True)
    cdef int64_t size = X.view.itemsize, count = R.extent(0), width = X.extent(1)
    cdef bint wide = R.kind == "int64"
    Y.must_have(count, width)
    check_rows(R, X.extent(0))
    Y.must_be_apart(X)
    with nogil:
        gather_rows(X.view.buf, X.lead() * size, R.view.buf, wide, count, width * size, Y.view.buf, Y.lead() * size)


def scatter_add(x, rows, out, *, int isa=0):
    """`out[rows[i]] += x[i]` for i in order, rows int64. Raises ValueError for a row not in out."""
    cdef Array X = Array("x", x, "float32 float64", 2), R = Array("rows", rows, "int64", 1)
    cdef Array Y = Array("out", out, X.kind, 2, True)
    cdef int64_t count = R.extent(0), width = Y.extent(1)
    X.must_have(count, width)
    check_rows(R, Y.extent(0))
    Y.must_be_apart(X)
    cdef const elementwise_set *passes = passes_over(X, isa)
    with nogil:
        passes.scatter_add(X.view.buf, X.lead(), R.view.buf, count, width, Y.view.buf, Y.lead())


cdef const edge_set *edges_over(Array array, int isa) except NULL:
    return &spmm_sets()[check_isa(isa)].edges[array.kind == "float64"]


cdef int check_pattern(edge_pattern *at, Array pointers, Array indices, Array numbers) except -1:
    """A CSR pattern, known to be sound, of which each entry has a row of `numbers`."""
    if pointers.extent(0) < 1:
        raise ValueError("indptr: need one more than there are rows, got none")
    at.rows, at.heads, at.wide = pointers.extent(0) - 1, numbers.extent(1), pointers.kind == "int64"
    at.pointers, at.indices = pointer(pointers), pointer(indices)
    cdef const char *p = <const char *>at.pointers
    cdef int64_t first = (<const int64_t *>p)[0] if at.wide else (<const int32_t *>p)[0]
    cdef int64_t last = (<const int64_t *>p)[at.rows] if at.wide else (<const int32_t *>p)[at.rows]
    if first != 0 or last != indices.extent(0):
        raise ValueError(f"indptr: must rise from 0 to {indices.extent(0)}, got {first} to {last}")
    numbers.must_be_whole()
    return 0


cdef int check_heads(Array bounds, int64_t heads, int64_t width) except -1:
    """Where the columns of each head begin and end."""
    cdef const int64_t *ends = <const int64_t *>bounds.view.buf
    cdef int64_t k
    bounds.must_have(heads + 1)
    for k in range(heads + 1):
        if not (ends[k - 1] if k else 0) <= ends[k] <= width:
            raise ValueError(f"bounds: must rise within 0..{width}, got {[ends[k] for k in range(heads + 1)]}")
    return 0


cdef int check_all_columns(Array bounds, int64_t heads, int64_t width) except -1:
    """Where the columns of each head begin and end, of all columns."""
    check_heads(bounds, heads, width)
    cdef const int64_t *ends = <const int64_t *>bounds.view.buf
    if ends[0] or ends[heads] != width:
        raise ValueError(f"bounds: must go from 0 to {width}, got {ends[0]} to {ends[heads]}")
    return 0


cdef int check_signs_of(Array signs, int64_t entries, int64_t width) except -1:
    """Whole bytes of bits for each entry."""
    signs.must_have(entries, (width + 7) // 8)
    signs.must_be_whole()
    return 0


cdef int check_signs(Array signs, int64_t first, int64_t count) except -1:
    """Room for the bits of so many numbers, and two bytes."""
    if first < 0 or signs.extent(0) < (first + count) // 8 + 2:
        raise ValueError(f"signs: need {(first + count) // 8 + 2} bytes, got {signs.extent(0)}")
    return 0


def edge_dots(indptr, indices, u, v, bounds, out, *, int isa=0):
    """`out[e, k]`, for each entry e = (i, j) of a sound CSR pattern: the dot product of u[i] and v[j] in columns
    bounds[k] to bounds[k + 1].

    Args:
        indptr, indices: int32 or int64, both the same; u (m, f), v (n, f), out (nnz, heads): float32 or
            float64, all the same; bounds: int64, rising within the columns. Rows of u and v may lie apart.

    Raises:
        TypeError, ValueError: an array that does not fit, or that `out` overlaps.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array U = Array("u", u, "float32 float64", 2), V = Array("v", v, U.kind, 2)
    cdef Array B = Array("bounds", bounds, "int64", 1), Y = Array("out", out, U.kind, 2, True), other
    cdef edge_dots_arguments d
    check_pattern(&d.at, P, J, Y)
    U.must_have(d.at.rows, V.extent(1))
    Y.must_have(J.extent(0), d.at.heads)
    check_heads(B, d.at.heads, V.extent(1))
    for other in (P, J, U, V, B):
        Y.must_be_apart(other)
    d.u, d.ldu, d.v, d.ldv, d.bounds, d.out = pointer(U), U.lead(), pointer(V), V.lead(), pointer(B), pointer(Y)
    cdef const edge_set *edges = edges_over(U, isa)
    with nogil:
        edges.dots(&d)


def edge_products(indptr, indices, values, B, bounds, out, *, order=None, bint accumulate=False, int isa=0):
    """`out = A B`, or `out += A B` with `accumulate`, where the entries of A have a value for each head, and a
    head the columns bounds[k] to bounds[k + 1] of B and out. Columns of no head stay as they are.

    Args:
        values: (nnz, heads), or any rows, of which `order`, integers like `indices`, has a row for each entry.
        other arguments as of :func:`edge_dots`, with B (n, f) and out (m, f).

    Raises:
        TypeError, ValueError: an array that does not fit, or that `out` overlaps.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array X = Array("B", B, "float32 float64", 2), Y = Array("out", out, X.kind, 2, True)
    cdef Array W = Array("values", values, X.kind, 2), E = Array("bounds", bounds, "int64", 1), other
    cdef Array R = None if order is None else Array("order", order, P.kind, 1)
    cdef edge_products_arguments p
    check_pattern(&p.at, P, J, W)
    Y.must_have(p.at.rows, X.extent(1))
    if R is None:
        W.must_have(J.extent(0), p.at.heads)
    else:
        R.must_have(J.extent(0))
        check_rows(R, W.extent(0))
        Y.must_be_apart(R)
    check_heads(E, p.at.heads, X.extent(1))
    for other in (P, J, W, X, E):
        Y.must_be_apart(other)
    p.values, p.order, p.B, p.ldb, p.C, p.ldc = pointer(W), pointer(R), pointer(X), X.lead(), pointer(Y), Y.lead()
    p.bounds, p.accumulate = pointer(E), accumulate
    cdef const edge_set *edges = edges_over(X, isa)
    with nogil:
        edges.products(&p)


def edge_softmax(
    indptr, indices, x, maxima, sums, int phases, *, u=None, v=None, double slope=1, signs=None,
    int64_t first=0, int isa=0,
):
    """Phases of a softmax over the rows of a sound CSR pattern, as edges.h says: scores of u (m, heads) and v
    (n, heads), or those in x (nnz, heads); maxima and sums (m, heads); signs uint8.

    Raises:
        TypeError, ValueError: an array that does not fit, or that one written to overlaps; a negative slope.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array X = Array("x", x, "float32 float64", 2, True), M = Array("maxima", maxima, X.kind, 2, True)
    cdef Array S = Array("sums", sums, X.kind, 2, True)
    cdef Array U = None if u is None else Array("u", u, X.kind, 2), V = None if u is None else Array("v", v, X.kind, 2)
    cdef Array T = None if signs is None else Array("signs", signs, "uint8", 1, True), one, other
    cdef edge_softmax_arguments s
    check_pattern(&s.at, P, J, X)
    X.must_have(J.extent(0), s.at.heads)
    for one in (M, S):
        one.must_have(s.at.rows, s.at.heads)
        one.must_be_whole()
    if not slope >= 0:
        raise ValueError(f"slope: must not be negative, got {slope}")
    if U is not None:
        U.must_have(s.at.rows, s.at.heads)
        V.must_have(V.extent(0), s.at.heads)
        s.ldu, s.ldv = U.lead(), V.lead()
    if T is not None:
        check_signs(T, first, X.extent(0) * s.at.heads)
    written = [array for array in (X, M, S, T) if array is not None]
    for k, one in enumerate(written):
        for other in [*written[:k], P, J, *((U, V) if U is not None else ())]:
            one.must_be_apart(other)
    s.u, s.v, s.x, s.maxima, s.sums, s.signs = pointer(U), pointer(V), pointer(X), pointer(M), pointer(S), pointer(T)
    s.slope, s.first, s.phases = slope, first, phases
    cdef const edge_set *edges = edges_over(X, isa)
    with nogil:
        edges.softmax(&s)


def edge_softmax_back(
    indptr, indices, p, x, sums, totals, int phases, *, double slope=1, signs=None, int64_t first=0, int isa=0
):
    """Phases of the adjoint of :func:`edge_softmax`, as edges.h says: p and x (nnz, heads); sums and totals, or
    None, (m, heads).

    Raises:
        TypeError, ValueError: an array that does not fit, or that one written to overlaps.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array X = Array("x", x, "float32 float64", 2, True), Y = Array("p", p, X.kind, 2)
    cdef Array S = Array("sums", sums, X.kind, 2, True)
    cdef Array T = None if totals is None else Array("totals", totals, X.kind, 2, True)
    cdef Array B = None if signs is None else Array("signs", signs, "uint8", 1), one, other
    cdef edge_softmax_back_arguments s
    check_pattern(&s.at, P, J, X)
    X.must_have(J.extent(0), s.at.heads)
    Y.must_have(J.extent(0), s.at.heads)
    Y.must_be_whole()
    written = [array for array in (X, S, T) if array is not None]
    for one in written[1:]:
        one.must_have(s.at.rows, s.at.heads)
        one.must_be_whole()
    if B is not None:
        check_signs(B, first, X.extent(0) * s.at.heads)
    for k, one in enumerate(written):
        for other in [*written[:k], P, J, Y, *((B,) if B is not None else ())]:
            one.must_be_apart(other)
    s.p, s.x, s.sums, s.totals, s.signs = pointer(Y), pointer(X), pointer(S), pointer(T), pointer(B)
    s.slope, s.first, s.phases = slope, first, phases
    cdef const edge_set *edges = edges_over(X, isa)
    with nogil:
        edges.softmax_back(&s)


def edge_scores(indptr, indices, u, v, a, bounds, double slope, out, signs, *, int isa=0):
    """`out[e, k]`, for each entry e = (i, j) of a sound CSR pattern: a times the leaky ReLU of u[i] + v[j], summed
    over columns bounds[k] to bounds[k + 1]; and the signs of these sums, as edges.h says.

    Args:
        u (m, f), v (n, f), a (f), out (nnz, heads): float32 or float64, all the same; signs: uint8
            (nnz, ceil(f / 8)); bounds: int64, rising from 0 to f. Rows of u and v may lie apart.

    Raises:
        TypeError, ValueError: an array that does not fit, or that one written to overlaps.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array U = Array("u", u, "float32 float64", 2), V = Array("v", v, U.kind, 2), W = Array("a", a, U.kind, 1)
    cdef Array B = Array("bounds", bounds, "int64", 1), Y = Array("out", out, U.kind, 2, True), other
    cdef Array S = Array("signs", signs, "uint8", 2, True)
    cdef edge_scores_arguments s
    check_pattern(&s.at, P, J, Y)
    s.width = V.extent(1)
    U.must_have(s.at.rows, s.width)
    W.must_have(s.width)
    Y.must_have(J.extent(0), s.at.heads)
    check_signs_of(S, J.extent(0), s.width)
    check_all_columns(B, s.at.heads, s.width)
    for other in (P, J, U, V, W, B):
        Y.must_be_apart(other)
        S.must_be_apart(other)
    Y.must_be_apart(S)
    s.u, s.ldu, s.v, s.ldv, s.a, s.bounds = pointer(U), U.lead(), pointer(V), V.lead(), pointer(W), pointer(B)
    s.slope, s.out, s.signs = slope, pointer(Y), pointer(S)
    cdef const edge_set *edges = edges_over(U, isa)
    with nogil:
        edges.scores(&s)


def edge_slopes(
    indptr, indices, values, signs, bounds, double slope, out, *, order=None, bint accumulate=False, int isa=0
):
    """`out[i, c]`, or what is added to it with `accumulate`: the sum of the values of row i's entries, of the head
    of column c, times `slope` where the entry's sign is 0.

    Args:
        values (nnz, heads), out (m, f): float32 or float64; signs, bounds: as of :func:`edge_scores`.
        order: integers like `indices`; the signs of entry e are row order[e].

    Raises:
        TypeError, ValueError: an array that does not fit, or that `out` overlaps.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array W = Array("values", values, "float32 float64", 2), Y = Array("out", out, W.kind, 2, True)
    cdef Array S = Array("signs", signs, "uint8", 2), B = Array("bounds", bounds, "int64", 1), other
    cdef Array R = None if order is None else Array("order", order, P.kind, 1)
    cdef edge_slopes_arguments p
    check_pattern(&p.at, P, J, W)
    p.width = Y.extent(1)
    Y.must_have(p.at.rows, p.width)
    W.must_have(J.extent(0), p.at.heads)
    check_all_columns(B, p.at.heads, p.width)
    check_signs_of(S, J.extent(0) if R is None else S.extent(0), p.width)
    if R is not None:
        R.must_have(J.extent(0))
        check_rows(R, S.extent(0))
        Y.must_be_apart(R)
    for other in (P, J, W, S, B):
        Y.must_be_apart(other)
    p.values, p.order, p.signs, p.bounds = pointer(W), pointer(R), pointer(S), pointer(B)
    p.C, p.ldc, p.slope, p.accumulate = pointer(Y), Y.lead(), slope, accumulate
    cdef const edge_set *edges = edges_over(W, isa)
    with nogil:
        edges.slopes(&p)


def best(
    indptr, indices, values, B, codes, T, C, *, int64_t first=0, bint plus=False, bint least=False,
    bint merge=False, int threads=1, int isa=0,
):
    """The best entry in each column of what a row's entries make of rows of B, as aggregate.h says, in T and C.

    Args:
        indptr, indices: int32 or int64, both the same, of a sound CSR pattern; values (nnz) or None; B (k, f),
            T (m, f): float32 or float64, all the same. codes (k) or None, C (m, f): int32 or int64, as wide.

    Raises:
        TypeError, ValueError: an array that does not fit, or that T or C overlaps.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array X = Array("B", B, "float32 float64", 2), Y = Array("T", T, X.kind, 2, True), other
    cdef str integers = "int64" if X.kind == "float64" else "int32"
    cdef Array Z = Array("C", C, integers, 2, True)
    cdef Array V = None if values is None else Array("values", values, X.kind, 1)
    cdef Array N = None if codes is None else Array("codes", codes, integers, 1)
    cdef aggregate a
    if P.extent(0) < 1:
        raise ValueError("indptr: need one more than there are rows, got none")
    a.rows, a.width = P.extent(0) - 1, X.extent(1)
    if int(indptr[0]) != 0 or int(indptr[a.rows]) != J.extent(0):
        raise ValueError(f"indptr: must rise from 0 to {J.extent(0)}")
    Y.must_have(a.rows, a.width)
    Z.must_have(a.rows, a.width)
    if V is not None:
        V.must_have(J.extent(0))
    if N is not None:
        N.must_have(X.extent(0))
    for other in (P, J, X, V, N):
        if other is not None:
            Y.must_be_apart(other)
            Z.must_be_apart(other)
    Y.must_be_apart(Z)
    a.wide, a.wide_indices, a.threads = X.kind == "float64", P.kind == "int64", threads
    a.pointers, a.indices, a.values, a.B, a.ldb = pointer(P), pointer(J), pointer(V), pointer(X), X.lead()
    a.codes, a.first, a.plus, a.least, a.merge = pointer(N), first, plus, least, merge
    a.T, a.ldt, a.C, a.ldc = pointer(Y), Y.lead(), pointer(Z), Z.lead()
    cdef const spmm_set *chosen = spmm_sets()[check_isa(isa)]
    with nogil:
        aggregate_run(chosen, &a)


def best_back(indptr, indices, values, G, C, places, out, *, int64_t first=0):
    """`out[j]`: the sums of the entries of G where C has the code of column j, as aggregate.h says.

    Args:
        indptr, indices, values: a sound CSR pattern of n rows, rising in a row, as wide as for :func:`best`, and
            its values or None; G (m, f), out (n, f); C (m, f); places: of codes, or None.

    Raises:
        TypeError, ValueError: an array that does not fit, or that `out` overlaps.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1), J = Array("indices", indices, P.kind, 1)
    cdef Array X = Array("G", G, "float32 float64", 2), Y = Array("out", out, X.kind, 2, True), other
    cdef str integers = "int64" if X.kind == "float64" else "int32"
    cdef Array Z = Array("C", C, integers, 2)
    cdef Array V = None if values is None else Array("values", values, X.kind, 1)
    cdef Array N = None if places is None else Array("places", places, integers, 1)
    cdef aggregate_back_arguments a
    a.rows, a.width, a.columns = X.extent(0), X.extent(1), Y.extent(0)
    P.must_have(a.columns + 1)
    Y.must_have(a.columns, a.width)
    Z.must_have(a.rows, a.width)
    if V is not None:
        V.must_have(J.extent(0))
    for other in (P, J, X, Z, V, N):
        if other is not None:
            Y.must_be_apart(other)
    a.wide, a.wide_indices, a.first = X.kind == "float64", P.kind == "int64", first
    a.pointers, a.indices, a.values, a.places = pointer(P), pointer(J), pointer(V), pointer(N)
    a.G, a.ldg, a.C, a.ldc, a.out, a.ldo = pointer(X), X.lead(), pointer(Z), Z.lead(), pointer(Y), Y.lead()
    with nogil:
        aggregate_back_run(&a)


cdef const narrow_set *to_16_bits(str kind, int isa) except NULL:
    if kind not in ("bfloat16", "float16"):
        raise ValueError(f"kind: need bfloat16 or float16, got {kind}")
    return &spmm_sets()[check_isa(isa)].narrowing[kind == "float16"]


def narrow(x, rows, out, str kind, *, int isa=0):
    """`out[i] = x[rows[i]]`, or `x[i]` where `rows` is None, as the bits of bfloat16 or float16 numbers.

    x float32 (m, f), rows int64 (k), out uint16 (k, f) without gaps. Returns the bits of the size of the
    largest finite number that became NaN; 0: none did. Raises ValueError for a row not in x.
    """
    cdef Array X = Array("x", x, "float32", 2), Y = Array("out", out, "uint16", 2, True)
    cdef Array R = None if rows is None else Array("rows", rows, "int64", 1)
    cdef narrow_arguments n
    n.count, n.width, n.ldx = X.extent(0) if R is None else R.extent(0), X.extent(1), X.lead()
    Y.must_have(n.count, n.width)
    Y.must_be_whole()
    if R is not None:
        check_rows(R, X.extent(0))
    Y.must_be_apart(X)
    n.x, n.rows, n.y = pointer(X), pointer(R), pointer(Y)
    cdef const narrow_set *passes = to_16_bits(kind, isa)
    cdef uint32_t most
    with nogil:
        most = passes.narrow(&n)
    return most


def widen(x, out, str kind, *, bint accumulate=False, int isa=0):
    """`out = x`, or `out += x` with `accumulate`: x uint16 (n), bits of `kind`; out float32 (n)."""
    cdef Array X = Array("x", x, "uint16", 1), Y = Array("out", out, "float32", 1, True)
    cdef widen_arguments w
    w.count, w.accumulate = X.extent(0), accumulate
    Y.must_have(w.count)
    Y.must_be_apart(X)
    w.x, w.y = pointer(X), pointer(Y)
    cdef const narrow_set *passes = to_16_bits(kind, isa)
    with nogil:
        passes.widen(&w)


def volume_refine(
    pointers, columns, part, send, receive, *, int64_t capacity, double send_bound, double receive_bound,
    double heat, int64_t work, uint64_t seed,
):
    """Improve `part` in place and fill `send` and `receive`, as volume.h says. CSR of a square matrix: int64
    (n + 1), int32 (nnz) with no column twice in a row; part int32 (n); send and receive int64 (parts).

    Raises:
        ValueError: not a CSR matrix, or parts that are not in 0..parts-1. MemoryError.
    """
    cdef Array P = Array("pointers", pointers, "int64", 1), C = Array("columns", columns, "int32", 1)
    cdef Array Q = Array("part", part, "int32", 1, True)
    cdef Array S = Array("send", send, "int64", 1, True), R = Array("receive", receive, "int64", 1, True)
    cdef volume v
    cdef int status
    v.nodes, v.parts = Q.extent(0), <int32_t>S.extent(0)
    P.must_have(v.nodes + 1)
    R.must_have(v.parts)
    check_bounds(P, C.extent(0))
    v.pointers, v.columns, v.part = pointer(P), pointer(C), pointer(Q)
    v.send, v.receive = pointer(S), pointer(R)
    v.capacity, v.send_bound, v.receive_bound, v.heat = capacity, send_bound, receive_bound, heat
    v.work, v.seed = work, seed
    check_rows(Q, v.parts)
    check_rows(C, v.nodes)
    with nogil:
        status = volume_run(&v)
    if status:
        raise MemoryError(f"volume: no memory to refine {v.nodes} nodes, {C.extent(0)} non-zeros, {v.parts} parts")


cdef int check_bounds(Array bounds, int64_t stop) except -1:
    """Row pointers that rise from 0 to `stop`."""
    cdef const int64_t *p = <const int64_t *>bounds.view.buf
    cdef int64_t i, last = bounds.extent(0) - 1
    if last < 0 or p[0] != 0 or p[last] != stop:
        raise ValueError(f"{bounds.name}: must rise from 0 to {stop}")
    for i in range(last):
        if p[i + 1] < p[i]:
            raise ValueError(f"{bounds.name}: must not fall, got {p[i]} and {p[i + 1]} from position {i} on")
    return 0


def sample_rows(pointers, weights, keys, picked, remaining, prefix, *, int64_t count):
    """Draw `count` distinct entries of every row, as sample.h says. pointers int64 (m + 1); weights float64
    (nnz); keys uint64 (m); picked uint8 (nnz); remaining float64 (m, count + 1) or None; prefix float64, as
    many as the longest row has entries.

    Returns -1, or the first row whose weights are not all finite and non-negative with a finite sum. Raises
    ValueError for pointers that are none, a shape that doesn't fit or a negative count.
    """
    cdef Array P = Array("pointers", pointers, "int64", 1), K = Array("keys", keys, "uint64", 1)
    cdef Array W = Array("weights", weights, "float64", 1), T = Array("picked", picked, "uint8", 1, True)
    cdef Array X = Array("prefix", prefix, "float64", 1, True)
    cdef Array R = None if remaining is None else Array("remaining", remaining, "float64", 2, True)
    cdef sample s
    cdef int64_t i, bad
    if count < 0:
        raise ValueError(f"count: must not be negative, got {count}")
    s.rows, s.count = K.extent(0), count
    P.must_have(s.rows + 1)
    check_bounds(P, T.extent(0))
    W.must_have(T.extent(0))
    if R is not None:
        R.must_have(s.rows, count + 1)
        R.must_be_whole()
    s.pointers, s.weights, s.keys = <const int64_t *>P.view.buf, pointer(W), pointer(K)
    s.picked, s.remaining, s.prefix, s.order = pointer(T), pointer(R), pointer(X), NULL
    for i in range(s.rows):
        if s.pointers[i + 1] - s.pointers[i] > X.extent(0):
            length = s.pointers[i + 1] - s.pointers[i]
            raise ValueError(f"prefix: has room for {X.extent(0)} entries, row {i} has {length}")
    with nogil:
        bad = sample_run(&s)
    return bad


def sample_selected_rows(
    pointers, int64_t nnz, selected, keys, picked, prefix, positions, counts, *, int64_t count
):
    """Draw `count` distinct entries of every selected row, as sample.h says. pointers int64, of a matrix with
    `nnz` entries; selected and counts int64 (m); keys uint64 (m); picked uint8, all 0, and prefix float64, as
    many as the longest of these rows has entries; positions int64, as many as there are entries to draw.

    Returns how many positions there are. Raises ValueError for a row not in the matrix, pointers that fall or
    exceed `nnz`, a shape that doesn't fit.
    """
    cdef Array P = Array("pointers", pointers, "int64", 1), V = Array("selected", selected, "int64", 1)
    cdef Array K = Array("keys", keys, "uint64", 1), T = Array("picked", picked, "uint8", 1, True)
    cdef Array X = Array("prefix", prefix, "float64", 1, True), C = Array("counts", counts, "int64", 1, True)
    cdef Array O = Array("positions", positions, "int64", 1, True)
    cdef sample_selected s
    cdef int64_t i, first, last, total, room = 0, longest = T.extent(0)
    s.rows, s.count = V.extent(0), count
    K.must_have(s.rows)
    C.must_have(s.rows)
    X.must_have(longest)
    check_rows(V, P.extent(0) - 1)
    s.pointers, s.selected = <const int64_t *>P.view.buf, <const int64_t *>V.view.buf
    s.keys, s.picked, s.prefix = pointer(K), pointer(T), pointer(X)
    s.positions, s.counts = pointer(O), pointer(C)
    for i in range(s.rows):
        first, last = s.pointers[s.selected[i]], s.pointers[s.selected[i] + 1]
        if first < 0 or last < first or last > nnz or last - first > longest:
            place = f"{first} to {last}, of {nnz}, with room for {longest}"
            raise ValueError(f"pointers: row {s.selected[i]} goes from {place}")
        room += min(last - first, count)
    O.must_have(room)
    with nogil:
        total = sample_selected_run(&s)
    return total


def relabel_blocks(bounds, ids, seed_bounds, seeds, table, labels, added, added_bounds):
    """Number the ids of every block by their position among the block's seeds, as sample.h says; `added` and
    `added_bounds` are None where unknown ids get -1. All int64, except for table, int32 and -1 throughout.
    Raises ValueError for pointers that are none, an id outside of the table or a shape that doesn't fit.
    """
    cdef Array B = Array("bounds", bounds, "int64", 1), D = Array("seed_bounds", seed_bounds, "int64", 1)
    cdef Array I = Array("ids", ids, "int64", 1), S = Array("seeds", seeds, "int64", 1)
    cdef Array T = Array("table", table, "int32", 1, True), L = Array("labels", labels, "int64", 1, True)
    cdef Array A = None if added is None else Array("added", added, "int64", 1, True)
    cdef Array E = None if added is None else Array("added_bounds", added_bounds, "int64", 1, True)
    cdef relabel r
    check_bounds(B, I.extent(0))
    D.must_have(B.extent(0))
    check_bounds(D, S.extent(0))
    L.must_have(I.extent(0))
    check_rows(I, T.extent(0))
    check_rows(S, T.extent(0))
    if A is not None:
        A.must_have(I.extent(0))
        E.must_have(B.extent(0))
    r.blocks, r.extend, r.bounds, r.seed_bounds = B.extent(0) - 1, A is not None, pointer(B), pointer(D)
    r.ids, r.seeds, r.table, r.labels = pointer(I), pointer(S), pointer(T), pointer(L)
    r.added, r.added_bounds = pointer(A), pointer(E)
    with nogil:
        relabel_run(&r)


cdef class Rows:
    """A matrix whose rows and columns are nodes, as neighbours.h has it: pointers int64 (n + 1); indices int32 or
    int64; values of 4 or 8 bytes, or None; table int32 (n), -1 throughout.
    """

    cdef graph g
    cdef Array values
    cdef list held

    def __cinit__(self, pointers, indices, values, table):
        cdef Array P = Array("pointers", pointers, "int64", 1), J = Array("indices", indices, "int32 int64", 1)
        cdef Array T = Array("table", table, "int32", 1, True)
        self.values = None if values is None else Array("values", values, "float32 float64 int32 int64", 1)
        self.held = [P, J, T]
        self.g.nodes, self.g.nonzeros, self.g.wide_indices = T.extent(0), J.extent(0), J.kind == "int64"
        P.must_have(self.g.nodes + 1)
        if self.values is not None:
            self.values.must_have(self.g.nonzeros)
            self.g.wide_values = self.values.view.itemsize == 8
        self.g.pointers, self.g.indices, self.g.table = pointer(P), pointer(J), pointer(T)
        self.g.values = pointer(self.values)


cdef class Lists:
    """Ids of nodes by minibatch, as neighbours.h has them: bounds and ids, int64. ValueError: an id of none."""

    cdef vertices v
    cdef Array bounds, ids

    def __cinit__(self, bounds, ids, Rows graph not None):
        self.bounds, self.ids = Array("bounds", bounds, "int64", 1), Array("ids", ids, "int64", 1)
        check_bounds(self.bounds, self.ids.extent(0))
        check_rows(self.ids, graph.g.nodes)
        self.v.blocks, self.v.bounds, self.v.ids = self.bounds.extent(0) - 1, pointer(self.bounds), pointer(self.ids)


cdef class Neighbours:
    """At most `count` of the entries of each of these rows. Sets `ends`, int64 (rows + 1), to where those of each
    begin. ValueError: pointers that fall, or exceed the entries.

    Attributes:
        longest: the entries of the longest of the rows.
    """

    cdef Rows graph
    cdef Lists rows
    cdef int64_t count, total
    cdef readonly int64_t longest

    def __cinit__(self, Rows graph not None, Lists rows not None, ends, int64_t count):
        cdef Array E = Array("ends", ends, "int64", 1, True)
        cdef int64_t wrong
        cdef int64_t *filled = <int64_t *>E.view.buf
        self.graph, self.rows, self.count = graph, rows, count
        E.must_have(rows.ids.extent(0) + 1)
        if count < 0:
            raise ValueError(f"count: must not be negative, got {count}")
        with nogil:
            wrong = neighbours_count(&graph.g, &rows.v, count, filled, &self.longest)
        if wrong >= 0:
            raise ValueError(f"pointers: those of row number {wrong} fall, or exceed {graph.g.nonzeros} entries")
        self.total = filled[rows.ids.extent(0)]

    def draw(self, keys, picked, prefix, labels, values, columns, column_bounds):
        """Draw and number them, as neighbours.h says. keys uint64, one per minibatch; picked uint8, all 0, and
        prefix float64, `longest`; labels int32, one per entry, and values, of the graph's type, or None; columns
        int64, one per row and entry; column_bounds int64, as many as there are bounds.

        Raises ValueError for a column that is no node, or a shape that doesn't fit.
        """
        cdef Array K = Array("keys", keys, "uint64", 1), X = Array("prefix", prefix, "float64", 1, True)
        cdef Array T = Array("picked", picked, "uint8", 1, True), L = Array("labels", labels, "int32", 1, True)
        cdef Array C = Array("columns", columns, "int64", 1, True)
        cdef Array D = Array("column_bounds", column_bounds, "int64", 1, True)
        cdef Array V = None if self.graph.values is None else Array("values", values, self.graph.values.kind, 1, True)
        cdef Array room = Array("room", bytearray(8 * (NEIGHBOURS_GATHERED + min(self.count, self.longest))), ANY, 1)
        cdef neighbours_drawn n
        cdef int64_t wrong
        for given, size in ((K, self.rows.v.blocks), (T, self.longest), (X, self.longest), (L, self.total),
                            (C, self.rows.ids.extent(0) + self.total), (D, self.rows.v.blocks + 1)):
            (<Array>given).must_have(size)
        if V is not None:
            V.must_have(self.total)
        n.graph, n.rows, n.count, n.entries = &self.graph.g, &self.rows.v, self.count, pointer(room)
        n.keys, n.picked, n.prefix, n.labels = pointer(K), pointer(T), pointer(X), pointer(L)
        n.values, n.columns, n.column_bounds = pointer(V), pointer(C), pointer(D)
        with nogil:
            wrong = neighbours_run(&n)
        if wrong >= 0:
            raise ValueError(f"indices: entry {wrong} must lie in 0..{self.graph.g.nodes - 1}, and does not")


def keep_edges(Rows graph not None, Lists rows not None, Lists columns not None, scale, ends, labels, values):
    """Keep the entries of rows in their minibatch's columns, as neighbours.h says. scale float64, one per column,
    or None; ends int64 (rows + 1); labels int32 and values, float32 or float64 as the graph's, with room for as
    many of each row as it has entries, or its minibatch columns.

    Raises ValueError for pointers that fall or exceed the entries, a column that is no node, or a shape that
    doesn't fit.
    """
    cdef Array S = None if scale is None else Array("scale", scale, "float64", 1)
    cdef Array E = Array("ends", ends, "int64", 1, True), L = Array("labels", labels, "int32", 1, True)
    cdef Array V = Array("values", values, "float32 float64", 1, True)
    cdef const int64_t *bounds = <const int64_t *>columns.v.bounds
    cdef int64_t b, i, first, last, wrong, room = 0
    cdef edges_kept k
    graph.values.must_have(graph.g.nonzeros)
    if V.kind != graph.values.kind or rows.v.blocks != columns.v.blocks:
        raise ValueError("values and columns: need the graph's type, and lists for as many minibatches as rows")
    if S is not None:
        S.must_have(columns.ids.extent(0))
    E.must_have(rows.ids.extent(0) + 1)
    for b in range(rows.v.blocks):
        for i in range((<const int64_t *>rows.v.bounds)[b], (<const int64_t *>rows.v.bounds)[b + 1]):
            first = (<const int64_t *>graph.g.pointers)[(<const int64_t *>rows.v.ids)[i]]
            last = (<const int64_t *>graph.g.pointers)[(<const int64_t *>rows.v.ids)[i] + 1]
            if first < 0 or last < first or last > graph.g.nonzeros:
                raise ValueError(f"pointers: row number {i} goes from {first} to {last}, of {graph.g.nonzeros}")
            room += min(last - first, bounds[b + 1] - bounds[b])
    L.must_have(room)
    V.must_have(room)
    k.graph, k.rows, k.columns, k.scale = &graph.g, &rows.v, &columns.v, pointer(S)
    k.ends, k.labels, k.values = pointer(E), pointer(L), pointer(V)
    with nogil:
        wrong = edges_run(&k)
    if wrong >= 0:
        raise ValueError(f"indices: entry {wrong} must lie in 0..{graph.g.nodes - 1}, and does not")


def spgemm(
    a_pointers, a_indices, a_values, b_pointers, b_indices, b_values, sums, bits, pointers, indices, values
):
    """Multiply two sparse matrices, as spgemm.h says. a_pointers, a_indices and pointers int64; b_pointers,
    b_indices and indices int32 or int64, all the same; values and sums float32 or float64, all the same. sums, one
    per column, and bits, uint64, :func:`spgemm_bits`, all 0; indices and values with room for as many entries of
    each row as it has products, or B columns.

    Raises ValueError for pointers that are none, a column that is none or a shape that doesn't fit.
    """
    cdef Array P = Array("a_pointers", a_pointers, "int64", 1), J = Array("a_indices", a_indices, "int64", 1)
    cdef Array Q = Array("b_pointers", b_pointers, "int32 int64", 1), K = Array("b_indices", b_indices, Q.kind, 1)
    cdef Array U = Array("b_values", b_values, "float32 float64", 1), V = Array("a_values", a_values, U.kind, 1)
    cdef Array S = Array("sums", sums, U.kind, 1, True), B = Array("bits", bits, "uint64", 1, True)
    cdef Array E = Array("pointers", pointers, "int64", 1, True), I = Array("indices", indices, Q.kind, 1, True)
    cdef Array X = Array("values", values, U.kind, 1, True)
    cdef spgemm_product s
    cdef int64_t r, a, k, first, last, most, room = 0, wrong
    cdef bint wide = Q.kind == "int64"
    s.rows, s.width = P.extent(0) - 1, S.extent(0)
    check_bounds(P, J.extent(0))
    check_rows(J, Q.extent(0) - 1)
    V.must_have(J.extent(0))
    U.must_have(K.extent(0))
    B.must_have(spgemm_words(s.width))
    E.must_have(s.rows + 1)
    for r in range(s.rows):
        most = 0
        for a in range((<const int64_t *>P.view.buf)[r], (<const int64_t *>P.view.buf)[r + 1]):
            k = (<const int64_t *>J.view.buf)[a]
            first = (<const int64_t *>Q.view.buf)[k] if wide else (<const int32_t *>Q.view.buf)[k]
            last = (<const int64_t *>Q.view.buf)[k + 1] if wide else (<const int32_t *>Q.view.buf)[k + 1]
            if first < 0 or last < first or last > K.extent(0):
                raise ValueError(f"b_pointers: row {k} goes from {first} to {last}, of {K.extent(0)}")
            most += last - first
        room += min(most, s.width)
    I.must_have(room)
    X.must_have(room)
    s.a_pointers, s.a_indices, s.a_values = pointer(P), pointer(J), pointer(V)
    s.b_pointers, s.b_indices, s.b_values = pointer(Q), pointer(K), pointer(U)
    s.sums, s.bits, s.pointers, s.indices, s.values = pointer(S), pointer(B), pointer(E), pointer(I), pointer(X)
    s.wide_indices, s.wide = wide, U.kind == "float64"
    with nogil:
        wrong = spgemm_run(&s)
    if wrong >= 0:
        raise ValueError(f"b_indices: entry {wrong} must lie in 0..{s.width - 1}, and does not")


def spgemm_bits(int64_t width):
    """The words of bits that `spgemm` takes for B of so many columns."""
    return spgemm_words(width)


def entry_parts(positions, first, next, shifts, out, *, int shift, int bits, int64_t stop):
    """Add to `out`, int64, the parts that positions, int32 or int64 in 0..stop-1, have in the keys of entries, as
    entries.h says. Of the cells of 2^shift positions `first` and `next`, of the blocks `shifts`: int64.

    Raises ValueError for a position outside, tables of other cells, or a block that is not there.
    """
    cdef Array P = Array("positions", positions, "int32 int64", 1), F = Array("first", first, "int64", 1)
    cdef Array N = Array("next", next, "int64", 1), S = Array("shifts", shifts, "int64", 1)
    cdef Array O = Array("out", out, "int64", 1, True)
    cdef entry_keys k
    cdef int64_t cell
    check_rows(P, stop)
    N.must_have(F.extent(0))
    O.must_have(P.extent(0))
    if not (0 <= shift < 63 and 0 <= bits < 63) or (stop and (stop - 1) >> shift >= F.extent(0)):
        raise ValueError(f"first: {F.extent(0)} cells of 2**{shift} positions, of {stop} positions")
    k.first, k.next = <const int64_t *>F.view.buf, <const int64_t *>N.view.buf
    k.shifts, k.out = pointer(S), pointer(O)
    check_rows(F, S.extent(0))
    for cell in range(F.extent(0)):
        if k.first[cell] + 1 >= S.extent(0) and k.next[cell] < stop:
            raise ValueError(f"next: cell {cell} ends at {k.next[cell]}, and no block begins there")
    k.count, k.positions, k.wide, k.shift, k.bits = P.extent(0), pointer(P), P.kind == "int64", shift, bits
    with nogil:
        entry_keys_run(&k)


cdef int records_of(entry_records *r, Array records, Array room, int size) except -1:
    """The arrays of bytes of `entry_sort` and `entry_merge`."""
    if size not in (8, 12, 16) or records.extent(0) % size:
        raise ValueError(f"records: {records.extent(0)} bytes are no records of {size} bytes, 8, 12 or 16")
    if room is not None:
        room.must_have(records.extent(0))
        room.must_be_apart(records)
    r.count, r.size, r.records, r.room = records.extent(0) // size, size, pointer(records), pointer(room)
    return 0


def entry_sort(records, room, *, int size, int low, int high):
    """Sort records, bytes of `size` each, by bits low..high-1 of their keys, as entries.h says, with as much room.

    Returns True where the sorted records are in `room`. Raises ValueError for other sizes or bits.
    """
    cdef Array R = Array("records", records, "uint8", 1, True), O = Array("room", room, "uint8", 1, True)
    cdef entry_records r
    cdef int moved
    records_of(&r, R, O, size)
    if not 0 <= low <= high <= 63:
        raise ValueError(f"low: bits {low} to {high} of a key of 63 bits")
    r.low, r.high = low, high
    with nogil:
        moved = entry_sort_run(&r)
    return bool(moved)


def entry_merge(records, *, int size):
    """Keep of records with equal keys, side by side, the largest, as entries.h says; return how many are left."""
    cdef Array R = Array("records", records, "uint8", 1, True)
    cdef entry_records r
    cdef int64_t left
    records_of(&r, R, None, size)
    with nogil:
        left = entry_merge_run(&r)
    return left


def entry_rows(keys, counts, columns, *, int64_t first, int bits):
    """Take apart ascending keys, int64, of rows from `first` on: add each row's to `counts`, int64, and put down
    their columns, int32 or int64, as entries.h says. Raises ValueError for a key of no row, or that falls.
    """
    cdef Array K = Array("keys", keys, "int64", 1), N = Array("counts", counts, "int64", 1, True)
    cdef Array C = Array("columns", columns, "int32 int64", 1, True)
    cdef const int64_t *k = <const int64_t *>K.view.buf
    cdef entry_rows_arguments r
    cdef int64_t i, last = K.extent(0) - 1
    C.must_have(last + 1)
    if not 0 < bits < 63 or (C.kind == "int32" and bits > 31):
        raise ValueError(f"bits: {bits} of {C.kind} columns")
    for i in range(last):
        if k[i + 1] < k[i]:
            raise ValueError(f"keys: must not fall, got {k[i]} and {k[i + 1]} from position {i} on")
    if last >= 0 and (first < 0 or k[0] >> bits < first or k[last] >> bits >= first + N.extent(0)):
        raise ValueError(f"keys: of rows {k[0] >> bits} to {k[last] >> bits}; counts are of {N.extent(0)} from {first}")
    r.count, r.first, r.bits, r.wide = last + 1, first, bits, C.kind == "int64"
    r.keys, r.counts, r.columns = pointer(K), pointer(N), pointer(C)
    with nogil:
        entry_rows_run(&r)


cdef int pattern_of(entry_pattern *at, Array counts, Array columns) except -1:
    """Rows of so many entries."""
    cdef const int64_t *n = <const int64_t *>counts.view.buf
    cdef int64_t row, total = 0
    for row in range(counts.extent(0)):
        if n[row] < 0:
            raise ValueError(f"counts: must be 0 or more, got {n[row]} at position {row}")
        total += n[row]
    columns.must_have(total)
    at.rows, at.counts, at.columns = counts.extent(0), pointer(counts), pointer(columns)
    at.wide = columns.kind == "int64"
    return 0


def entry_hash(counts, columns, row_ids, column_ids, weights, loops, *, uint64_t n, uint64_t key, bint both=False):
    """Sum the hashes of entries, and those of the transpose with `both`, as entries.h says; count loops by row.

    counts, loops: int64, by row; columns: int32 or int64; ids: the same, both alike; weights: float64, or None.
    """
    cdef Array N = Array("counts", counts, "int64", 1), C = Array("columns", columns, "int32 int64", 1)
    cdef Array R = Array("row_ids", row_ids, "int32 int64", 1), I = Array("column_ids", column_ids, R.kind, 1)
    cdef Array W = None if weights is None else Array("weights", weights, "float64", 1)
    cdef Array L = Array("loops", loops, "int64", 1, True)
    cdef entry_hashes h
    pattern_of(&h.at, N, C)
    check_rows(C, I.extent(0))
    R.must_have(N.extent(0))
    L.must_have(N.extent(0))
    if W is not None:
        W.must_have(C.extent(0))
    h.row_ids, h.column_ids, h.weights, h.loops = pointer(R), pointer(I), pointer(W), pointer(L)
    h.n, h.key, h.wide_ids, h.both = n, key, R.kind == "int64", both
    with nogil:
        entry_hash_run(&h)
    return h.sum, h.mirrored


def entry_scale(counts, columns, left, right, weights, out):
    """Scale entries by row and column, as entries.h says. left, right (or None), weights (or None): float64; out:
    float32 or float64.
    """
    cdef Array N = Array("counts", counts, "int64", 1), C = Array("columns", columns, "int32 int64", 1)
    cdef Array L = Array("left", left, "float64", 1), O = Array("out", out, "float32 float64", 1, True)
    cdef Array R = None if right is None else Array("right", right, "float64", 1)
    cdef Array W = None if weights is None else Array("weights", weights, "float64", 1)
    cdef entry_scales s
    pattern_of(&s.at, N, C)
    L.must_have(N.extent(0))
    O.must_have(C.extent(0))
    if R is not None:
        check_rows(C, R.extent(0))
    if W is not None:
        W.must_have(C.extent(0))
    s.left, s.right, s.weights, s.out, s.wide_out = pointer(L), pointer(R), pointer(W), pointer(O), O.kind == "float64"
    with nogil:
        entry_scale_run(&s)
