# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled host kernels as Python functions: arrays are checked here, then the GIL is released and C runs.

Arrays come through the buffer protocol, so building this needs nothing of NumPy. Call it through `distgnn.hostkernels`.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

ANY = "float32 float64 int32 int64 uint8 uint16 uint32 uint64"


cdef extern from "spmm.h" nogil:
    enum number:
        FLOAT32, FLOAT64, BFLOAT16

    struct spmm:
        int64_t rows, columns, nonzeros, width
        number number
        bint wide_pointers, wide_indices
        const void *pointers
        const void *indices
        const void *values
        const void *row_scale
        const void *column_scale
        const void *B
        int64_t ldb
        void *C
        int64_t ldc
        bint accumulate
        const void *bias
        bint relu
        const void *mask
        int64_t ldmask
        int64_t ahead
        int threads

    struct spmm_set:
        const char *name

    const spmm_set *const *spmm_sets()
    void spmm_run(const spmm_set *set, const spmm *s)
    int64_t spmm_bad_row(const spmm *s)
    int64_t spmm_bad_index(const spmm *s, int64_t count)


cdef extern from "volume.h" nogil:
    struct volume:
        int64_t nodes
        int32_t parts
        const int64_t *pointers
        const int32_t *columns
        int32_t *part
        int64_t *send
        int64_t *receive
        int64_t capacity
        double send_bound, receive_bound, heat
        int64_t work
        uint64_t seed

    int volume_run "volume_refine"(volume *v)


cdef extern from "sample.h" nogil:
    struct sample:
        int64_t rows, count
        const int64_t *pointers
        const double *weights
        const uint64_t *keys
        uint8_t *picked
        double *remaining
        double *prefix
        int64_t *order

    struct sample_selected:
        int64_t rows, count
        const int64_t *pointers
        const int64_t *selected
        const uint64_t *keys
        uint8_t *picked
        double *prefix
        int64_t *positions
        int64_t *counts

    int64_t sample_selected_run(const sample_selected *s)

    struct relabel:
        int64_t blocks
        const int64_t *bounds
        const int64_t *seed_bounds
        const int64_t *ids
        const int64_t *seeds
        bint extend
        int32_t *table
        int64_t *labels
        int64_t *added
        int64_t *added_bounds

    int64_t sample_run(const sample *s)
    void relabel_run(const relabel *r)


cdef class Array:
    """An array that C may use: its address, shape and leading dimension, held until this object goes away."""

    cdef Py_buffer view
    cdef bint held
    cdef str name, kind

    def __cinit__(self, str name, array, str kinds, int ndim, bint writable=False):
        self.name = name
        try:
            PyObject_GetBuffer(array, &self.view, PyBUF_FORMAT | PyBUF_STRIDES | (PyBUF_WRITABLE if writable else 0))
        except (TypeError, BufferError, ValueError) as error:
            raise TypeError(f"{name}: need {'a writable' if writable else 'an'} array, got {type(array).__name__} ({error})") from None
        self.held = True
        self.kind = kind_of(self.view.format, self.view.itemsize)
        if self.kind not in kinds.split():
            raise TypeError(f"{name}: need an array of {' or '.join(kinds.split())}, got {self.kind}")
        if self.view.ndim != ndim:
            raise ValueError(f"{name}: need {ndim} dimensions, got {self.view.ndim}")
        cdef Py_ssize_t last = self.view.strides[ndim - 1]
        if last != self.view.itemsize and self.view.shape[ndim - 1] > 1 and self.view.len > 0:
            raise ValueError(f"{name}: rows must be contiguous, got a stride of {last} bytes within a row")
        cdef Py_ssize_t lead = self.view.strides[0]
        if ndim == 2 and self.view.shape[0] > 1 and self.view.len > 0:
            if lead < self.view.shape[1] * self.view.itemsize or lead % self.view.itemsize:
                raise ValueError(f"{name}: rows must follow each other in memory, got a stride of {lead} bytes between rows")

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
        if self.view.len == 0:
            return self.start()
        if self.view.ndim == 1:
            return self.start() + self.view.len
        return self.start() + (self.view.shape[0] - 1) * self.lead() * self.view.itemsize + self.view.shape[1] * self.view.itemsize

    cdef int must_have(self, int64_t first, int64_t second=-1) except -1:
        cdef bint fits = self.view.shape[0] == first and (second < 0 or self.view.shape[1] == second)
        if not fits:
            need = f"({first},)" if second < 0 else f"({first}, {second})"
            raise ValueError(f"{self.name}: need shape {need}, got {tuple([self.extent(axis) for axis in range(self.view.ndim)])}")
        return 0


