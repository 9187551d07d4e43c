/* Refinement of a partition of the rows of A among K parts, for the volume of a product Y = A H in which a part fetches every row of H
 * that its rows touch from the part that owns it: total volume, the most that any part sends and the most that any part receives,
 * under a bound on the non-zeros of a part. */

#ifndef DISTGNN_VOLUME_H
#define DISTGNN_VOLUME_H

#include <stdint.h>

/* What moves: single rows; whole interfaces between two parts; interfaces within one neighbourhood of parts after another, where
 * send_least falls by a row whenever all parts keep to it; or single rows where more is sent then, first to parts with fewer
 * non-zeros, until total_bound is sent: no part sends or receives more than the busiest did. Beside that
 * only the capacity and the seed matter then. */
enum { VOLUME_ROWS, VOLUME_INTERFACES, VOLUME_NEIGHBOURHOODS, VOLUME_LEVEL };

/* Row v of A has the columns columns[pointers[v]] ... columns[pointers[v + 1] - 1], each once. part[v] in 0..parts-1 owns row v of A
 * and of H. The net of column j holds j itself and all rows with a non-zero in column j. */
struct volume {
    int64_t nodes;
    int32_t parts;
    const int64_t *pointers; /* nodes + 1 */
    const int32_t *columns;
    const int64_t *weights; /* nodes: the non-zeros that row counts for */
    int32_t *part;      /* in: a start; out: the best partition met */
    int64_t *send;      /* out, parts: rows of H that each part sends, with that partition */
    int64_t *receive;   /* out, parts: that it receives */
    int64_t capacity;   /* most non-zeros that a part should hold */
    double send_bound;  /* largest send volume wanted, relative to the average, */
    double send_least;  /* but no less than this many rows */
    double receive_bound;
    int64_t total_bound; /* rows in total up to which volume counts little where interfaces move, beside bounds that are missed; or 0 */
    int moves;          /* one of the VOLUME_... above */
    double heat;        /* temperature at first: rows by which a move may worsen the objective, more or less */
    int64_t work;       /* visits of a net by a row to spend, about */
    uint64_t seed;
};

/* 0, or -1 where there is not the memory: 45 bytes per node, 8 per non-zero, and 4 per part for every column with more than 11
 * non-zeros; for interfaces 55 per node and 5 per non-zero more. Takes one thread and no clock, so the result depends on nothing but
 * the struct. */
int volume_refine(struct volume *v);

#endif
