/* The loop over rows, for vectors of LANES numbers. Included by spmm_lanes.h, with
 *   REAL, INDEX    types of numbers and of column numbers, which may have any alignment
 *   NAMED(x)       x with a suffix for these two and LANES
 *   VECTORS(X)     X(v) for each number of vectors v to make kernels for
 *
 * All columns of a panel stay in vector accumulators. If its width is no multiple of LANES, the last vector
 * overlaps the one before: both compute the same numbers for the columns that they share, so it takes no
 * mask, no remainder loop and no read beyond the row.
 *
 * What costs time is waiting for rows of B. The kernel prefetches for the non-zero that stands `ahead` places
 * further in the whole index array, whichever row it belongs to. Where rows of B are narrow and B is in
 * cache, the instructions cost more than the waiting, so there are kernels without prefetching ("blind"). An
 * addition to a vector also waits for the one before it: rows of A that are too long for the processor to
 * begin the next one meanwhile are added up in several chains. */

typedef REAL VECTOR __attribute__((vector_size(LANES * sizeof(REAL))));
typedef REAL LOOSE __attribute__((vector_size(LANES * sizeof(REAL)), aligned(1), may_alias));
typedef REAL LOOSE_REAL __attribute__((aligned(1), may_alias));

/* Where vector k of a row starts; the last one is the one that overlaps. */
#define AT(k) ((k) < vectors - 1 ? (k) * LANES : tail)

/* sums += weight * (a row of B) */
static INLINE void MULTIPLY(VECTOR *sums, REAL weight, const LOOSE_REAL *b, int64_t tail, const int vectors)
{
    UNROLL
    for (int k = 0; k < vectors; k++)
        sums[k] += weight * *(const LOOSE *)(b + AT(k));
}

static INLINE void PREFETCH(const LOOSE_REAL *b, int64_t tail, const int vectors)
{
    UNROLL
    for (int k = 0; k < vectors * LANES; k += CACHE_LINE / (int)sizeof(REAL))
        __builtin_prefetch(b + k);
    __builtin_prefetch(b + tail + LANES - 1); /* a row that starts within a line ends one line later */
}

/* sums += (non-zero p of A) * (its row of B) */
#define TERM(sums, p)                                                                 \
    do {                                                                              \
        const int64_t j_ = indices[p];                                                \
        if (!blind)                                                                   \
            PREFETCH(B + later[p] * ldb, tail, vectors);                              \
        MULTIPLY(sums, values[p], B + j_ * ldb, tail, vectors);                       \
    } while (0)

static INLINE void ROWS(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t width,
                        int64_t ahead, const int vectors, const int blind)
{
    /* Copies of what *s says: as far as the compiler knows, a store to C may change it. */
    const LOOSE_REAL *const B = (const LOOSE_REAL *)s->B + column, *const values = s->values;
    const INDEX *const indices = s->indices, *const later = indices + ahead;
    const INDEX *pointer = (const INDEX *)s->pointers + first, *const stop = pointer + (last - first);
    LOOSE_REAL *c = (LOOSE_REAL *)s->C + first * s->ldc + column;
    const int64_t ldb = s->ldb, ldc = s->ldc, tail = vectors == 1 ? 0 : width - LANES;
    const int chains = vectors > 2 ? 1 : MOST_CHAINS / vectors, accumulate = s->accumulate;

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
        if (accumulate) { /* all loads before the stores, because the last two vectors overlap */
            UNROLL
            for (int k = 0; k < vectors; k++)
                sums[k] += *(const LOOSE *)(c + AT(k));
        }
        UNROLL
        for (int k = 0; k < vectors; k++)
            *(LOOSE *)(c + AT(k)) = sums[k];
    }
}

/* The kernels themselves: `vectors` and `blind` become constants. */
#define KERNEL(name, vectors, blind)                                                            \
    static void name(const struct spmm *s, int64_t first, int64_t last, int64_t column, int64_t w, \
                     int64_t ahead)                                                             \
    {                                                                                           \
        ROWS(s, first, last, column, w, ahead, vectors, blind);                                 \
    }
#define KERNELS(v) KERNEL(NAMED(seeing_##v), v, 0) KERNEL(NAMED(blind_##v), v, v <= MOST_BLIND)
#define ENTRY(v) {NAMED(seeing_##v), NAMED(blind_##v)},
VECTORS(KERNELS)
static spmm_rows *const NAMED(kernels)[][2] = {VECTORS(ENTRY)};
#undef ENTRY