cdef str kind_of(const char *format, Py_ssize_t itemsize):
    cdef str code = format.decode() if format is not NULL else "B"
    code = code.lstrip("@=<^")
    if code in ("f", "d"):
        return "float32" if itemsize == 4 else "float64"
    if code in ("i", "l", "q"):
        return f"int{8 * itemsize}"
    if code in ("B", "H", "I", "L", "Q"):
        return f"uint{8 * itemsize}"
    return f"format {code!r}"


cdef const void *pointer(Array array) noexcept:
    return NULL if array is None else array.view.buf


def isas():
    """Names of the instruction sets that this machine runs, best first."""
    names = []
    cdef int at = 0
    while spmm_sets()[at] is not NULL:
        names.append(spmm_sets()[at].name.decode())
        at += 1
    return names


cdef int fill_csr(spmm *s, Array indptr, Array indices, int64_t columns) except -1:
    if indptr.extent(0) < 1:
        raise ValueError("indptr: need one more than there are rows, got none")
    s.rows, s.columns, s.nonzeros = indptr.extent(0) - 1, columns, indices.extent(0)
    s.pointers, s.wide_pointers = pointer(indptr), indptr.kind == "int64"
    s.indices, s.wide_indices = pointer(indices), indices.kind == "int64"
    return 0


def check(indptr, indices, int64_t columns):
    """Refuse a CSR pattern that could send a kernel out of bounds: O(nnz), to be called once per matrix.

    Raises:
        TypeError: not arrays of int32 or int64. ValueError: row pointers that do not rise from 0 to the number of indices, or an
        index outside 0..columns-1.
    """
    cdef Array pointers = Array("indptr", indptr, "int32 int64", 1)
    cdef Array numbers = Array("indices", indices, "int32 int64", 1)
    cdef spmm s
    fill_csr(&s, pointers, numbers, columns)
    cdef int64_t nnz = numbers.extent(0), bad
    if int(indptr[0]) != 0 or int(indptr[s.rows]) != nnz:
        raise ValueError(f"indptr: must rise from 0 to {nnz}, the number of indices, got {indptr[0]} to {indptr[s.rows]}")
    with nogil:
        bad = spmm_bad_row(&s)
    if bad >= 0:
        raise ValueError(f"indptr: falls from {indptr[bad]} to {indptr[bad + 1]} at row {bad}")
    with nogil:
        bad = spmm_bad_index(&s, nnz)
    if bad >= 0:
        raise ValueError(f"indices: must lie in 0..{columns - 1}, got {indices[bad]} at position {bad}")


