/* Blocks of a graph that a rank holds, for samplers (distgnn/local/neighbours.py): rows drawn, or columns
 * picked, and numbered in one pass. Block b has vertices[bounds[b]] ... vertices[bounds[b + 1] - 1], distinct.
 *
 * What costs time is waiting for memory: every vertex has its row elsewhere, and every entry that is drawn its
 * column. So the lines of some entries are asked for together, before any of them is read. */

#ifndef DISTGNN_NEIGHBOURS_H
#define DISTGNN_NEIGHBOURS_H

#include <stdint.h>

#define NEIGHBOURS_GATHERED 128 /* entries whose lines are asked for together; half a first-level cache */

struct graph {
    int64_t nodes, nonzeros;
    const int64_t *pointers; /* nodes + 1 */
    const void *indices;     /* int64 with wide_indices, else int32 */
    const void *values;      /* of 8 bytes with wide_values, else 4; NULL: none are wanted */
    int wide_indices, wide_values;
    int32_t *table; /* one per node, all -1; so again afterwards */
};

struct vertices {
    int64_t blocks;
    const int64_t *bounds, *ids;
};

/* Where each vertex's entries begin if at most `count` of its row are drawn: ends, one more than vertices.
 * Returns -1, or the first whose row falls or exceeds the entries. */
int64_t neighbours_count(const struct graph *g, const struct vertices *v, int64_t count, int64_t *ends,
                         int64_t *longest);

/* Of every vertex's row, `count` entries, or all where there are no more: drawn as sample_selected does, with
 * splitmix64(splitmix64(vertex) ^ keys[block]) as the row's key, and numbered as relabel does. */
struct neighbours {
    const struct graph *graph;
    const struct vertices *rows;
    int64_t count;
    const uint64_t *keys;   /* one per block */
    uint8_t *picked;        /* as many as the longest row has entries, all 0; so again afterwards */
    double *prefix;         /* as many */
    int64_t *entries;       /* room for NEIGHBOURS_GATHERED and for those of a vertex */
    int32_t *labels;        /* out, one per entry */
    void *values;           /* out, likewise, unless the graph has none */
    int64_t *columns;       /* out, room for one per vertex and entry: the vertices of each block, then others */
    int64_t *column_bounds; /* out, blocks + 1 */
};

/* -1, or the entry whose column is none. */
int64_t neighbours_run(const struct neighbours *n);

/* The entries of every vertex's row in the columns of its block, in their order: floating-point values, times
 * scale[column] where that is given. */
struct edges_kept {
    const struct graph *graph;
    const struct vertices *rows, *columns; /* as many blocks */
    const double *scale;                   /* one per column, or NULL */
    int64_t *ends;                         /* out, one more than rows: where those of each begin */
    int32_t *labels;                       /* out: places among the block's columns */
    void *values;                          /* out; both with room for min(entries, columns) of every row */
};

/* -1, or the entry whose column is none. */
int64_t edges_run(const struct edges_kept *k);

#endif
