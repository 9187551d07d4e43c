/* The loop over rows, for vectors of LANES numbers, and what finds its instance for a width. Included by
 * spmm_lanes.h, from few LANES to many, with the names of isa.h; undefines LANES.
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

#define VECTOR NAMED(vector)
#define LOOSE_VECTOR NAMED(loose_vector)
#if LANES == 1
/* GCC keeps a vector of one number in memory from one addition to the next. Scalars always prefetch: without,
 * GCC multiplies in vectors and rounds the products, so that bits would depend on `ahead`. */
typedef REAL VECTOR;
typedef LOOSE LOOSE_VECTOR;
#else
typedef REAL VECTOR __attribute__((vector_size(LANES * sizeof(REAL))));
typedef REAL LOOSE_VECTOR __attribute__((vector_size(LANES * sizeof(REAL)), aligned(1), may_alias));
#endif

/* Where vector k of a row starts; the last one is the one that overlaps. */
#define AT(k) ((k) < vectors - 1 ? (k) * LANES : tail)

/* sums += weight * (a row of B) */
static INLINE void NAMED(multiply)(VECTOR *sums, REAL weight, const LOOSE *b, int64_t tail, const int vectors)
{
    UNROLL
    for (int k = 0; k < vectors; k++)
        sums[k] += weight * *(const LOOSE_VECTOR *)(b + AT(k));
}

static INLINE void NAMED(prefetch)(const LOOSE *b, int64_t tail, const int vectors)
{
    UNROLL
    for (int k = 0; k < vectors * LANES; k += CACHE_LINE / (int)sizeof(REAL))
        __builtin_prefetch(b + k);
    if (vectors * LANES > 1)
        __builtin_prefetch(b + tail + LANES - 1); /* a row that starts within a line ends one line later */
}

/* Number p of an array of row pointers or columns. */
#define INDEX(array, p) (wide_indices ? ((const wide_int *)(array))[p] : ((const narrow_int *)(array))[p])

/* sums += (non-zero p of A) * (its row of B) */
#define TERM(sums, p)                                                                                       \
    do {                                                                                                    \
        const int64_t j_ = INDEX(indices, p);                                                               \
        if (!blind)                                                                                         \
            NAMED(prefetch)(B + INDEX(later, p) * ldb, tail, vectors);                          \
        NAMED(multiply)(sums, values[p], B + j_ * ldb, tail, vectors);                                      \
    } while (0)

static INLINE void NAMED(rows)(const struct spmm *s, int64_t first, int64_t last, int64_t column,
                               int64_t width, int64_t ahead, const int vectors, const int wide_indices,
                               const int blind, const int64_t ldb)
{
    /* Copies of what *s says: as far as the compiler knows, a store to C may change it. */
    const LOOSE *const B = (const LOOSE *)s->B + column, *const values = s->values;
    const int64_t index_bytes = wide_indices ? 8 : 4;
    const char *const indices = s->indices, *const later = indices + ahead * index_bytes;
    const char *pointer = (const char *)s->pointers + first * index_bytes;
    const char *const stop = pointer + (last - first) * index_bytes;
    LOOSE *c = (LOOSE *)s->C + first * s->ldc + column;
    const int64_t ldc = s->ldc, tail = vectors == 1 ? 0 : width - LANES;
    const int chains = vectors > 2 ? 1 : MOST_CHAINS / vectors, accumulate = s->accumulate;

    for (int64_t p = INDEX(pointer, 0); pointer < stop; c += ldc) {
        pointer += index_bytes;
        const int64_t end = INDEX(pointer, 0);
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
                sums[k] += *(const LOOSE_VECTOR *)(c + AT(k));
        }
        UNROLL
        for (int k = 0; k < vectors; k++)
            *(LOOSE_VECTOR *)(c + AT(k)) = sums[k];
    }
}

/* The kernels themselves: `vectors`, `wide_indices` and `blind` become constants. */
#define KERNEL(v, wide_indices, blind)                                                                      \
    static void NAMED(kernel_##v##_##wide_indices##blind)(const struct spmm *s, int64_t first, int64_t last, \
                                                          int64_t column, int64_t w, int64_t ahead)         \
    {                                                                                                       \
        const int never = blind && LANES > 1 && v <= MOST_BLIND; /* prefetches */                           \
        if (v * LANES == 1 && s->ldb == 1) /* B is a vector: no multiplication for an address */            \
            NAMED(rows)(s, first, last, column, w, ahead, v, wide_indices, never, 1);                       \
        else                                                                                                \
            NAMED(rows)(s, first, last, column, w, ahead, v, wide_indices, never, s->ldb);                  \
    }
#define KERNELS(v) KERNEL(v, 0, 0) KERNEL(v, 0, 1) KERNEL(v, 1, 0) KERNEL(v, 1, 1)
#define PAIR(v, wide_indices) {NAMED(kernel_##v##_##wide_indices##0), NAMED(kernel_##v##_##wide_indices##1)}
#define ENTRY(v) {PAIR(v, 0), PAIR(v, 1)},
#if LANES == LANES_FULL
#define VECTORS FULL_VECTORS
#else
#define VECTORS(X) X(1) X(2)
#endif
VECTORS(KERNELS)
static spmm_rows *const NAMED(kernels)[][2][2] = {VECTORS(ENTRY)};

/* The kernel for a panel of this width; blind: `ahead` is 0. */
static spmm_rows *NAMED(find)(int wide_indices, int blind, int64_t width)
{
#if LANES > 1
    if (width < LANES)
        return CONCAT3(find, NUMBER, CONCAT(HALF_OF_, LANES))(wide_indices, blind, width);
#endif
    return NAMED(kernels)[(width + LANES - 1) / LANES - 1][wide_indices][blind];
}

#undef VECTORS
#undef LANES
