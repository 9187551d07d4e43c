/* The loop over rows, for vectors of LANES numbers. Included by spmm_number.h, which defines
 *   REAL, STORED, INDEX    types of the accumulators, of what B holds and of the column numbers; the latter two of any alignment
 *   NAMED(x)               x with a suffix for these three and LANES
 *   VECTORS(X)             X(v) for each number of vectors v to make kernels for
 *
 * All columns of a panel stay in vector accumulators. If its width is no multiple of LANES, the last vector overlaps the one before:
 * both compute the same numbers for the columns they share, so it takes no mask, no remainder loop and no read beyond the row.
 *
 * What costs time is waiting for rows of B. Rows of A are short, so the kernel prefetches for the non-zero that stands `ahead`
 * places further in the whole index array, whichever row it belongs to. The last `ahead` non-zeros have nothing to prefetch. */

#define VECTOR NAMED(vector)
#define LOOSE NAMED(loose)
#define LOOSE_REAL NAMED(loose_real)
#define MASK NAMED(mask)
#define LOAD NAMED(load)
#define MULTIPLY NAMED(multiply)
#define PREFETCH NAMED(prefetch)
#define FINISH NAMED(finish)
#define WEIGHT NAMED(weight)
#define ROWS NAMED(rows)

typedef REAL VECTOR __attribute__((vector_size(LANES * sizeof(REAL))));
typedef REAL LOOSE __attribute__((vector_size(LANES * sizeof(REAL)), aligned(1), may_alias));
typedef REAL LOOSE_REAL __attribute__((aligned(1), may_alias));
typedef __typeof__((VECTOR){0} < (VECTOR){0}) MASK;

#ifdef HALF /* bfloat16 is the upper half of a float */
typedef uint16_t NAMED(halves) __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
typedef uint32_t NAMED(words) __attribute__((vector_size(LANES * 4)));

static INLINE VECTOR LOAD(const STORED *b)
{
    return (VECTOR)(__builtin_convertvector(*(const NAMED(halves) *)b, NAMED(words)) << 16);
}
#else
static INLINE VECTOR LOAD(const STORED *b)
{
    return *(const LOOSE *)b;
}
#endif

/* Where vector k of a row starts; the last one is the one that overlaps. */
#define AT(k) ((k) < vectors - 1 ? (k) * LANES : tail)

/* sums += weight * (a row of B) */
static INLINE void MULTIPLY(VECTOR *sums, REAL weight, const STORED *b, int64_t tail, const int vectors)
{
    UNROLL
    for (int k = 0; k < vectors; k++)
        sums[k] += weight * LOAD(b + AT(k));
}

static INLINE void PREFETCH(const STORED *b, int64_t tail, const int vectors)
{
    UNROLL
    for (int k = 0; k < vectors * LANES; k += CACHE_LINE / (int)sizeof(STORED))
        __builtin_prefetch(b + k);
    __builtin_prefetch(b + tail + LANES - 1); /* a row that starts within a line ends one line later */
}

static INLINE REAL WEIGHT(const struct spmm *s, int64_t p, int64_t j, const int scaled)
{
    if (!scaled)
        return ((const LOOSE_REAL *)s->values)[p];
    const REAL value = s->values ? ((const LOOSE_REAL *)s->values)[p] : 1;
    return s->column_scale ? value * ((const LOOSE_REAL *)s->column_scale)[j] : value;
}

/* The rarer steps after the sum, on a row of C that has just been stored and is in cache; of one kernel's width or less. */
static __attribute__((noinline)) void FINISH(const struct spmm *s, int64_t row, int64_t column, int64_t width)
{
    LOOSE_REAL *const c = (LOOSE_REAL *)s->C + row * s->ldc + column;
    const LOOSE_REAL *const bias = s->bias ? (const LOOSE_REAL *)s->bias + column : NULL;
    const LOOSE_REAL *const mask = s->mask ? (const LOOSE_REAL *)s->mask + row * s->ldmask + column : NULL;
    for (int64_t k = 0; bias && k < width; k++)
        c[k] += bias[k];
    for (int64_t k = 0; s->relu && k < width; k++)
        c[k] = c[k] < 0 ? 0 : c[k]; /* keeps NaN: nobody should overlook it */
    for (int64_t k = 0; mask && k < width; k++)
        c[k] = mask[k] > 0 ? c[k] : 0;
}

static INLINE void ROWS(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width, int64_t ahead,
                        const int vectors, const int scaled)
{
    const STORED *const B = (const STORED *)s->B + column;
    const INDEX *const indices = (const INDEX *)s->indices;
    const int64_t ldb = s->ldb, tail = width - LANES;
    const int64_t unsafe = ahead ? spmm_pointer(s, s->rows) - ahead : 0; /* from here on, `ahead` is past the end */
    const int finish = s->bias || s->relu || s->mask;
    int64_t p = spmm_pointer(s, first);

    for (int64_t row = first; row < last; row++) {
        const int64_t end = spmm_pointer(s, row + 1), middle = end < unsafe ? end : unsafe;
        VECTOR sums[MOST_VECTORS];
        UNROLL
        for (int k = 0; k < vectors; k++)
            sums[k] = (VECTOR){0};
        for (; p < middle; p++) {
            const int64_t j = indices[p];
            PREFETCH(B + indices[p + ahead] * ldb, tail, vectors);
            MULTIPLY(sums, WEIGHT(s, p, j, scaled), B + j * ldb, tail, vectors);
        }
        for (; p < end; p++) {
            const int64_t j = indices[p];
            MULTIPLY(sums, WEIGHT(s, p, j, scaled), B + j * ldb, tail, vectors);
        }
        LOOSE_REAL *const c = (LOOSE_REAL *)s->C + row * s->ldc + column;
        if (s->row_scale) {
            UNROLL
            for (int k = 0; k < vectors; k++)
                sums[k] *= ((const LOOSE_REAL *)s->row_scale)[row];
        }
        if (s->accumulate) { /* all loads before the stores, because the last two vectors overlap */
            UNROLL
            for (int k = 0; k < vectors; k++)
                sums[k] += *(const LOOSE *)(c + AT(k));
        }
        UNROLL
        for (int k = 0; k < vectors; k++)
            *(LOOSE *)(c + AT(k)) = sums[k];
        if (finish)
            FINISH(s, row, column, width);
    }
}

/* The kernels themselves: `vectors` and `scaled` become constants. */
#define KERNEL(v)                                                                                                                    \
    static void NAMED(values_##v)(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width, int64_t ahead)  \
    {                                                                                                                                \
        ROWS(s, first, last, column, width, ahead, v, 0);                                                                            \
    }                                                                                                                                \
    static void NAMED(scaled_##v)(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width, int64_t ahead)  \
    {                                                                                                                                \
        ROWS(s, first, last, column, width, ahead, v, 1);                                                                            \
    }
VECTORS(KERNEL)
#undef KERNEL

#define ENTRY(v) {NAMED(values_##v), NAMED(scaled_##v)},
static spmm_rows *const NAMED(kernels)[][2] = {VECTORS(ENTRY)};
#undef ENTRY

#undef VECTOR
#undef LOOSE
#undef LOOSE_REAL
#undef MASK
#undef LOAD
#undef MULTIPLY
#undef PREFETCH
#undef FINISH
#undef WEIGHT
#undef ROWS
#undef AT
