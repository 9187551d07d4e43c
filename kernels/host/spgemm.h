/* Products of two sparse matrices: a dense row of sums, and a tree of bits of which columns have one. */

#ifndef DISTGNN_SPGEMM_H
#define DISTGNN_SPGEMM_H

#include <stdint.h>

/* C = A B, with rising columns in every row. An entry stands wherever an entry of A meets one of B, and is the
 * sum of their products in the order of A's row. Columns of A are rows of B, as the caller has checked. */
struct spgemm {
    int64_t rows, width; /* rows of A, columns of B */
    const int64_t *a_pointers, *a_indices;
    const void *b_pointers, *b_indices; /* int64 with wide_indices, else int32 */
    const void *a_values, *b_values;    /* double with wide, else float */
    int wide_indices, wide;
    void *sums;       /* `width`, all 0; so again afterwards */
    uint64_t *bits;   /* spgemm_words(width), all 0; so again afterwards */
    int64_t *pointers; /* out, rows + 1 */
    void *indices;     /* out, of B's type */
    void *values;      /* out; both with room for min(products, width) of every row */
};

/* How many words the tree has: a bit for each column, one for each word of those, and so on up to one word. */
int64_t spgemm_words(int64_t width);

/* -1, or the entry of B whose column is none. */
int64_t spgemm_run(const struct spgemm *s);

#endif