def multiply(
    indptr, indices, values, B, out, *, bint accumulate=False, row_scale=None, column_scale=None, bias=None, bint relu=False,
    mask=None, int64_t prefetch=-1, int threads=1, int isa=0,
):
    """`out = epilogue(diag(row_scale) A diag(column_scale) B)` for a CSR matrix whose pattern passed `check`.

    Args:
        indptr, indices: int32 or int64, each of its own. values: like `out`, or None for ones.
        B: (k, f) float32, float64, or uint16 holding bfloat16. out: (m, f) float32, or float64 where B is.
        row_scale (m), column_scale (k), bias (f), mask (m, f): like `out`. Rows of B, out and mask may lie apart.
        accumulate, bias, relu, mask: what happens to the product, in this order: add what `out` holds, add the bias, cut off what
            is negative, zero what is not positive in `mask`.
        prefetch: non-zeros to look ahead, 0 for none, -1 to choose. threads: of OpenMP. isa: position in `isas()`.

    Raises:
        TypeError, ValueError: types or shapes that do not fit, an array C cannot walk, or `out` overlapping another array.
    """
    cdef Array P = Array("indptr", indptr, "int32 int64", 1)
    cdef Array J = Array("indices", indices, "int32 int64", 1)
    cdef Array X = Array("B", B, "float32 float64 uint16", 2)
    cdef str real = "float64" if X.kind == "float64" else "float32"
    cdef Array Y = Array("out", out, real, 2, True)
    cdef Array V = None if values is None else Array("values", values, real, 1)
    cdef Array R = None if row_scale is None else Array("row_scale", row_scale, real, 1)
    cdef Array S = None if column_scale is None else Array("column_scale", column_scale, real, 1)
    cdef Array b = None if bias is None else Array("bias", bias, real, 1)
    cdef Array M = None if mask is None else Array("mask", mask, real, 2)
    cdef spmm s
    fill_csr(&s, P, J, X.extent(0))
    s.width = X.extent(1)
    Y.must_have(s.rows, s.width)
    if V is not None:
        V.must_have(J.extent(0))
    if R is not None:
        R.must_have(s.rows)
    if S is not None:
        S.must_have(s.columns)
    if b is not None:
        b.must_have(s.width)
    if M is not None:
        M.must_have(s.rows, s.width)
    if int(indptr[0]) != 0 or int(indptr[s.rows]) != J.extent(0):
        raise ValueError(f"indptr: must rise from 0 to {J.extent(0)}, the number of indices, got {indptr[0]} to {indptr[s.rows]}")
    cdef Array other
    for other in (P, J, X, V, R, S, b, M):
        if other is not None and Y.start() < other.stop() and other.start() < Y.stop():
            raise ValueError(f"out shares memory with {other.name}")
    s.number = BFLOAT16 if X.kind == "uint16" else FLOAT64 if X.kind == "float64" else FLOAT32
    s.values, s.row_scale, s.column_scale = pointer(V), pointer(R), pointer(S)
    s.B, s.ldb = pointer(X), X.lead()
    s.C, s.ldc = Y.view.buf, Y.lead()
    s.accumulate, s.bias, s.relu = accumulate, pointer(b), relu
    s.mask, s.ldmask = pointer(M), 0 if M is None else M.lead()
    s.ahead, s.threads = prefetch, threads
    cdef int at = 0
    while spmm_sets()[at] is not NULL:
        at += 1
    if not 0 <= isa < at:
        raise ValueError(f"isa: must lie in 0..{at - 1}, got {isa}")
    cdef const spmm_set *chosen = spmm_sets()[isa]
    with nogil:
        spmm_run(chosen, &s)


cdef extern from "elementwise.h" nogil:
    struct dropout_arguments "dropout":
        int64_t rows, width, ldx, ldy
        const void *x
        void *y
        const uint32_t *low
        const uint32_t *odd
        const uint32_t *columns
        uint64_t threshold
        double scale
        bint relu

    struct adam_arguments "adam":
        int64_t count
        void *w
        void *m
        void *v
        const void *g
        double shrink, decay, first, second, rate, correction, epsilon

    struct cross_entropy_arguments "cross_entropy":
        int64_t height, width, ldx, ldy, count
        const void *x
        void *y
        const int64_t *rows
        const int64_t *labels
        void *sums
        void *own
        double share

    struct elementwise_set:
        void (*dropout[2])(const dropout_arguments *) noexcept nogil
        void (*adam[2])(const adam_arguments *) noexcept nogil
        void (*pack_positive[2])(const void *x, int64_t count, uint8_t *bits) noexcept nogil
        void (*keep_positive[2])(void *x, int64_t count, const uint8_t *bits, double scale) noexcept nogil
        void (*cross_entropy[2])(const cross_entropy_arguments *) noexcept nogil
        void (*scatter_add[2])(
            const void *x, int64_t ldx, const int64_t *rows, int64_t count, int64_t width, void *y, int64_t ldy) noexcept nogil

    const elementwise_set *elementwise_of(int set)
    void gather_rows(const void *x, int64_t ldx, const int64_t *rows, int64_t count, int64_t bytes, void *out, int64_t ldout)


