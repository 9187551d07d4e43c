/* The kernels of elementwise.h for one type of number. Included by isa.h, which says NUMBER and REAL. What
 * vectorisers do not see is written with vectors of 8. */

/* The constants of exp, of either type. */
#define PICK(of_float, of_double) (sizeof(REAL) == 4 ? of_float : of_double)
#define MANTISSA PICK(23, 52)
#define EXPONENT_BIAS PICK(127, 1023)
#define EXP_DEGREE PICK(7, 13)
#define EXP_LEAST PICK(-87, -708) /* below, exp is less than a normal number */
#define LN2_HIGH (REAL)PICK(0.693359375, 6.93145751953125e-1)
#define LN2_LOW (REAL)PICK(-2.12194440e-4, 1.42860682030941723212e-6)
#define ROOT(x) PICK(__builtin_sqrtf(x), __builtin_sqrt(x))

typedef REAL TYPED(vector) __attribute__((vector_size(8 * sizeof(REAL))));
typedef REAL TYPED(loose_vector) __attribute__((vector_size(8 * sizeof(REAL)), aligned(1), may_alias));
typedef TYPED(integer) TYPED(integers) __attribute__((vector_size(8 * sizeof(REAL))));

static void TYPED(adam)(const struct adam *a)
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

static void TYPED(pack_positive)(const void *x, int64_t count, uint8_t *bits)
{
    const LOOSE *const flat = (const LOOSE *)x;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const TYPED(integers) positive = *(const TYPED(loose_vector) *)(flat + i) > 0;
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

/* A row goes through the cache once, rows in eights, whose bits are whole bytes. */
static void TYPED(activate)(const struct activate *a)
{
    const REAL scale = (REAL)a->scale;
    const LOOSE *const bias = (const LOOSE *)a->bias;
    const uint32_t threshold = (uint32_t)a->threshold;
    const int64_t width = a->width;
    const int all = a->threshold > UINT32_MAX, relu = a->relu;
    for (int64_t i = 0; i < a->rows; i++) {
        const LOOSE *x = (const LOOSE *)a->x + i * a->ldx;
        LOOSE *const y = (LOOSE *)a->y + i * a->ldy;
        const uint32_t low = a->low ? a->low[i] : 0, odd = a->low ? a->odd[i] : 0, *const columns = a->columns;
        if (bias) {
            LOOP(for (int64_t j = 0; j < width; j++)
                y[j] = x[j] + bias[j];)
            x = y;
        }
        if (a->low && relu)
            LOOP(for (int64_t j = 0; j < width; j++) {
                const REAL positive = x[j] < 0 ? 0 : x[j];
                y[j] = positive * (all || KEEP(low, odd, columns[j]) < threshold ? scale : 0);
            })
        else if (a->low)
            LOOP(for (int64_t j = 0; j < width; j++)
                y[j] = x[j] * (all || KEEP(low, odd, columns[j]) < threshold ? scale : 0);)
        else
            LOOP(for (int64_t j = 0; j < width; j++)
                y[j] = relu && x[j] < 0 ? 0 : x[j];)
        const int64_t first = i / 8 * 8 * width;
        if (a->bits && (i % 8 == 7 || i == a->rows - 1))
            TYPED(pack_positive)((const LOOSE *)a->y + first, (i + 1) * width - first, a->bits + first / 8);
    }
}

static void TYPED(keep_positive)(void *x, int64_t count, const uint8_t *bits, double scale)
{
    LOOSE *const flat = (LOOSE *)x;
    const TYPED(integers) place = {128, 64, 32, 16, 8, 4, 2, 1};
    const TYPED(vector) factor = (TYPED(vector)){0} + (REAL)scale;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const TYPED(integers) kept = (((TYPED(integers)){0} + bits[i / 8]) & place) != 0;
        *(TYPED(loose_vector) *)(flat + i) *= (TYPED(vector))(kept & (TYPED(integers))factor);
    }
    for (int k = 0; i + k < count; k++)
        flat[i + k] *= bits[i / 8] >> (7 - k) & 1 ? (REAL)scale : 0;
}

typedef TYPED(word) TYPED(words) __attribute__((vector_size(8 * sizeof(REAL))));

