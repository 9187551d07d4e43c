/* C = A B on one host: A is CSR, B and C are dense and row-major. What the dispatcher (spmm.c) and the kernels share.
 *
 * The kernels (spmm_rows.h) are compiled once per instruction set (isa_*.c), and for each of them once per type of number, type of
 * index and number of vectors in a row of a panel. Pointers may have any alignment. */

#ifndef DISTGNN_SPMM_H
#define DISTGNN_SPMM_H

#include <stddef.h>
#include <stdint.h>

/* What B holds. Everything else holds float where B holds bfloat16. */
enum number { FLOAT32, FLOAT64, BFLOAT16, NUMBERS };

/* One product: C[i, :] = epilogue(row_scale[i] * sum over p of values[p] * column_scale[j] * B[j, :]), j = indices[p].
 * A null pointer leaves its factor or step out. The epilogue adds what C holds, adds the bias, cuts off what is negative, and
 * zeroes what is not positive in `mask`, in this order. */
struct spmm {
    int64_t rows, columns, nonzeros, width; /* of A; columns of B and C */
    enum number number;
    int wide_pointers, wide_indices; /* int64 rather than int32 */
    const void *pointers, *indices, *values;
    const void *row_scale, *column_scale;
    const void *B;
    int64_t ldb; /* leading dimensions count elements */
    void *C;
    int64_t ldc;
    int accumulate;
    const void *bias;
    int relu;
    const void *mask;
    int64_t ldmask;
    int64_t ahead; /* how many non-zeros ahead to prefetch; 0 not at all; negative: as spmm_run thinks best */
    int threads;
};

/* Computes rows first..last-1 of columns column..column+width-1 of C. Row pointers and indices must be of one type, and there must
 * be `ahead` more indices after those of the last row. */
typedef void spmm_rows(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width, int64_t ahead);

/* The kernels of one instruction set. */
struct spmm_set {
    const char *name;
    int vector_bytes;
    int most_vectors; /* of accumulators that stay in registers: the widest panel */
    spmm_rows *(*find)(enum number number, int wide_indices, int scaled, int blind, int64_t width); /* blind: `ahead` is 0 */
};

extern const struct spmm_set spmm_avx512, spmm_avx2, spmm_generic;

/* The sets this machine can run, best first, ended by a null pointer. */
const struct spmm_set *const *spmm_sets(void);

void spmm_run(const struct spmm_set *set, const struct spmm *s);

/* The first row whose pointers fall, the first of `count` column numbers that is none; -1 where all is well. */
int64_t spmm_bad_row(const struct spmm *s);
int64_t spmm_bad_index(const struct spmm *s, int64_t count);

typedef int32_t narrow_int __attribute__((aligned(1), may_alias));
typedef int64_t wide_int __attribute__((aligned(1), may_alias));

#endif
