/* Sampling of distinct columns from the rows of a sparse matrix of non-negative weights, and renumbering: the
 * steps of distgnn/sampling/rows.py and relabel.py, to the bit. */

#ifndef DISTGNN_SAMPLE_H
#define DISTGNN_SAMPLE_H

#include <stdint.h>

/* Of each row, `count` entries of positive weight are drawn one by one, with probabilities proportional to
 * weight among those not drawn yet; all of them where there are no more than `count`. */
struct sample {
    int64_t rows, count;
    const int64_t *pointers; /* rows + 1 */
    const double *weights;   /* one per entry */
    const uint64_t *keys;    /* one per row: the state of a SplitMix64 generator */
    uint8_t *picked;         /* out, one per entry: 1 where it was drawn, else 0 */
    double *remaining;       /* out, rows x (count + 1), or NULL: what is left before each draw and at last */
    double *prefix;          /* room for the longest row */
    int64_t *order;          /* out, `count`, or NULL: entries of the last row in the order of the draws */
};

/* -1, or the first row with a weight that is negative or not a number, or a sum that is not finite. */
int64_t sample_run(const struct sample *s);

/* A hash: of a generator's state, its next number. */
uint64_t sample_hash(uint64_t x);

/* Draw `count` of a row's entries, all of weight 1 and `first` the first, or take all where there are no more:
 * `positions`, ascending. picked, all 0 before and after, and prefix: room for the row. Returns how many. */
int64_t sample_ones(int64_t count, int64_t first, int64_t length, uint64_t key, uint8_t *picked, double *prefix,
                    int64_t *positions);

/* Draw `count` of the entries of each of these rows of a matrix of ones, without a copy of the rows. */
struct sample_selected {
    int64_t rows, count;
    const int64_t *pointers; /* of the matrix */
    const int64_t *selected; /* the rows */
    const uint64_t *keys;    /* one per row */
    uint8_t *picked;         /* as many as the longest row has entries, all 0; so again afterwards */
    double *prefix;          /* room for the longest row */
    int64_t *positions;      /* out, room for all that are drawn: the entries, ascending in each row */
    int64_t *counts;         /* out, one per row */
};

/* Returns how many positions there are. */
int64_t sample_selected_run(const struct sample_selected *s);

/* Block b renumbers ids[bounds[b]] ... ids[bounds[b + 1] - 1]: those among its seeds[seed_bounds[b]] ... get
 * their position there. Others get -1; or, with `extend`, the next free numbers in the order in which they
 * first occur, and are appended to `added`. */
struct relabel {
    int64_t blocks;
    const int64_t *bounds, *seed_bounds; /* blocks + 1 */
    const int64_t *ids, *seeds;
    int extend;
    int32_t *table;        /* one per possible id, all -1; so again afterwards */
    int64_t *labels;       /* out, one per id */
    int64_t *added;        /* out, with extend: room for one per id */
    int64_t *added_bounds; /* out, with extend: blocks + 1 */
};

void relabel_run(const struct relabel *r);

#endif
