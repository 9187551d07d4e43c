/* The best neighbour in each column: T[i, :] = the largest (or least) of what row i of a CSR matrix makes of its
 * rows of B, C[i, :] = the codes of the columns where these are. Which of equals is the best does not depend on
 * the order of the entries: of two NaN, or of equal numbers, the one with the smaller code; NaN before all
 * numbers. distgnn/local/aggregate.py is the reference. */

#ifndef DISTGNN_AGGREGATE_H
#define DISTGNN_AGGREGATE_H

#include <stdint.h>

/* Codes, and C, have as many bits as numbers have; C is -1 where nothing was found, T then the neutral number.
 * An entry (i, j) of value a makes a b of an entry b of B; with `plus` a + b; without values b. */
struct aggregate {
    int64_t rows, width;
    int wide, wide_indices; /* double rather than float; int64 rather than int32, pointers too */
    const void *pointers, *indices, *values, *B, *codes; /* codes of columns; null: first + column */
    int64_t first;
    void *T, *C;
    int64_t ldb, ldt, ldc; /* in elements */
    int plus, least;
    int merge; /* what T and C hold is compared, too */
    int threads;
};

/* Where gradients go: out[j, k] = sum over i, in their order, of G[i, k], where C[i, k] is the code of column j.
 * With values these are multiplied by that of entry (i, j): of row j of the transposed block, whose `pointers`
 * and `indices` are given, rising in a row. */
struct aggregate_back {
    int64_t rows, width, columns;
    int wide, wide_indices;
    const void *pointers, *indices, *values, *G, *C;
    const void *places; /* of codes, as many bits as codes; null: code - first */
    int64_t first;
    void *out;
    int64_t ldg, ldc, ldo;
};

/* Rows first..last-1 of columns column..column+width-1. */
typedef void aggregate_rows(const struct aggregate *a, int64_t first, int64_t last, int64_t column, int64_t width);

/* The kernels of one instruction set. */
struct aggregate_set {
    int vector_bytes, most_vectors;
    aggregate_rows *(*find)(int wide, int wide_indices, int64_t width);
};

struct spmm_set;
void aggregate_run(const struct spmm_set *set, const struct aggregate *a);
void aggregate_back_run(const struct aggregate_back *a);

#endif
