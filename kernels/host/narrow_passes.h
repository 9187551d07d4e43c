/* The passes of narrow.h. Included by isa.h. */

typedef uint16_t loose_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t loose_u32 __attribute__((aligned(1), may_alias));

static INLINE float float_of(uint32_t bits)
{
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

static INLINE uint32_t bits_of(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

#define SIGN 0x80000000u
#define INFINITE 0x7F800000u
#define QUIET 0x00400000u           /* the bit of a NaN that raises nothing */
#define LEAST_INFINITE (143u << 23) /* 2^16; what rounds up to it becomes infinite by itself */
#define LEAST_NORMAL (113u << 23)   /* 2^-14 */
#define REBIAS (112u << 23)         /* between the exponents of float32 and of float16 */

/* All bits or none. GCC vectorises masks, but no choice of a sum of floats, which it would make in a branch. */
#define IF(condition) (-(uint32_t)(condition))

static INLINE uint32_t narrow_bfloat16(uint32_t x)
{
    const uint32_t rounded = x + 0x7FFF + (x >> 16 & 1), kept = x | QUIET;
    return ((x & ~SIGN) > INFINITE ? kept : rounded) >> 16;
}

static INLINE uint32_t narrow_float16(uint32_t x)
{
    const uint32_t size = x & ~SIGN, sign = (x & SIGN) >> 16;
    const uint32_t normal = (size - REBIAS + 0xFFF + (size >> 13 & 1)) >> 13;
    /* The last bit of a float32 between 1/2 and 1 is worth 2^-24: adding 1/2 rounds to such steps. */
    const uint32_t small = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    const uint32_t large = size > INFINITE ? 0x7E00 | (size >> 13 & 0x3FF) : 0x7C00;
    return ((small & IF(size < LEAST_NORMAL)) | (normal & IF(size >= LEAST_NORMAL && size < LEAST_INFINITE)) |
            (large & IF(size >= LEAST_INFINITE)) | sign);
}

static INLINE uint32_t widen_bfloat16(uint32_t h)
{
    return h << 16;
}

static INLINE uint32_t widen_float16(uint32_t h)
{
    const uint32_t sign = (h & 0x8000) << 16, moved = (h & 0x7FFF) << 13;
    const uint32_t finite = bits_of(float_of(moved) * 0x1p112f); /* of numbers below 2^-14, too */
    return finite | (INFINITE & IF((h & 0x7C00) == 0x7C00)) | sign;
}

#define BEYOND_bfloat16 0x7F7F8000u /* the least number that rounds to infinity */
#define BEYOND_float16 0x477FF000u
#define NAN_OF_16_BITS 0x7FFF /* of both types */

/* Puts NaN where a finite number is at least `beyond`; returns the size of the largest. */
static uint32_t lose(const struct narrow *n, uint32_t beyond)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n->count; i++) {
        const loose_u32 *const from = (const loose_u32 *)n->x + (n->rows ? n->rows[i] : i) * n->ldx;
        for (int64_t j = 0; j < n->width; j++) {
            const uint32_t size = from[j] & ~SIGN;
            if (size < beyond || size >= INFINITE)
                continue;
            ((loose_u16 *)n->y)[i * n->width + j] = NAN_OF_16_BITS;
            most = size > most ? size : most;
        }
    }
    return most;
}

#define NARROW_ROWS(kind)                                                                             \
    static uint32_t narrow_rows_##kind(const struct narrow *n)                                        \
    {                                                                                                 \
        const int64_t width = n->width, ldx = n->ldx, *const rows = n->rows;                          \
        int32_t most = 0;                                                                             \
        for (int64_t i = 0; i < n->count; i++) {                                                      \
            const loose_u32 *const from = (const loose_u32 *)n->x + (rows ? rows[i] : i) * ldx;       \
            loose_u16 *const to = (loose_u16 *)n->y + i * width;                                      \
            if (rows && i + GATHER_AHEAD < n->count)                                                  \
                for (int64_t j = 0; j < width; j += CACHE_LINE / 4)                                   \
                    __builtin_prefetch((const loose_u32 *)n->x + rows[i + GATHER_AHEAD] * ldx + j);   \
            LOOP(for (int64_t j = 0; j < width; j++) {                                                \
                const int32_t size = from[j] & ~SIGN;                                                 \
                most = size > most ? size : most;                                                     \
                to[j] = (uint16_t)narrow_##kind(from[j]);                                             \
            })                                                                                        \
        }                                                                                             \
        return (uint32_t)most < BEYOND_##kind ? 0 : lose(n, BEYOND_##kind);                           \
    }

#define WIDEN_ALL(kind)                                                                               \
    static void widen_all_##kind(const struct widen *w)                                               \
    {                                                                                                 \
        const int64_t count = w->count;                                                               \
        const loose_u16 *const x = (const loose_u16 *)w->x;                                           \
        loose_f32 *const y = (loose_f32 *)w->y;                                                       \
        loose_u32 *const bits = (loose_u32 *)y;                                                       \
        if (w->accumulate)                                                                            \
            LOOP(for (int64_t i = 0; i < count; i++)                                                  \
                y[i] += float_of(widen_##kind(x[i]));)                                                \
        else                                                                                          \
            LOOP(for (int64_t i = 0; i < count; i++)                                                  \
                bits[i] = widen_##kind(x[i]);)                                                        \
    }

NARROW_ROWS(bfloat16)
NARROW_ROWS(float16)
WIDEN_ALL(bfloat16)
WIDEN_ALL(float16)

static const struct narrow_set narrowing[2] = {{narrow_rows_bfloat16, widen_all_bfloat16},
                                               {narrow_rows_float16, widen_all_float16}};
