/* Entries of a sparse matrix on their way into a file: keys of their places, records in order, hashes. The
 * steps of distgnn/local/entries.py, to the bit. */

#ifndef DISTGNN_ENTRIES_H
#define DISTGNN_ENTRIES_H

#include <stdint.h>

/* out[k] += (positions[k] << bits) + shifts[block of positions[k]]. A block is found by a table of cells of
 * 2^shift positions: the first block in a cell, and where the next one begins. */
struct entry_keys {
    int64_t count;
    const void *positions; /* int32, or int64 if `wide` */
    const int64_t *first, *next, *shifts;
    int64_t *out;
    int wide, shift, bits;
};

void entry_keys_run(const struct entry_keys *k);

/* Records of `size` bytes: a key of int64, 0 or more, and nothing (8), a float (12) or a double (16). */
struct entry_records {
    int64_t count;
    int size, low, high; /* keys are sorted by their bits low .. high - 1, stably */
    void *records, *room; /* as many */
};

/* Returns 1 where the sorted records are in `room`, else 0. */
int entry_sort(const struct entry_records *r);

/* Keep of records with one key, which stand side by side, the largest number. Returns how many are left. */
int64_t entry_merge(const struct entry_records *r);

/* Take apart `count` ascending keys, of rows from `first` on: count each row's, and put down their columns. */
struct entry_rows {
    int64_t count, first;
    const int64_t *keys;
    int bits, wide;
    int64_t *counts; /* out, one per row, 0 before */
    void *columns;   /* out, int32, or int64 if `wide` */
};

void entry_rows_run(const struct entry_rows *r);

/* Rows of entries, by how many each has. */
struct entry_pattern {
    int64_t rows;
    const int64_t *counts;
    const void *columns; /* one per entry, int32, or int64 if `wide` */
    int wide;
};

/* Of each entry, splitmix64(splitmix64(row n + column) ^ key), with weights splitmix64(that ^ their bits), by the
 * ids of row and column. */
struct entry_hashes {
    struct entry_pattern at;
    const void *row_ids, *column_ids; /* int32, or int64 if `wide_ids` */
    const double *weights;            /* or NULL */
    uint64_t n, key, sum, mirrored;   /* out: sums modulo 2^64, of the transpose too if `both` */
    int64_t *loops;                   /* out, one per row: entries whose row and column have one id */
    int wide_ids, both;
};

void entry_hash(struct entry_hashes *h);

/* out = weights (or 1) times left of the row, times right (unless NULL) of the column; double, or float. */
struct entry_scales {
    struct entry_pattern at;
    const double *left, *right, *weights;
    void *out;
    int wide_out;
};

void entry_scale(const struct entry_scales *s);

#endif