cdef const elementwise_set *chosen_set(int isa) except NULL:
    if not 0 <= isa < len(isas()):
        raise ValueError(f"isa: must lie in 0..{len(isas()) - 1}, got {isa}")
    return elementwise_of(isa)


cdef int whole(Array array) except -1:
    """One piece of memory without gaps?"""
    if array.view.ndim == 2 and array.view.len > 0 and array.lead() != array.extent(1):
        raise ValueError(f"{array.name}: must be contiguous, got {array.lead()} elements between rows of {array.extent(1)}")
    return 0


cdef int check_rows(Array rows, int64_t limit) except -1:
    cdef const int64_t *numbers = <const int64_t *>rows.view.buf
    cdef int64_t i
    for i in range(rows.extent(0)):
        if numbers[i] < 0 or numbers[i] >= limit:
            raise ValueError(f"{rows.name}: must lie in 0..{limit - 1}, got {numbers[i]} at position {i}")
    return 0


def dropout(x, out, low, odd, columns, uint64_t threshold, double scale, *, bint relu=False, int isa=0):
    """`out[i, j] = x[i, j] * scale` (of its positive part with `relu`) where the hash of (low[i], odd[i], columns[j]) lies below `threshold`,
    else 0; `out` may be `x`. Float32 or float64 (m, f); keys uint32 (m), (m), (f)."""
    cdef Array X = Array("x", x, "float32 float64", 2), Y = Array("out", out, X.kind, 2, True)
    cdef Array L = Array("low", low, "uint32", 1), O = Array("odd", odd, "uint32", 1), J = Array("columns", columns, "uint32", 1)
    Y.must_have(X.extent(0), X.extent(1))
    L.must_have(X.extent(0))
    O.must_have(X.extent(0))
    J.must_have(X.extent(1))
    if X.start() < Y.stop() and Y.start() < X.stop() and (X.start() != Y.start() or X.lead() != Y.lead()):
        raise ValueError("out overlaps x without being x")
    cdef dropout_arguments d
    d.rows, d.width, d.ldx, d.ldy = X.extent(0), X.extent(1), X.lead(), Y.lead()
    d.x, d.y = X.view.buf, Y.view.buf
    d.low, d.odd, d.columns = <const uint32_t *>L.view.buf, <const uint32_t *>O.view.buf, <const uint32_t *>J.view.buf
    d.threshold, d.scale, d.relu = threshold, scale, relu
    cdef int wide = X.kind == "float64"
    cdef const elementwise_set *chosen = chosen_set(isa)
    with nogil:
        chosen.dropout[wide](&d)


