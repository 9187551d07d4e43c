/* The loop over rows, for vectors of LANES numbers. Included by spmm_number.h, which defines
 *   REAL, STORED, INDEX    types of the accumulators, of what B holds and of the column numbers; the latter two of any alignment
 *   NAMED(x)               x with a suffix for these three and LANES
 *   VECTORS(X)             X(v) for each number of vectors v to make kernels for
 *   BLIND(X)               the same for those that have a kernel without prefetching
 *
 * All columns of a panel stay in vector accumulators. If its width is no multiple of LANES, the last vector overlaps the one before:
 * both compute the same numbers for the columns they share, so it takes no mask, no remainder loop and no read beyond the row.
 *
 * What costs time is waiting for rows of B. Rows of A are short, so the kernel prefetches for the non-zero that stands `ahead`
 * places further in the whole index array, whichever row it belongs to. With `ahead` 0 that is the one it is about to load. Where
 * rows of B are narrow and B is in cache, the instructions cost more than the waiting; so there are kernels without prefetching.
 *
 * Narrow rows wait for something else as well: an addition to a vector for the addition before it. Rows of A that are too long for
 * the processor to begin the next one meanwhile are added up in several chains. */

#define VECTOR NAMED(vector)
#define LOOSE NAMED(loose)
#define LOOSE_REAL NAMED(loose_real)
#define MASK NAMED(mask)
#define LOAD NAMED(load)
#define MULTIPLY NAMED(multiply)
#define PREFETCH NAMED(prefetch)
#define BEFORE_STORE NAMED(before_store)
#define AFTER_STORE NAMED(after_store)
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

static INLINE REAL WEIGHT(const LOOSE_REAL *values, const LOOSE_REAL *column_scale, int64_t p, int64_t j, const int scaled)
{
    if (!scaled)
        return values[p];
    return (values ? values[p] : 1) * (column_scale ? column_scale[j] : 1);
}

static INLINE void BEFORE_STORE(const struct spmm *s, const INDEX *pointer, const LOOSE_REAL *c, VECTOR *sums, int64_t tail,
                                const int vectors)
{
    if (s->row_scale) {
        const REAL scale = ((const LOOSE_REAL *)s->row_scale)[pointer - (const INDEX *)s->pointers];
        UNROLL
        for (int k = 0; k < vectors; k++)
            sums[k] *= scale;
    }
    if (s->accumulate) { /* all loads before the stores, because the last two vectors overlap */
        UNROLL
        for (int k = 0; k < vectors; k++)
            sums[k] += *(const LOOSE *)(c + AT(k));
    }
}

/* The steps that are not worth unrolling: the row of C is in cache. */
static __attribute__((noinline)) void AFTER_STORE(const struct spmm *s, const INDEX *pointer, int64_t column, int64_t width)
{
    const int64_t row = pointer - (const INDEX *)s->pointers;
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

/* sums += (non-zero p of A) * (its row of B) */
#define TERM(sums, p)                                                                                                                \
    do {                                                                                                                             \
        const int64_t j_ = indices[p];                                                                                               \
        if (!blind)                                                                                                                  \
            PREFETCH(B + later[p] * ldb, tail, vectors);                                                                             \
        MULTIPLY(sums, WEIGHT(values, column_scale, p, j_, scaled), B + j_ * ldb, tail, vectors);                                    \
    } while (0)

static INLINE void ROWS(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width, int64_t ahead,
                        const int vectors, const int scaled, const int blind)
{
    /* Copies of what *s says, because for all the compiler knows a store to C changes it. Few, to keep them in registers. */
    const STORED *const B = (const STORED *)s->B + column;
    const INDEX *const indices = (const INDEX *)s->indices, *const later = indices + ahead;
    const LOOSE_REAL *const values = (const LOOSE_REAL *)s->values, *const column_scale = (const LOOSE_REAL *)s->column_scale;
    const INDEX *pointer = (const INDEX *)s->pointers + first, *const stop = (const INDEX *)s->pointers + last;
    LOOSE_REAL *c = (LOOSE_REAL *)s->C + first * s->ldc + column;
    const int64_t ldb = s->ldb, ldc = s->ldc, tail = vectors == 1 ? 0 : width - LANES;
    const int chains = vectors > 2 ? 1 : MOST_CHAINS / vectors;
    const int epilogue = s->bias || s->relu || s->mask ? 2 : s->row_scale || s->accumulate ? 1 : 0;

    for (int64_t p = *pointer; pointer < stop; c += ldc) {
        const int64_t end = *++pointer;
        VECTOR sums[MOST_VECTORS];
        UNROLL
        for (int k = 0; k < vectors; k++)
            sums[k] = (VECTOR){0};
        if (chains > 1 && end - p >= LONG_ROW) {
            VECTOR others[MOST_CHAINS][2] = {0}; /* others[0] is `sums` */
            for (; p + chains <= end; p += chains) {
                UNROLL
                for (int chain = 0; chain < chains; chain++)
                    TERM(chain ? others[chain] : sums, p + chain);
            }
            UNROLL
            for (int chain = 1; chain < chains; chain++) {
                UNROLL
                for (int k = 0; k < vectors; k++)
                    sums[k] += others[chain][k];
            }
        }
        for (; p < end; p++)
            TERM(sums, p);
        if (epilogue)
            BEFORE_STORE(s, pointer - 1, c, sums, tail, vectors);
        UNROLL
        for (int k = 0; k < vectors; k++)
            *(LOOSE *)(c + AT(k)) = sums[k];
        if (epilogue > 1)
            AFTER_STORE(s, pointer - 1, column, width);
    }
}

/* The kernels themselves: `vectors`, `scaled` and `blind` become constants. */
#define KERNEL(name, vectors, scaled, blind)                                                                                         \
    static void name(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width, int64_t ahead)                \
    {                                                                                                                                \
        ROWS(s, first, last, column, width, ahead, vectors, scaled, blind);                                                          \
    }
#define KERNELS(v) KERNEL(NAMED(values_##v), v, 0, 0) KERNEL(NAMED(scaled_##v), v, 1, 0)
#define BLIND_KERNELS(v) KERNEL(NAMED(blind_values_##v), v, 0, 1) KERNEL(NAMED(blind_scaled_##v), v, 1, 1)
VECTORS(KERNELS)
BLIND(BLIND_KERNELS)

#define ENTRY(v) {NAMED(values_##v), NAMED(scaled_##v)},
#define BLIND_ENTRY(v) {NAMED(blind_values_##v), NAMED(blind_scaled_##v)},
static spmm_rows *const NAMED(kernels)[][2] = {VECTORS(ENTRY)};
static spmm_rows *const NAMED(blind_kernels)[][2] = {BLIND(BLIND_ENTRY)};
#undef KERNEL
#undef KERNELS
#undef BLIND_KERNELS
#undef ENTRY
#undef BLIND_ENTRY

#undef VECTOR
#undef LOOSE
#undef LOOSE_REAL
#undef MASK
#undef LOAD
#undef MULTIPLY
#undef PREFETCH
#undef BEFORE_STORE
#undef AFTER_STORE
#undef WEIGHT
#undef ROWS
#undef TERM
#undef AT
