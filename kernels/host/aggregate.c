/* Which kernel, which panels of columns, which rows; where gradients go. */

#include "aggregate.h"
#include "spmm.h"

#include <string.h>

#define ROWS_AT_A_TIME 256 /* that a thread takes */

/* Rows first..last-1, all columns, in panels that are cut evenly, as those of spmm.c. */
static void run_rows(const struct aggregate_set *set, const struct aggregate *a, int64_t first, int64_t last)
{
    const int64_t lanes = set->vector_bytes / (a->wide ? 8 : 4), vectors = (a->width + lanes - 1) / lanes;
    const int64_t panels = (vectors + set->most_vectors - 1) / set->most_vectors;
    for (int64_t panel = 0; panel < panels; panel++) {
        const int64_t column = vectors * panel / panels * lanes;
        const int64_t next = vectors * (panel + 1) / panels * lanes;
        const int64_t width = (next < a->width ? next : a->width) - column;
        set->find(a->wide, a->wide_indices, width)(a, first, last, column, width);
    }
}

void aggregate_run(const struct spmm_set *spmm, const struct aggregate *a)
{
    const struct aggregate_set *const set = spmm->aggregates;
    if (a->width == 0)
        return;
    if (a->threads < 2) {
        run_rows(set, a, 0, a->rows);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(a->threads)
    for (int64_t first = 0; first < a->rows; first += ROWS_AT_A_TIME)
        run_rows(set, a, first, first + ROWS_AT_A_TIME < a->rows ? first + ROWS_AT_A_TIME : a->rows);
}

/* Number i of an array of int64 or int32. */
static int64_t integer(const void *array, int wide, int64_t i)
{
    return wide ? ((const wide_int *)array)[i] : ((const narrow_int *)array)[i];
}

/* The entry of row `row` that has this column, which there is. */
static int64_t entry(const struct aggregate_back *a, int64_t row, int64_t column)
{
    int64_t low = integer(a->pointers, a->wide_indices, row);
    int64_t high = integer(a->pointers, a->wide_indices, row + 1) - 1;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (integer(a->indices, a->wide_indices, middle) < column)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef float narrow_real __attribute__((aligned(1), may_alias));
typedef double wide_real __attribute__((aligned(1), may_alias));

/* out[j, k] += G[i, k] times the value of (i, j) */
#define ADD(real)                                                                                           \
    ((real *)a->out)[j * a->ldo + k] +=                                                                     \
        ((const real *)a->G)[i * a->ldg + k] * (a->values ? ((const real *)a->values)[entry(a, j, i)] : 1)

void aggregate_back_run(const struct aggregate_back *a)
{
    for (int64_t j = 0; j < a->columns; j++)
        memset((char *)a->out + j * a->ldo * (a->wide ? 8 : 4), 0, (size_t)(a->width * (a->wide ? 8 : 4)));
    for (int64_t i = 0; i < a->rows; i++)
        for (int64_t k = 0; k < a->width; k++) {
            const int64_t code = integer(a->C, a->wide, i * a->ldc + k);
            if (code < 0)
                continue;
            const int64_t j = (a->places ? integer(a->places, a->wide, code) : code) - a->first;
            if (j < 0 || j >= a->columns)
                continue;
            if (a->wide)
                ADD(wide_real);
            else
                ADD(narrow_real);
        }
}
