/* Which kernel, which panels of columns, which chunks of rows, how far ahead to prefetch. */

#include "spmm.h"

#include <stddef.h>

#define CACHE_LINE 64
#define AHEAD_BYTES 16384 /* measured: a third of the first-level cache */
#define LEAST_AHEAD 8
#define CHUNK 16384 /* non-zeros that a thread takes at a time */
#define CONVERTED 4096 /* rows whose pointers are converted at a time */

const struct spmm_set *const *spmm_sets(void)
{
    static const struct spmm_set *sets[4];
    if (sets[0] == NULL) {
        int count = 0;
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl"))
            sets[count++] = &spmm_avx512;
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            sets[count++] = &spmm_avx2;
#endif
        sets[count] = &spmm_generic;
    }
    return sets;
}

static int64_t pointer(const struct spmm *s, int64_t row)
{
    return s->wide_pointers ? ((const wide_int *)s->pointers)[row] : ((const narrow_int *)s->pointers)[row];
}

/* So many non-zeros that the rows of B on their way fill AHEAD_BYTES of the first-level cache. */
static int64_t look_ahead(const struct spmm *s, int64_t width)
{
    const int64_t bytes = width * (s->number == FLOAT64 ? 8 : s->number == FLOAT32 ? 4 : 2);
    const int64_t lines = (bytes + CACHE_LINE - 1) / CACHE_LINE, rows = AHEAD_BYTES / (lines * CACHE_LINE);
    return rows < LEAST_AHEAD ? LEAST_AHEAD : rows;
}

/* The first row that ends after the non-zero `target`. */
static int64_t row_of(const struct spmm *s, int64_t target)
{
    int64_t low = 0, high = s->rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (pointer(s, middle + 1) <= target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The product with rows `row`... of A only, whose pointers stand in an array of their own. */
static struct spmm rows_from(const struct spmm *s, int64_t row, const void *pointers, int wide_pointers)
{
    const int64_t real_bytes = s->number == FLOAT64 ? 8 : 4;
    struct spmm part = *s;
    part.rows = s->rows - row;
    part.pointers = pointers, part.wide_pointers = wide_pointers;
    part.row_scale = s->row_scale ? (const char *)s->row_scale + row * real_bytes : NULL;
    part.C = (char *)s->C + row * s->ldc * real_bytes;
    part.mask = s->mask ? (const char *)s->mask + row * s->ldmask * real_bytes : NULL;
    return part;
}

/* Rows first..last-1 of a panel. The rows that end within the last `ahead` non-zeros of the matrix look ahead at nothing, also the one
 * that begins before them: added up in two parts it would have other bits, and bits must not depend on `ahead`. */
static void run_panel(const struct spmm_set *set, const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width)
{
    const int scaled = s->values == NULL || s->column_scale != NULL;
    const int64_t ahead = s->ahead >= 0 ? s->ahead : look_ahead(s, width);
    int64_t row = row_of(s, s->nonzeros - ahead); /* the first that ends there; row == rows if there is none */
    if (row < first)
        row = first;
    if (row > last)
        row = last;
    set->find(s->number, s->wide_indices, scaled, ahead == 0, width)(s, first, row, column, width, ahead);
    set->find(s->number, s->wide_indices, scaled, 1, width)(s, row, last, column, width, 0);
}

/* Rows first..last-1, all columns; pointers and indices are of one type. */
static void run_panels(const struct spmm_set *set, const struct spmm *s, int64_t first, int64_t last)
{
    const int64_t lanes = set->vector_bytes / (s->number == FLOAT64 ? 8 : 4);
    const int64_t vectors = (s->width + lanes - 1) / lanes;
    const int64_t panels = (vectors + set->most_vectors - 1) / set->most_vectors;
    for (int64_t panel = 0; panel < panels; panel++) {
        /* Cut evenly, so that every panel but a single one is at least one vector wide. */
        const int64_t column = vectors * panel / panels * lanes, next = vectors * (panel + 1) / panels * lanes;
        const int64_t width = (next < s->width ? next : s->width) - column;
        run_panel(set, s, first, last, column, width);
    }
}

/* The same where row pointers and indices differ in type: a copy of the pointers of some rows at a time, counted from the first. */
static void run_converted(const struct spmm_set *set, const struct spmm *s, int64_t first, int64_t last)
{
    for (int64_t top = first; top < last; top += CONVERTED) {
        const int64_t bottom = top + CONVERTED < last ? top + CONVERTED : last, start = pointer(s, top);
        union {
            int32_t narrow[CONVERTED + 1];
            int64_t wide[CONVERTED + 1];
        } pointers;
        for (int64_t row = top; row <= bottom; row++)
            if (s->wide_indices)
                pointers.wide[row - top] = pointer(s, row) - start;
            else
                pointers.narrow[row - top] = (int32_t)(pointer(s, row) - start);
        struct spmm part = rows_from(s, top, &pointers, s->wide_indices);
        part.rows = bottom - top, part.nonzeros = s->nonzeros - start;
        part.indices = (const char *)s->indices + start * (s->wide_indices ? 8 : 4);
        part.values = s->values ? (const char *)s->values + start * (s->number == FLOAT64 ? 8 : 4) : NULL;
        run_panels(set, &part, 0, part.rows);
    }
}

static void run_rows(const struct spmm_set *set, const struct spmm *s, int64_t first, int64_t last)
{
    if (s->wide_pointers == s->wide_indices)
        run_panels(set, s, first, last);
    else
        run_converted(set, s, first, last);
}

void spmm_run(const struct spmm_set *set, const struct spmm *s)
{
    const int64_t chunks = s->threads > 1 ? s->nonzeros / CHUNK : 1;
    if (s->width == 0)
        return;
    if (chunks < 2) {
        run_rows(set, s, 0, s->rows);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(s->threads)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const int64_t first = chunk == 0 ? 0 : row_of(s, s->nonzeros * chunk / chunks);
        const int64_t last = chunk == chunks - 1 ? s->rows : row_of(s, s->nonzeros * (chunk + 1) / chunks);
        run_rows(set, s, first, last);
    }
}

int64_t spmm_bad_row(const struct spmm *s)
{
    for (int64_t row = 0; row < s->rows; row++)
        if (pointer(s, row) > pointer(s, row + 1))
            return row;
    return -1;
}

int64_t spmm_bad_index(const struct spmm *s, int64_t count)
{
    for (int64_t p = 0; p < count; p++) {
        const int64_t j = s->wide_indices ? ((const wide_int *)s->indices)[p] : ((const narrow_int *)s->indices)[p];
        if (j < 0 || j >= s->columns)
            return p;
    }
    return -1;
}