/* exp in place, of numbers at most 0, to two units in the last place; 0 where less than a normal number. */
static INLINE void TYPED(exponential)(TYPED(vector) *inout)
{
    const TYPED(vector) x = *inout;
    static const REAL coefficients[] = {/* 1 / k! */
        1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800,
        1. / 39916800, 1. / 479001600, 1. / 6227020800};
    /* Adding it rounds to an integer, which the last bits then hold. */
    const REAL shift = (REAL)((TYPED(word))3 << (MANTISSA - 1));
    const TYPED(vector) shifted = x * (REAL)1.44269504088896340736 + shift, n = shifted - shift;
    const TYPED(vector) rest = x - n * LN2_HIGH - n * LN2_LOW;
    TYPED(vector) power = (TYPED(vector)){0} + coefficients[EXP_DEGREE];
    UNROLL
    for (int k = EXP_DEGREE - 1; k >= 0; k--)
        power = power * rest + coefficients[k];
    const TYPED(words) two_to_n = ((TYPED(words))shifted + EXPONENT_BIAS) << MANTISSA;
    *inout = (TYPED(vector))((TYPED(integers))(power * (TYPED(vector))two_to_n) & ~(x < EXP_LEAST));
}

/* Up to 8 numbers; what is missing is minus infinity, whose exponential is 0. */
static INLINE void TYPED(load_some)(TYPED(vector) *v, const LOOSE *x, int64_t count)
{
    if (count >= 8)
        *v = *(const TYPED(loose_vector) *)x;
    else
        for (int k = 0; k < 8; k++)
            (*v)[k] = k < count ? x[k] : -(REAL)__builtin_inf();
}

static INLINE void TYPED(store_some)(LOOSE *y, const TYPED(vector) *v, int64_t count)
{
    if (count >= 8)
        *(TYPED(loose_vector) *)y = *v;
    else
        for (int k = 0; k < count; k++)
            y[k] = (*v)[k];
}

static void TYPED(cross_entropy)(const struct cross_entropy *e)
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
        TYPED(vector) most, some, sum = {0};
        TYPED(load_some)(&most, x, width);
        for (int64_t j = 8; j < width; j += 8) {
            TYPED(load_some)(&some, x + j, width - j);
            const TYPED(integers) more = some > most;
            most = (TYPED(vector))((more & (TYPED(integers))some) | (~more & (TYPED(integers))most));
        }
        REAL highest = most[0], total = 0;
        for (int k = 1; k < 8; k++)
            highest = most[k] > highest ? most[k] : highest;
        own[i] = x[e->labels[i]] - highest;
        for (int64_t j = 0; j < width; j += 8) {
            TYPED(load_some)(&some, x + j, width - j);
            some -= highest;
            TYPED(exponential)(&some);
            TYPED(store_some)(y + j, &some, width - j);
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

#define FACTORS 64 /* of a lane's product, each at most 2: those of eight lanes are below 2^1023 */

/* log(1 + exp x) is max(x, 0) + log(1 + exp -|x|), and a sum of logarithms that of a product. */
static void TYPED(binary_cross_entropy)(const struct binary_cross_entropy *e)
{
    const int64_t width = e->width;
    const TYPED(vector) one = (TYPED(vector)){0} + 1;
    const TYPED(words) sign = (TYPED(words)){0} + ((TYPED(word))1 << (8 * sizeof(REAL) - 1));
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
        const uint8_t *const labels = e->labels + i * width;
        TYPED(vector) plain = {0};
        doubles8 product = (doubles8){0} + 1;
        double total = 0;
        for (int64_t j = 0; j < width; j += 8) {
            TYPED(vector) z, small;
            TYPED(load_some)(&z, x + j, width - j);
            bytes8 bytes = {0};
            for (int k = 0; k < 8 && j + k < width; k++)
                bytes[k] = (int8_t)labels[j + k];
            const TYPED(integers) mine = __builtin_convertvector(bytes, TYPED(integers)) != 0, above = z > 0;
            small = (TYPED(vector))((TYPED(words))z | sign);
            TYPED(exponential)(&small);
            plain += (TYPED(vector))(above & (TYPED(integers))z) - (TYPED(vector))(mine & (TYPED(integers))z);
            product *= __builtin_convertvector(small, doubles8) + 1;
            const TYPED(vector) upper =
                (TYPED(vector))((above & (TYPED(integers))one) | (~above & (TYPED(integers))small));
            z = (upper / (small + one) - (TYPED(vector))(mine & (TYPED(integers))one)) * (REAL)e->share;
            TYPED(store_some)(y + j, &z, width - j);
            if (j / 8 % FACTORS == FACTORS - 1 || j + 8 >= width) {
                for (int k = 1; k < 8; k++)
                    product[0] *= product[k];
                total += log(product[0]);
                product = (doubles8){0} + 1;
            }
        }
        for (int k = 0; k < 8; k++)
            total += plain[k];
        e->losses[i] = total;
    }
}

#undef FACTORS

static void TYPED(scatter_add)(const void *x, int64_t ldx, const int64_t *rows, int64_t count, int64_t width,
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
