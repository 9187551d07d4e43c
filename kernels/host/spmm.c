/* Which kernel, which panels of columns, which chunks of rows, how far ahead to prefetch. */

#include "spmm.h"

#include <stddef.h>

/* Two rows of B per kilobyte ... see README: measured */
#define AHEAD_BYTES 16384
#define CHUNK 16384 /* non-zeros: large enough to amortise its start, small enough to balance */

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

static int64_t element_bytes(enum number number)
{
    return number == FLOAT64 ? 8 : number == FLOAT32 ? 4 : 2;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* The first row that ends after the non-zero `target`. */
static int64_t row_of(const struct spmm *s, int64_t target)
{
    int64_t low = 0, high = s->rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (spmm_pointer(s, middle + 1) <= target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void run_rows(const struct spmm_set *set, const struct spmm *s, int64_t first, int64_t last)
{
    const int64_t lanes = set->vector_bytes / (s->number == FLOAT64 ? 8 : 4);
    const int64_t vectors = (s->width + lanes - 1) / lanes;
    const int64_t panels = (vectors + set->most_vectors - 1) / set->most_vectors;
    const int scaled = s->values == NULL || s->column_scale != NULL;
    for (int64_t panel = 0; panel < panels; panel++) {
        /* Cut evenly, so that every panel but a single one is at least one vector wide. */
        const int64_t column = vectors * panel / panels * lanes, next = vectors * (panel + 1) / panels * lanes;
        const int64_t width = (next < s->width ? next : s->width) - column;
        const int64_t ahead = s->ahead >= 0 ? s->ahead : clamp(AHEAD_BYTES / (width * element_bytes(s->number)), 8, 256);
        set->find(s->number, s->wide_indices, scaled, width)(s, first, last, column, width, ahead);
    }
}

void spmm_run(const struct spmm_set *set, const struct spmm *s)
{
    const int64_t nonzeros = spmm_pointer(s, s->rows);
    if (s->threads <= 1 || nonzeros < 2 * CHUNK || s->width == 0) {
        run_rows(set, s, 0, s->rows);
        return;
    }
    const int64_t chunks = nonzeros / CHUNK;
#pragma omp parallel for schedule(dynamic, 1) num_threads(s->threads)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const int64_t first = chunk == 0 ? 0 : row_of(s, nonzeros * chunk / chunks);
        const int64_t last = chunk == chunks - 1 ? s->rows : row_of(s, nonzeros * (chunk + 1) / chunks);
        run_rows(set, s, first, last);
    }
}

int64_t spmm_bad_row(const struct spmm *s)
{
    for (int64_t row = 0; row < s->rows; row++)
        if (spmm_pointer(s, row) > spmm_pointer(s, row + 1))
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
