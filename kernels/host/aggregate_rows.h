/* The loop over rows, for vectors of LANES numbers; see aggregate.h. Included by aggregate_lanes.h after
 * spmm_rows.h for the same LANES, whose AT and INDEX it uses; undefines LANES.
 *
 * The best numbers of a panel's columns, and their codes, stay in vectors. w b + c is a b, a + b or b, and of
 * its negative the largest is sought where the least is wanted: one multiplication and addition for all. */

#define NUMBERS NAMED(numbers)
#define LOOSE_NUMBERS NAMED(loose_numbers)
#define CODES NAMED(codes)
#define LOOSE_CODES NAMED(loose_codes)
#define MASK NAMED(mask)
typedef REAL NUMBERS __attribute__((vector_size(LANES * sizeof(REAL))));
typedef REAL LOOSE_NUMBERS __attribute__((vector_size(LANES * sizeof(REAL)), aligned(1), may_alias));
typedef TYPED(word) CODES __attribute__((vector_size(LANES * sizeof(REAL))));
typedef TYPED(word) LOOSE_CODES __attribute__((vector_size(LANES * sizeof(REAL)), aligned(1), may_alias));
typedef TYPED(integer) MASK __attribute__((vector_size(LANES * sizeof(REAL))));

/* Where (x, code) is better than (best, held): it becomes that. */
static INLINE void NAMED(take)(NUMBERS x, CODES code, NUMBERS *best, CODES *held)
{
    const MASK missing = x != x, lost = *best != *best;
    const MASK equal = (MASK)(x == *best) | (missing & lost), before = (MASK)(code < *held);
    const MASK better = (MASK)(x > *best) | (missing & ~lost) | (equal & before);
    *best = (NUMBERS)((better & (MASK)x) | (~better & (MASK)*best));
    *held = (CODES)((better & (MASK)code) | (~better & (MASK)*held));
}

static INLINE void NAMED(best)(const struct aggregate *a, int64_t first, int64_t last, int64_t column,
                               int64_t width, const int vectors, const int wide_indices)
{
    const LOOSE *const B = (const LOOSE *)a->B + column, *const values = a->values;
    const char *const indices = a->indices, *const pointers = a->pointers;
    const TYPED(loose_word) *const codes = a->codes;
    LOOSE *t = (LOOSE *)a->T + first * a->ldt + column;
    TYPED(loose_word) *c = (TYPED(loose_word) *)a->C + first * a->ldc + column;
    const int64_t ldb = a->ldb, ldt = a->ldt, ldc = a->ldc, tail = vectors == 1 ? 0 : width - LANES;
    const int64_t base = a->first, total = INDEX(pointers, a->rows);
    const REAL sign = a->least ? -1 : 1;
    const int plus = a->plus && values, merge = a->merge;

    int64_t p = INDEX(pointers, first);
    for (int64_t row = first; row < last; row++, t += ldt, c += ldc) {
        const int64_t end = INDEX(pointers, row + 1);
        NUMBERS best[MOST_BEST];
        CODES held[MOST_BEST];
        UNROLL
        for (int k = 0; k < vectors; k++) {
            best[k] = (NUMBERS){0} - (REAL)INFINITY;
            held[k] = ~(CODES){0};
            if (merge) { /* loads of all before the stores, because the last two vectors overlap */
                best[k] = sign * *(const LOOSE_NUMBERS *)(t + AT(k));
                held[k] = *(const LOOSE_CODES *)(c + AT(k));
            }
        }
        for (; p < end; p++) {
            const int64_t j = INDEX(indices, p);
            const REAL own = values ? sign * values[p] : sign;
            const REAL w = plus ? sign : own, shift = plus ? own : (REAL)-0.0;
            const CODES code = (CODES){0} + (codes ? codes[j] : (TYPED(word))(base + j));
            const LOOSE *const b = B + j * ldb;
            if (p + BEST_AHEAD < total)
                NAMED(prefetch)(B + INDEX(indices, p + BEST_AHEAD) * ldb, tail, vectors);
            UNROLL
            for (int k = 0; k < vectors; k++)
                NAMED(take)(w * *(const LOOSE_NUMBERS *)(b + AT(k)) + shift, code, &best[k], &held[k]);
        }
        UNROLL
        for (int k = 0; k < vectors; k++) {
            *(LOOSE_NUMBERS *)(t + AT(k)) = sign * best[k];
            *(LOOSE_CODES *)(c + AT(k)) = held[k];
        }
    }
}

#define KERNEL_BEST(v, wide_indices)                                                                        \
    static void NAMED(best_##v##_##wide_indices)(const struct aggregate *a, int64_t first, int64_t last,     \
                                                 int64_t column, int64_t width)                              \
    {                                                                                                       \
        NAMED(best)(a, first, last, column, width, v, wide_indices);                                        \
    }
#define KERNELS_BEST(v) KERNEL_BEST(v, 0) KERNEL_BEST(v, 1)
#define ENTRY_BEST(v) {NAMED(best_##v##_0), NAMED(best_##v##_1)},
#if LANES == LANES_FULL
#define VECTORS_BEST(X) X(1) X(2) X(3) X(4)
#else
#define VECTORS_BEST(X) X(1) X(2)
#endif
VECTORS_BEST(KERNELS_BEST)
static aggregate_rows *const NAMED(all_best)[][2] = {VECTORS_BEST(ENTRY_BEST)};

/* The kernel for a panel of this width. */
static aggregate_rows *NAMED(find_best)(int wide_indices, int64_t width)
{
#if LANES > 1
    if (width < LANES)
        return CONCAT3(find_best, NUMBER, CONCAT(HALF_OF_, LANES))(wide_indices, width);
#endif
    return NAMED(all_best)[(width + LANES - 1) / LANES - 1][wide_indices];
}

#undef VECTORS_BEST
#undef LANES
