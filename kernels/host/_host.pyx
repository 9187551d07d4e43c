# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled host kernels as Python functions: arrays are checked here, then the GIL is released and C runs.

Arrays come through the buffer protocol, so building this needs nothing of NumPy. Call it through `distgnn.hostkernels`.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uintptr_t


cdef extern from "spmm.h" nogil:
    enum number:
        FLOAT32, FLOAT64, BFLOAT16

    struct spmm:
        int64_t rows, columns, width
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

    cdef int64_t extent(self, int axis):
        return self.view.shape[axis]

    cdef int64_t lead(self):
        """Elements from one row to the next."""
        return self.view.strides[0] // self.view.itemsize if self.view.shape[0] > 1 else self.view.shape[1]

    cdef uintptr_t start(self):
        return <uintptr_t>self.view.buf

    cdef uintptr_t stop(self):
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
    if code == "H":
        return "uint16"
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
    s.rows, s.columns = indptr.extent(0) - 1, columns
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
