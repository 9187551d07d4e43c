/* Refinement of a partition of the rows of A among K parts, for the product Y = A H in which a part fetches
 * every row of H that its rows touch from the part that owns it. The rows sent in total become few, and so do
 * the most that a part sends or receives, under a bound on the non-zeros of a part. */

#ifndef DISTGNN_VOLUME_H
#define DISTGNN_VOLUME_H

#include <stdint.h>

/* Row i of A has the columns columns[pointers[i]] ... columns[pointers[i + 1] - 1], each once. part[i] in
 * 0..parts-1 owns row i of A and of H. */
struct volume {
    int64_t nodes;
    int32_t parts;
    const int64_t *pointers; /* nodes + 1 */
    const int32_t *columns;
    int32_t *part;        /* in: a start; out: the best partition met */
    int64_t *send;        /* out, parts: rows of H that each part sends with that partition */
    int64_t *receive;     /* out, parts: rows that it receives */
    int64_t capacity;     /* most non-zeros that a part should hold, at least 1 */
    double send_bound;    /* what a part sends above so many times the average costs more and more */
    double receive_bound; /* the same for what it receives */
    double heat;          /* temperature at first: rows by which a move may worsen the objective, about */
    int64_t work;         /* visits of a net by a row to spend, about */
    uint64_t seed;
};

/* 0, or -1 where there is not the memory: 45 bytes per node, 8 per non-zero, and 4 per part for every column
 * with more than 11 non-zeros. Takes one thread and no clock: the result depends on the struct alone. */
int volume_refine(struct volume *v);

#endif
