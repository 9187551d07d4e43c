/* The kernels of elementwise.h for one type of number. Included by elementwise_isa.h, which defines REAL,
 * INTEGER and WORD (of its size) and NUMBER. What vectorisers do not see is written with vectors of 8. */

/* The constants of exp, of either type. */
#define PICK(of_float, of_double) (sizeof(REAL) == 4 ? of_float : of_double)
#define MANTISSA PICK(23, 52)
#define EXPONENT_BIAS PICK(127, 1023)
#define EXP_DEGREE PICK(7, 13)
#define EXP_LEAST PICK(-87, -708) /* below, exp is less than a normal number */
#define LN2_HIGH (REAL)PICK(0.693359375, 6.93145751953125e-1)
#define LN2_LOW (REAL)PICK(-2.12194440e-4, 1.42860682030941723212e-6)
#define ROOT(x) PICK(__builtin_sqrtf(x), __builtin_sqrt(x))

typedef REAL LOOSE __attribute__((aligned(1), may_alias));
typedef REAL NAMED(vector) __attribute__((vector_size(8 * sizeof(REAL))));
typedef REAL NAMED(loose_vector) __attribute__((vector_size(8 * sizeof(REAL)), aligned(1), may_alias));
typedef INTEGER NAMED(integers) __attribute__((vector_size(8 * sizeof(REAL))));

static void NAMED(dropout)(const struct dropout *d)
{
    const REAL scale = (REAL)d->scale;
    const uint32_t threshold = (uint32_t)d->threshold;
    const int64_t width = d->width;
    const int all = d->threshold > UINT32_MAX, relu = d->relu;
    for (int64_t i = 0; i < d->rows; i++) {
        const LOOSE *const x = (const LOOSE *)d->x + i * d->ldx;
        LOOSE *const y = (LOOSE *)d->y + i * d->ldy;
        const uint32_t low = d->low[i], odd = d->odd[i], *const columns = d->columns;
        if (relu)
            LOOP(for (int64_t j = 0; j < width; j++) {
                const REAL positive = x[j] < 0 ? 0 : x[j];
                y[j] = positive * (all || KEEP(low, odd, columns[j]) < threshold ? scale : 0);
            })
        else
            LOOP(for (int64_t j = 0; j < width; j++)
                y[j] = x[j] * (all || KEEP(low, odd, columns[j]) < threshold ? scale : 0);)
    }
}

static void NAMED(adam)(const struct adam *a)
{
    LOOSE *const w = (LOOSE *)a->w, *const m = (LOOSE *)a->m, *const v = (LOOSE *)a->v;
    const LOOSE *const g = (const LOOSE *)a->g;
    const REAL shrink = (REAL)a->shrink, decay = (REAL)a->decay;
    const REAL first = (REAL)a->first, rest = (REAL)(1 - a->first);
    const REAL second = (REAL)a->second, rest2 = (REAL)(1 - a->second);
    const REAL rate = (REAL)a->rate, correction = (REAL)a->correction, epsilon = (REAL)a->epsilon;
    const int64_t count = a->count;
    LOOP(for (int64_t i = 0; i < count; i++) {
        const REAL weight = w[i] * shrink, gradient = g[i] + decay * weight;
        m[i] = first * m[i] + rest * gradient;
        v[i] = second * v[i] + rest2 * gradient * gradient;
        w[i] = weight - rate * m[i] / (ROOT(v[i] / correction) + epsilon);
    })
}

static void NAMED(pack_positive)(const void *x, int64_t count, uint8_t *bits)
{
    const LOOSE *const flat = (const LOOSE *)x;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const NAMED(integers) positive = *(const NAMED(loose_vector) *)(flat + i) > 0;
        union {
            bytes8 bytes;
            uint64_t word;
        } mask = {.bytes = __builtin_convertvector(positive, bytes8)};
        /* Byte k holds bit k; the product moves it to bit 63 - k (on a machine that is little-endian). */
        bits[i / 8] = (uint8_t)((mask.word & 0x0101010101010101u) * 0x8040201008040201u >> 56);
    }
    for (int k = 0; i + k < count; k++)
        bits[i / 8] = (uint8_t)((k ? bits[i / 8] : 0) | (flat[i + k] > 0) << (7 - k));
}

static void NAMED(keep_positive)(void *x, int64_t count, const uint8_t *bits, double scale)
{
    LOOSE *const flat = (LOOSE *)x;
    const NAMED(integers) place = {128, 64, 32, 16, 8, 4, 2, 1};
    const NAMED(vector) factor = (NAMED(vector)){0} + (REAL)scale;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const NAMED(integers) kept = (((NAMED(integers)){0} + bits[i / 8]) & place) != 0;
        *(NAMED(loose_vector) *)(flat + i) *= (NAMED(vector))(kept & (NAMED(integers))factor);
    }
    for (int k = 0; i + k < count; k++)
        flat[i + k] *= bits[i / 8] >> (7 - k) & 1 ? (REAL)scale : 0;
}