def pack_positive(x, bits, *, int isa=0):
    """`bits = numpy.packbits(x > 0)`; x contiguous (m, f), bits uint8."""
    cdef Array X = Array("x", x, "float32 float64", 2), P = Array("bits", bits, "uint8", 1, True)
    whole(X)
    cdef int64_t count = X.extent(0) * X.extent(1)
    P.must_have((count + 7) // 8)
    cdef int wide = X.kind == "float64"
    cdef const elementwise_set *chosen = chosen_set(isa)
    with nogil:
        chosen.pack_positive[wide](X.view.buf, count, <uint8_t *>P.view.buf)


def keep_positive(x, bits, double scale=1.0, *, int isa=0):
    """`x *= scale * numpy.unpackbits(bits)`; x contiguous (m, f), bits uint8."""
    cdef Array X = Array("x", x, "float32 float64", 2, True), P = Array("bits", bits, "uint8", 1)
    whole(X)
    cdef int64_t count = X.extent(0) * X.extent(1)
    P.must_have((count + 7) // 8)
    cdef int wide = X.kind == "float64"
    cdef const elementwise_set *chosen = chosen_set(isa)
    with nogil:
        chosen.keep_positive[wide](X.view.buf, count, <const uint8_t *>P.view.buf, scale)


def adam(
    w, g, m, v, *, double rate, double correction, double first=0.9, double second=0.999, double epsilon=1e-8, double shrink=1.0,
    double decay=0.0, int isa=0,
):
    """A step of Adam on flat arrays of one type: `w *= shrink; g' = g + decay w; m = first m + (1 - first) g';
    v = second v + (1 - second) g'^2; w -= rate m / (sqrt(v / correction) + epsilon)`."""
    cdef Array W = Array("w", w, "float32 float64", 1, True)
    cdef Array G = Array("g", g, W.kind, 1), M = Array("m", m, W.kind, 1, True), V = Array("v", v, W.kind, 1, True)
    cdef Array other
    for other in (G, M, V):
        other.must_have(W.extent(0))
    cdef adam_arguments a
    a.count = W.extent(0)
    a.w, a.g, a.m, a.v = W.view.buf, G.view.buf, M.view.buf, V.view.buf
    a.shrink, a.decay, a.first, a.second, a.rate, a.correction, a.epsilon = shrink, decay, first, second, rate, correction, epsilon
    cdef int wide = W.kind == "float64"
    cdef const elementwise_set *chosen = chosen_set(isa)
    with nogil:
        chosen.adam[wide](&a)


def cross_entropy(x, rows, labels, out, sums, own, double share, *, int isa=0):
    """`out[i] = share * (softmax(x[i]) - onehot(labels[.]))` for i in `rows`, zero in the other rows; of the rows, `sums`: the sum of
    exponentials of x less the row's largest, `own`: x at the label less the row's largest. `out` may be `x`; rows and labels int64.

    Raises:
        ValueError: rows that do not rise, a row that x does not have or a label that is no column.
    """
    cdef Array X = Array("x", x, "float32 float64", 2), Y = Array("out", out, X.kind, 2, True)
    cdef Array R = Array("rows", rows, "int64", 1), L = Array("labels", labels, "int64", 1)
    cdef Array S = Array("sums", sums, X.kind, 1, True), T = Array("own", own, X.kind, 1, True)
    cdef Array other
    Y.must_have(X.extent(0), X.extent(1))
    for other in (L, S, T):
        other.must_have(R.extent(0))
    check_rows(R, X.extent(0))
    cdef const int64_t *numbers = <const int64_t *>R.view.buf
    cdef int64_t i
    for i in range(1, R.extent(0)):
        if numbers[i] <= numbers[i - 1]:
            raise ValueError(f"rows: must rise, got {numbers[i - 1]} and {numbers[i]} from position {i - 1} on")
    check_rows(L, X.extent(1))
    if X.start() < Y.stop() and Y.start() < X.stop() and (X.start() != Y.start() or X.lead() != Y.lead()):
        raise ValueError("out overlaps x without being x")
    cdef cross_entropy_arguments e
    e.height, e.width, e.ldx, e.ldy, e.count = X.extent(0), X.extent(1), X.lead(), Y.lead(), R.extent(0)
    e.x, e.y, e.rows, e.labels = X.view.buf, Y.view.buf, numbers, <const int64_t *>L.view.buf
    e.sums, e.own, e.share = S.view.buf, T.view.buf, share
    cdef int wide = X.kind == "float64"
    cdef const elementwise_set *chosen = chosen_set(isa)
    with nogil:
        chosen.cross_entropy[wide](&e)


def gather(x, rows, out):
    """`out[i] = x[rows[i]]`; x and out (., f) of one type, rows int64.

    Raises:
        ValueError: a row that x does not have.
    """
    cdef Array X = Array("x", x, ANY, 2), R = Array("rows", rows, "int64", 1), Y = Array("out", out, X.kind, 2, True)
    Y.must_have(R.extent(0), X.extent(1))
    check_rows(R, X.extent(0))
    if X.start() < Y.stop() and Y.start() < X.stop():
        raise ValueError("out shares memory with x")
    cdef int64_t size = X.view.itemsize
    with nogil:
        gather_rows(X.view.buf, X.lead() * size, <const int64_t *>R.view.buf, R.extent(0), X.extent(1) * size, Y.view.buf, Y.lead() * size)


def scatter_add(x, rows, out, *, int isa=0):
    """`out[rows[i]] += x[i]` for i in order, so that repeated rows add up in the same order always; rows int64.

    Raises:
        ValueError: a row that out does not have.
    """
    cdef Array X = Array("x", x, "float32 float64", 2), R = Array("rows", rows, "int64", 1), Y = Array("out", out, X.kind, 2, True)
    X.must_have(R.extent(0), Y.extent(1))
    check_rows(R, Y.extent(0))
    if X.start() < Y.stop() and Y.start() < X.stop():
        raise ValueError("out shares memory with x")
    cdef int wide = X.kind == "float64"
    cdef const elementwise_set *chosen = chosen_set(isa)
    with nogil:
        chosen.scatter_add[wide](X.view.buf, X.lead(), <const int64_t *>R.view.buf, R.extent(0), X.extent(1), Y.view.buf, Y.lead())


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
    cdef int64_t i
    cdef int status
    v.nodes, v.parts = Q.extent(0), <int32_t>S.extent(0)
    P.must_have(v.nodes + 1)
    R.must_have(v.parts)
    check_bounds(P, C.extent(0))
    v.pointers, v.columns, v.part = <const int64_t *>P.view.buf, <const int32_t *>C.view.buf, <int32_t *>Q.view.buf
    v.send, v.receive = <int64_t *>S.view.buf, <int64_t *>R.view.buf
    v.capacity, v.send_bound, v.receive_bound, v.heat = capacity, send_bound, receive_bound, heat
    v.work, v.seed = work, seed
    for i in range(v.nodes):
        if v.part[i] < 0 or v.part[i] >= v.parts:
            raise ValueError(f"part: must lie in 0..{v.parts - 1}, got {v.part[i]} at position {i}")
    for i in range(C.extent(0)):
        if v.columns[i] < 0 or v.columns[i] >= v.nodes:
            raise ValueError(f"columns: must lie in 0..{v.nodes - 1}, got {v.columns[i]} at position {i}")
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
    """Draw `count` distinct entries of every row, as sample.h says. pointers int64 (m + 1); weights float64 (nnz) or None; keys uint64 (m);
    picked uint8 (nnz); remaining float64 (m, count + 1) or None; prefix float64, as many as the longest row has entries.

    Returns:
        -1, or the first row whose weights are not all finite and non-negative with a finite sum.

    Raises:
        ValueError: no row pointers, a shape that doesn't fit or a negative count.
    """
    cdef Array P = Array("pointers", pointers, "int64", 1), K = Array("keys", keys, "uint64", 1)
    cdef Array W = None if weights is None else Array("weights", weights, "float64", 1)
    cdef Array T = Array("picked", picked, "uint8", 1, True), X = Array("prefix", prefix, "float64", 1, True)
    cdef Array R = None if remaining is None else Array("remaining", remaining, "float64", 2, True)
    cdef sample s
    cdef int64_t i, bad
    if count < 0:
        raise ValueError(f"count: must not be negative, got {count}")
    s.rows, s.count = K.extent(0), count
    P.must_have(s.rows + 1)
    check_bounds(P, T.extent(0))
    if W is not None:
        W.must_have(T.extent(0))
    if R is not None:
        R.must_have(s.rows, count + 1)
        if s.rows > 1 and R.lead() != count + 1:
            raise ValueError("remaining: must be C-contiguous")
    s.pointers, s.weights, s.keys = <const int64_t *>P.view.buf, <const double *>pointer(W), <const uint64_t *>K.view.buf
    s.picked, s.remaining, s.prefix = <uint8_t *>T.view.buf, <double *>pointer(R), <double *>X.view.buf
    s.order = NULL
    for i in range(s.rows):
        if s.pointers[i + 1] - s.pointers[i] > X.extent(0):
            raise ValueError(f"prefix: has room for {X.extent(0)} entries, row {i} has {s.pointers[i + 1] - s.pointers[i]}")
    with nogil:
        bad = sample_run(&s)
    return bad


def sample_selected_rows(pointers, int64_t nnz, selected, keys, picked, prefix, positions, counts, *, int64_t count):
    """Draw `count` distinct entries of every selected row, as sample.h says. pointers int64, of a matrix with `nnz` entries; selected int64
    (m); keys uint64 (m); picked uint8, all 0, and prefix float64, as many as the longest of these rows has entries; positions int64,
    as many as there are entries to draw; counts int64 (m).

    Returns:
        How many positions there are.

    Raises:
        ValueError: a row that the matrix does not have, row pointers that fall or exceed `nnz`, or a shape that doesn't fit.
    """
    cdef Array P = Array("pointers", pointers, "int64", 1), V = Array("selected", selected, "int64", 1)
    cdef Array K = Array("keys", keys, "uint64", 1), T = Array("picked", picked, "uint8", 1, True)
    cdef Array X = Array("prefix", prefix, "float64", 1, True), O = Array("positions", positions, "int64", 1, True)
    cdef Array C = Array("counts", counts, "int64", 1, True)
    cdef sample_selected s
    cdef int64_t i, first, last, total, room = 0
    s.rows, s.count = V.extent(0), count
    K.must_have(s.rows)
    C.must_have(s.rows)
    X.must_have(T.extent(0))
    check_rows(V, P.extent(0) - 1)
    s.pointers, s.selected, s.keys = <const int64_t *>P.view.buf, <const int64_t *>V.view.buf, <const uint64_t *>K.view.buf
    s.picked, s.prefix = <uint8_t *>T.view.buf, <double *>X.view.buf
    s.positions, s.counts = <int64_t *>O.view.buf, <int64_t *>C.view.buf
    for i in range(s.rows):
        first, last = s.pointers[s.selected[i]], s.pointers[s.selected[i] + 1]
        if first < 0 or last < first or last > nnz or last - first > T.extent(0):
            raise ValueError(f"pointers: row {s.selected[i]} goes from {first} to {last}, of {nnz} entries, rows of {T.extent(0)} at most")
        room += min(last - first, count)
    O.must_have(room)
    with nogil:
        total = sample_selected_run(&s)
    return total


def relabel_blocks(bounds, ids, seed_bounds, seeds, table, labels, added, added_bounds):
    """Number the ids of every block by their position among the block's seeds, as sample.h says; `added` and `added_bounds` are None where
    unknown ids get -1. All int64, except for table, int32 and -1 throughout.

    Raises:
        ValueError: not row pointers, an id outside of the table, or a shape that doesn't fit.
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
    r.blocks, r.extend = B.extent(0) - 1, A is not None
    r.bounds, r.seed_bounds = <const int64_t *>B.view.buf, <const int64_t *>D.view.buf
    r.ids, r.seeds = <const int64_t *>I.view.buf, <const int64_t *>S.view.buf
    r.table, r.labels = <int32_t *>T.view.buf, <int64_t *>L.view.buf
    r.added, r.added_bounds = <int64_t *>pointer(A), <int64_t *>pointer(E)
    with nogil:
        relabel_run(&r)
