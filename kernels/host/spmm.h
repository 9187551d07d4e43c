/* C = A B on one host: A is CSR, B and C are dense and row-major, of any alignment. The kernels (spmm_rows.h)
 * are compiled once per instruction set (isa_*.c), type of number, type of index and number of vectors in a
 * row of a panel. */

#ifndef DISTGNN_SPMM_H
#define DISTGNN_SPMM_H

#include <stddef.h>
#include <stdint.h>

/* One product: C[i, :] = sum over p of values[p] * B[indices[p], :], plus what C holds with `accumulate`. */
struct spmm {
    int64_t rows, nonzeros, width; /* of A; columns of B and C */
    int wide, wide_indices;        /* double rather than float; int64 rather than int32, pointers too */
    const void *pointers, *indices, *values, *B;
    void *C;
    int64_t ldb, ldc; /* leading dimensions count elements */
    int accumulate;
    int64_t ahead; /* how many non-zeros ahead to prefetch; 0 not at all; negative: as spmm_run thinks best */
    int threads;
};

/* Computes rows first..last-1 of columns column..column+width-1 of C. There must be `ahead` more indices
 * after those of the last row. */
typedef void spmm_rows(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width,
                       int64_t ahead);

/* The kernels of one instruction set. */
struct spmm_set {
    const char *name;
    int vector_bytes;
    int most_vectors; /* of accumulators that stay in registers: the widest panel */
    spmm_rows *(*find)(int wide, int wide_indices, int blind, int64_t width); /* blind: `ahead` is 0 */
    const struct elementwise_set *passes; /* over float, over double */
    const struct narrow_set *narrowing;   /* to bfloat16, to float16 */
    const struct aggregate_set *aggregates;
    const struct edge_set *edges;         /* over float, over double */
};

extern const struct spmm_set spmm_avx512, spmm_avx2, spmm_generic;

/* The sets that this machine can run, best first, ended by a null pointer. */
const struct spmm_set *const *spmm_sets(void);

void spmm_run(const struct spmm_set *set, const struct spmm *s);

typedef int32_t narrow_int __attribute__((aligned(1), may_alias));
typedef int64_t wide_int __attribute__((aligned(1), may_alias));

#endif