typedef WORD NAMED(words) __attribute__((vector_size(8 * sizeof(REAL))));

/* exp in place, of numbers at most 0, to two units in the last place; 0 where less than a normal number. */
static INLINE void NAMED(exponential)(NAMED(vector) *inout)
{
    const NAMED(vector) x = *inout;
    static const REAL coefficients[] = {/* 1 / k! */
        1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800,
        1. / 39916800, 1. / 479001600, 1. / 6227020800};
    /* Adding it rounds to an integer, which the last bits then hold. */
    const REAL shift = (REAL)((WORD)3 << (MANTISSA - 1));
    const NAMED(vector) shifted = x * (REAL)1.44269504088896340736 + shift, n = shifted - shift;
    const NAMED(vector) rest = x - n * LN2_HIGH - n * LN2_LOW;
    NAMED(vector) power = (NAMED(vector)){0} + coefficients[EXP_DEGREE];
    UNROLL
    for (int k = EXP_DEGREE - 1; k >= 0; k--)
        power = power * rest + coefficients[k];
    const NAMED(words) two_to_n = ((NAMED(words))shifted + EXPONENT_BIAS) << MANTISSA;
    *inout = (NAMED(vector))((NAMED(integers))(power * (NAMED(vector))two_to_n) & ~(x < EXP_LEAST));
}

/* Up to 8 numbers; what is missing is minus infinity, whose exponential is 0. */
static INLINE void NAMED(load_some)(NAMED(vector) *v, const LOOSE *x, int64_t count)
{
    if (count >= 8)
        *v = *(const NAMED(loose_vector) *)x;
    else
        for (int k = 0; k < 8; k++)
            (*v)[k] = k < count ? x[k] : -(REAL)__builtin_inf();
}

static INLINE void NAMED(store_some)(LOOSE *y, const NAMED(vector) *v, int64_t count)
{
    if (count >= 8)
        *(NAMED(loose_vector) *)y = *v;
    else
        for (int k = 0; k < count; k++)
            y[k] = (*v)[k];
}

static void NAMED(cross_entropy)(const struct cross_entropy *e)
{
    const int64_t width = e->width;
    const REAL share = (REAL)e->share;
    LOOSE *const sums = (LOOSE *)e->sums, *const own = (LOOSE *)e->own;
    int64_t row = 0;
    for (int64_t i = 0; i <= e->count; i++) {
        const int64_t next = i < e->count ? e->rows[i] : e->height;
        for (; row < next; row++)
            LOOP(for (int64_t j = 0; j < width; j++)
                ((LOOSE *)e->y)[row * e->ldy + j] = 0;)
        if (i == e->count)
            break;
        const LOOSE *const x = (const LOOSE *)e->x + row * e->ldx;
        LOOSE *const y = (LOOSE *)e->y + row++ * e->ldy;
        NAMED(vector) most, some, sum = {0};
        NAMED(load_some)(&most, x, width);
        for (int64_t j = 8; j < width; j += 8) {
            NAMED(load_some)(&some, x + j, width - j);
            const NAMED(integers) more = some > most;
            most = (NAMED(vector))((more & (NAMED(integers))some) | (~more & (NAMED(integers))most));
        }
        REAL highest = most[0], total = 0;
        for (int k = 1; k < 8; k++)
            highest = most[k] > highest ? most[k] : highest;
        own[i] = x[e->labels[i]] - highest;
        for (int64_t j = 0; j < width; j += 8) {
            NAMED(load_some)(&some, x + j, width - j);
            some -= highest;
            NAMED(exponential)(&some);
            NAMED(store_some)(y + j, &some, width - j);
            sum += some;
        }
        for (int k = 0; k < 8; k++)
            total += sum[k];
        sums[i] = total;
        const REAL factor = share / total;
        LOOP(for (int64_t j = 0; j < width; j++)
            y[j] *= factor;)
        y[e->labels[i]] -= share;
    }
}

static void NAMED(scatter_add)(const void *x, int64_t ldx, const int64_t *rows, int64_t count, int64_t width,
                               void *y, int64_t ldy)
{
    for (int64_t i = 0; i < count; i++) {
        const LOOSE *const from = (const LOOSE *)x + i * ldx;
        LOOSE *const to = (LOOSE *)y + rows[i] * ldy;
        if (i + GATHER_AHEAD < count)
            __builtin_prefetch((const LOOSE *)y + rows[i + GATHER_AHEAD] * ldy, 1);
        LOOP(for (int64_t j = 0; j < width; j++)
            to[j] += from[j];)
    }
}
