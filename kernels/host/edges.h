/* Passes over the stored entries of a CSR pattern, each of which has a number per head: nnz x heads, in the
 * order of the entries, without gaps. Dense arrays are row-major, of any alignment. A head has the columns
 * bounds[k] to bounds[k + 1] of the dense matrices beside it. The array operations of
 * distgnn/local/array_edges.py are the reference. */

#ifndef DISTGNN_EDGES_H
#define DISTGNN_EDGES_H

#include <stdint.h>

/* Entries of rows 0..rows-1; pointers and indices are int64 if `wide`, else int32. */
struct edge_pattern {
    int64_t rows, heads;
    const void *pointers, *indices;
    int wide;
};

/* out[e, k] = sum of u[i, c] v[j, c] over the columns c of head k, for each entry e = (i, j). */
struct edge_dots {
    struct edge_pattern at;
    int64_t ldu, ldv; /* leading dimensions count elements */
    const void *u, *v;
    const int64_t *bounds; /* heads + 1, rising */
    void *out;
};

/* C[i, c] = sum of values[e, k] B[j, c] over the entries e = (i, j) of row i, plus what C holds with
 * `accumulate`, for the columns c of each head k. With `order`, of integers as the pattern's, it is entry
 * order[e] of `values` that stands at e. */
struct edge_products {
    struct edge_pattern at;
    int64_t ldb, ldc;
    const void *values, *order, *B;
    const int64_t *bounds;
    void *C;
    int accumulate;
};

/* The phases of a softmax over rows, to be joined by |. Of whole rows all run at once, a row at a time; where
 * other blocks or ranks have entries of a row, `maxima` and `sums` (rows x heads) pass between them. */
enum { EDGE_SCORES = 1, EDGE_POWERS = 2, EDGE_SHARES = 4 };

/* EDGE_SCORES: x[e] = leaky ReLU of u[i] + v[j] (x stays without u), and maxima[i] = the largest of it and
 * those of the row. EDGE_POWERS: x = exp(x - maxima[i]), added to sums[i]. EDGE_SHARES: x /= sums[i].
 * signs: NULL, or bits as of numpy.packbits, zeros at first; number n of x has bit first + n, which scores
 * above 0 set. */
struct edge_softmax {
    struct edge_pattern at;
    int64_t ldu, ldv, first;
    const void *u, *v;
    void *x, *maxima, *sums;
    uint8_t *signs;
    double slope; /* of the leaky ReLU, not negative */
    int phases;
};

enum { EDGE_SUMS = 1, EDGE_GRADIENT = 2 };

/* The adjoint. EDGE_SUMS: sums[i] += p[e] x[e]. EDGE_GRADIENT: x[e] = p[e] (x[e] - sums[i]), times `slope`
 * where signs (NULL: none) have a 0, which is added to totals[i] (NULL: not). At least 16 bits of `signs`
 * follow the last one. */
struct edge_softmax_back {
    struct edge_pattern at;
    int64_t first;
    const void *p;
    void *x, *sums, *totals;
    const uint8_t *signs;
    double slope;
    int phases;
};

/* out[e, k] = sum of a[c] leaky ReLU of (u[i, c] + v[j, c]) over the columns c of head k, for each entry
 * e = (i, j). The sums that are above 0 have a 1 in `signs`, whole bytes for each entry as of numpy.packbits. */
struct edge_scores {
    struct edge_pattern at;
    int64_t width, ldu, ldv;
    const void *u, *v, *a;
    const int64_t *bounds; /* rising from 0 to the width */
    double slope;
    void *out;
    uint8_t *signs;
};

/* C[i, c] = sum of values[e, k] over the entries e of row i, times `slope` where the entry's sign is 0, plus what
 * C holds with `accumulate`, for the columns c of each head k. order: as of edge_products, of the signs alone. */
struct edge_slopes {
    struct edge_pattern at;
    int64_t width, ldc;
    const void *values, *order;
    const uint8_t *signs;
    const int64_t *bounds; /* rising from 0 to the width */
    double slope;
    void *C;
    int accumulate;
};

/* The passes of one instruction set over one type of number. */
struct edge_set {
    void (*dots)(const struct edge_dots *);
    void (*products)(const struct edge_products *);
    void (*softmax)(const struct edge_softmax *);
    void (*softmax_back)(const struct edge_softmax_back *);
    void (*scores)(const struct edge_scores *);
    void (*slopes)(const struct edge_slopes *);
};

#endif
