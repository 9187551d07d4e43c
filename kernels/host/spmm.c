/* Which kernel, which panels of columns, which row blocks, how far ahead to prefetch. */

#include "spmm.h"

#include <stddef.h>

#define CACHE_LINE 64
#define AHEAD_BYTES 16384 /* measured: a third of the first-level cache */
#define LEAST_AHEAD 8
#define PANEL_ROWS 256 /* rows of A that several panels take in turn; measured on road-18 at f = 128: 1.24 */
#define ROW_BLOCK 16384 /* non-zeros that a thread takes at a time */

const struct spmm_set *const *spmm_sets(void)
{
    static const struct spmm_set *sets[4];
    if (sets[0] == NULL) {
        int count = 0;
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
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
    return s->wide_indices ? ((const wide_int *)s->pointers)[row] : ((const narrow_int *)s->pointers)[row];
}

/* So many non-zeros that the rows of B on their way fill AHEAD_BYTES of the first-level cache. */
static int64_t look_ahead(const struct spmm *s, int64_t width)
{
    const int64_t lines = (width * (s->wide ? 8 : 4) + CACHE_LINE - 1) / CACHE_LINE;
    const int64_t rows = AHEAD_BYTES / (lines * CACHE_LINE);
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

/* Rows first..last-1 of a panel. Rows that end within the last `ahead` non-zeros of the matrix look ahead at
 * nothing, also the one that begins before: added up in two parts its bits would depend on `ahead`. */
static void run_panel(const struct spmm_set *set, const struct spmm *s, int64_t first, int64_t last,
                      int64_t column, int64_t width)
{
    const int64_t ahead = s->ahead >= 0 ? s->ahead : look_ahead(s, width);
    int64_t row = row_of(s, s->nonzeros - ahead); /* the first that ends there, or `rows` */
    if (row < first)
        row = first;
    if (row > last)
        row = last;
    set->find(s->wide, s->wide_indices, ahead == 0, width)(s, first, row, column, width, ahead);
    set->find(s->wide, s->wide_indices, 1, width)(s, row, last, column, width, 0);
}

/* Rows first..last-1, all columns. Several panels take some rows at a time, whose rows of B stay close. */
static void run_rows(const struct spmm_set *set, const struct spmm *s, int64_t first, int64_t last)
{
    const int64_t lanes = set->vector_bytes / (s->wide ? 8 : 4), vectors = (s->width + lanes - 1) / lanes;
    const int64_t panels = (vectors + set->most_vectors - 1) / set->most_vectors;
    const int64_t step = panels > 1 ? PANEL_ROWS : last - first;
    for (int64_t top = first; top < last; top += step) {
        const int64_t bottom = last - top < step ? last : top + step;
        for (int64_t panel = 0; panel < panels; panel++) {
            /* Cut evenly, so that every panel but a single one is at least one vector wide. */
            const int64_t column = vectors * panel / panels * lanes;
            const int64_t next = vectors * (panel + 1) / panels * lanes;
            run_panel(set, s, top, bottom, column, (next < s->width ? next : s->width) - column);
        }
    }
}

void spmm_run(const struct spmm_set *set, const struct spmm *s)
{
    const int64_t blocks = s->threads > 1 ? s->nonzeros / ROW_BLOCK : 1;
    if (s->width == 0)
        return;
    if (blocks < 2) {
        run_rows(set, s, 0, s->rows);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(s->threads)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block == 0 ? 0 : row_of(s, s->nonzeros * block / blocks);
        const int64_t last = block == blocks - 1 ? s->rows : row_of(s, s->nonzeros * (block + 1) / blocks);
        run_rows(set, s, first, last);
    }
}
