/* The passes of edges.h for one type of number, written with the vectors of 8 and the exponential of
 * elementwise_number.h. Included by isa.h, which says NUMBER and REAL. */

#define ENTRY_AT(array, p) (wide ? ((const wide_int *)(array))[p] : ((const narrow_int *)(array))[p])
#define LANE8(x) (*(const TYPED(loose_vector) *)(x))
#define LANE4(x) (*(const TYPED(loose_vector4) *)(x))
#define MOST_SLOTS (LANES_FULL < 8 ? 4 : 8) /* vectors of a panel that stay in registers */

typedef REAL TYPED(vector1) __attribute__((vector_size(sizeof(REAL))));
typedef REAL TYPED(loose_vector1) __attribute__((vector_size(sizeof(REAL)), aligned(1), may_alias));
typedef REAL TYPED(vector4) __attribute__((vector_size(4 * sizeof(REAL))));
typedef REAL TYPED(loose_vector4) __attribute__((vector_size(4 * sizeof(REAL)), aligned(1), may_alias));
typedef TYPED(vector) TYPED(vector8);
typedef TYPED(loose_vector) TYPED(loose_vector8);
typedef TYPED(integers) TYPED(integers8);
typedef TYPED(integer) TYPED(integers4) __attribute__((vector_size(4 * sizeof(REAL))));
static const TYPED(integers4) TYPED(lane_numbers4) = {0, 1, 2, 3};
static const TYPED(integers8) TYPED(lane_numbers8) = {0, 1, 2, 3, 4, 5, 6, 7};

/* -- dot products ------------------------------------------------------------------------------------------ */

/* One vector of the sums of eight vectors: neighbours are added within 128 bits, then beyond. */
static INLINE void TYPED(sums_of_8)(TYPED(vector) *v)
{
    UNROLL
    for (int k = 0; k < 8; k += 2)
        v[k] = SHUFFLE(v[k], v[k + 1], 0, 8, 2, 10, 4, 12, 6, 14) + SHUFFLE(v[k], v[k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    UNROLL
    for (int k = 0; k < 8; k += 4)
        v[k] = SHUFFLE(v[k], v[k + 2], 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(v[k], v[k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    v[0] = SHUFFLE(v[0], v[4], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(v[0], v[4], 4, 5, 6, 7, 12, 13, 14, 15);
}

/* The last vector of a width that is no multiple overlaps the one before; what that has had counts as 0. */
#define LAST_LANES(lanes, product, rest)                                                                     \
    ((TYPED(vector##lanes))((TYPED(integers##lanes))(product) & (TYPED(lane_numbers##lanes) >= (TYPED(integer))((lanes) - (rest)))))

static INLINE REAL TYPED(dot)(const LOOSE *x, const LOOSE *y, int64_t width)
{
    if (width >= 8) {
        TYPED(vector8) lanes = LANE8(x) * LANE8(y);
        int64_t j = 8;
        for (; j + 8 <= width; j += 8)
            lanes += LANE8(x + j) * LANE8(y + j);
        if (j < width)
            lanes += LAST_LANES(8, LANE8(x + width - 8) * LANE8(y + width - 8), width - j);
        const REAL even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]); /* short chains: heads are narrow */
        const REAL odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
        return even + odd;
    }
    if (width >= 4) {
        TYPED(vector4) lanes = LANE4(x) * LANE4(y);
        if (width > 4)
            lanes += LAST_LANES(4, LANE4(x + width - 4) * LANE4(y + width - 4), width - 4);
        return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    }
    REAL sum = 0;
    for (int64_t j = 0; j < width; j++)
        sum += x[j] * y[j];
    return sum;
}

/* Eight heads of `width` columns each, the first of which begins at x and y. */
static INLINE void TYPED(dots_of_8)(const LOOSE *x, const LOOSE *y, int64_t width, LOOSE *out)
{
    TYPED(vector) lanes[8];
    UNROLL
    for (int k = 0; k < 8; k++) {
        lanes[k] = LANE8(x + k * width) * LANE8(y + k * width);
        for (int64_t c = 8; c < width; c += 8)
            lanes[k] += LANE8(x + k * width + c) * LANE8(y + k * width + c);
    }
    TYPED(sums_of_8)(lanes);
    *(TYPED(loose_vector) *)out = lanes[0];
}

/* even: the width of all heads, a multiple of 8; or 0. */
static INLINE void TYPED(dots_of_rows)(const struct edge_dots *d, const int64_t even)
{
    const void *const pointers = d->at.pointers, *const indices = d->at.indices;
    const int64_t rows = d->at.rows, heads = d->at.heads, ldv = d->ldv, *const bounds = d->bounds;
    const int64_t width = bounds[heads], eights = even ? heads / 8 * 8 : 0;
    const int wide = d->at.wide;
    const int64_t total = ENTRY_AT(pointers, rows);
    const LOOSE *const v = (const LOOSE *)d->v;
    LOOSE *out = (LOOSE *)d->out;
    int64_t e = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t stop = ENTRY_AT(pointers, i + 1);
        const LOOSE *const x = (const LOOSE *)d->u + i * d->ldu;
        for (; e < stop; e++, out += heads) {
            const LOOSE *const y = v + ENTRY_AT(indices, e) * ldv;
            if (e + GATHER_AHEAD < total) {
                const LOOSE *const later = v + ENTRY_AT(indices, e + GATHER_AHEAD) * ldv;
                for (int64_t c = 0; c < width; c += CACHE_LINE / (int64_t)sizeof(REAL))
                    __builtin_prefetch(later + c);
            }
            for (int64_t k = 0; k < eights; k += 8)
                TYPED(dots_of_8)(x + k * even, y + k * even, even, out + k);
            for (int64_t k = eights; k < heads; k++)
                out[k] = TYPED(dot)(x + bounds[k], y + bounds[k], bounds[k + 1] - bounds[k]);
        }
    }
}

/* The width of all heads where that is one, a multiple of 8; else 0. */
static int64_t TYPED(even_width)(const int64_t *bounds, int64_t heads)
{
    const int64_t even = heads > 0 ? bounds[1] : 0;
    for (int64_t k = 0; k <= heads; k++)
        if (bounds[k] != k * even)
            return 0;
    return even % 8 ? 0 : even;
}

static void TYPED(edge_dots)(const struct edge_dots *d)
{
    const int64_t even = TYPED(even_width)(d->bounds, d->at.heads);
    if (even == 8)
        TYPED(dots_of_rows)(d, 8);
    else
        TYPED(dots_of_rows)(d, even);
}

/* -- products with a number per head ----------------------------------------------------------------------- */

/* A panel of vectors, each of which lies within a head; the last ones may be the same one. */
struct TYPED(slots) {
    int64_t columns[8], heads[8];
};

/* EVEN: slots are neighbours, a head each. NARROW: heads have a column each, so that a slot has as many heads
 * as lanes. */
enum { TYPED(EVEN) = 1, TYPED(NARROW) };
#define AT_SLOT(s) (kind ? panel->columns[0] + (s) * lanes : columns[s])
#define HEAD_OF(s) (kind == TYPED(EVEN) ? panel->heads[0] + (s) : kind ? AT_SLOT(s) : heads_of[s])

#define PRODUCTS(lanes_)                                                                                     \
    static INLINE void TYPED(products_##lanes_)(const struct edge_products *p,                                \
                                                const struct TYPED(slots) *panel, const int slots,            \
                                                const int kind)                                               \
    {                                                                                                        \
        const int lanes = lanes_, wide = p->at.wide;                                                          \
        const void *const pointers = p->at.pointers, *const indices = p->at.indices, *const order = p->order; \
        const int64_t rows = p->at.rows, heads = p->at.heads, ldb = p->ldb, total = ENTRY_AT(pointers, rows);    \
        const LOOSE *const values = (const LOOSE *)p->values, *const B = (const LOOSE *)p->B;                 \
        int64_t e = 0, columns[8], heads_of[8];                                                               \
        for (int s = 0; s < 8; s++)                                                                           \
            columns[s] = panel->columns[s], heads_of[s] = panel->heads[s];                                    \
        for (int64_t i = 0; i < rows; i++) {                                                                  \
            const int64_t stop = ENTRY_AT(pointers, i + 1);                                                      \
            LOOSE *const c = (LOOSE *)p->C + i * p->ldc;                                                      \
            TYPED(vector##lanes_) sums[8];                                                                    \
            UNROLL                                                                                           \
            for (int s = 0; s < slots; s++)                                                                   \
                sums[s] = (TYPED(vector##lanes_)){0};                                                         \
            for (; e < stop; e++) {                                                                           \
                const LOOSE *const b = B + ENTRY_AT(indices, e) * ldb;                                           \
                const LOOSE *const w = values + (order ? ENTRY_AT(order, e) : e) * heads;                        \
                if (e + GATHER_AHEAD < total) {                                                               \
                    const LOOSE *const later = B + ENTRY_AT(indices, e + GATHER_AHEAD) * ldb;                    \
                    UNROLL                                                                                   \
                    for (int s = 0; s < slots; s += kind ? CACHE_LINE / (lanes * (int)sizeof(REAL)) : 1)      \
                        __builtin_prefetch(later + AT_SLOT(s));                                               \
                    if (order)                                                                                \
                        __builtin_prefetch(values + ENTRY_AT(order, e + GATHER_AHEAD) * heads + HEAD_OF(0));     \
                }                                                                                            \
                UNROLL                                                                                       \
                for (int s = 0; s < slots; s++) {                                                             \
                    const TYPED(loose_vector##lanes_) *const row = (const void *)(b + AT_SLOT(s));            \
                    if (kind == TYPED(NARROW))                                                                \
                        sums[s] += *(const TYPED(loose_vector##lanes_) *)(w + HEAD_OF(s)) * *row;             \
                    else                                                                                      \
                        sums[s] += w[HEAD_OF(s)] * *row;                                                      \
                }                                                                                            \
            }                                                                                                \
            UNROLL                                                                                           \
            for (int s = 0; s < slots; s++) /* all loads before the stores: slots may overlap */              \
                if (p->accumulate)                                                                            \
                    sums[s] += *(const TYPED(loose_vector##lanes_) *)(c + AT_SLOT(s));                        \
            UNROLL                                                                                           \
            for (int s = 0; s < slots; s++)                                                                   \
                *(TYPED(loose_vector##lanes_) *)(c + AT_SLOT(s)) = sums[s];                                   \
        }                                                                                                    \
    }
PRODUCTS(1)
PRODUCTS(4)
PRODUCTS(8)

#define KERNEL_OF(lanes, count, kind)                                                                        \
    static void TYPED(products_##lanes##_##count##_##kind)(const struct edge_products *p,                     \
                                                           const struct TYPED(slots) *panel)                  \
    {                                                                                                        \
        TYPED(products_##lanes)(p, panel, count, kind);                                                       \
    }
#define KERNELS_OF(lanes, kind)                                                                              \
    KERNEL_OF(lanes, 1, kind) KERNEL_OF(lanes, 2, kind) KERNEL_OF(lanes, 4, kind) KERNEL_OF(lanes, 8, kind)
KERNELS_OF(1, 0) KERNELS_OF(4, 0) KERNELS_OF(8, 0) KERNELS_OF(8, 1)
KERNEL_OF(1, 1, 2) KERNEL_OF(4, 1, 2) KERNEL_OF(8, 1, 2)

#define PICKED(lanes, count, kind) TYPED(products_##lanes##_##count##_##kind)(p, panel)
#define PICK_SLOTS(lanes, kind)                                                                              \
    (slots == 1 ? PICKED(lanes, 1, kind)                                                                     \
                : slots == 2 ? PICKED(lanes, 2, kind) : slots == 4 ? PICKED(lanes, 4, kind) : PICKED(lanes, 8, kind))

/* Compute a panel of `count` slots, filled up to a power of two with the last one again. */
static void TYPED(run_slots)(const struct edge_products *p, struct TYPED(slots) *panel, int count, int64_t lanes)
{
    int slots = 1, even = lanes == 8;
    while (slots < count)
        slots *= 2;
    for (int s = 0; s < count; s++)
        even &= panel->columns[s] == panel->columns[0] + 8 * s && panel->heads[s] == panel->heads[0] + s;
    for (int s = count; s < 8; s++)
        panel->columns[s] = panel->columns[count - 1], panel->heads[s] = panel->heads[count - 1];
    if (lanes == 8 && even && slots == count)
        PICK_SLOTS(8, 1);
    else if (lanes == 8)
        PICK_SLOTS(8, 0);
    else if (lanes == 4)
        PICK_SLOTS(4, 0);
    else
        PICK_SLOTS(1, 0);
}

/* Heads of a column each, eight, four or one at a time. */
static void TYPED(narrow_products)(const struct edge_products *p)
{
    for (int64_t k = 0, lanes; k < p->at.heads; k += lanes) {
        const struct TYPED(slots) at = {{k}, {k}}, *const panel = &at;
        const int64_t left = p->at.heads - k;
        lanes = left >= 8 ? 8 : left >= 4 ? 4 : 1;
        if (lanes == 8)
            PICKED(8, 1, 2);
        else if (lanes == 4)
            PICKED(4, 1, 2);
        else
            PICKED(1, 1, 2);
    }
}

/* The last vector of a head overlaps the one before. They are of one panel: the second of two panels would add
 * to what the first has added to. */
static void TYPED(edge_products)(const struct edge_products *p)
{
    struct TYPED(slots) panel;
    int64_t before = 0;
    int count = 0, narrow = p->bounds[0] == 0;
    for (int64_t k = 0; k < p->at.heads; k++)
        narrow &= p->bounds[k + 1] == k + 1;
    if (narrow) {
        TYPED(narrow_products)(p);
        return;
    }
    for (int64_t k = 0; k < p->at.heads; k++) {
        const int64_t first = p->bounds[k], width = p->bounds[k + 1] - first;
        const int64_t lanes = width >= 8 ? 8 : width >= 4 ? 4 : 1, vectors = (width + lanes - 1) / lanes;
        for (int64_t n = 0; n < vectors; n++) {
            const int pair = n == vectors - 2 && width % lanes;
            if (count > 0 && (lanes != before || count + pair >= MOST_SLOTS)) {
                TYPED(run_slots)(p, &panel, count, before);
                count = 0;
            }
            panel.columns[count] = first + (n < vectors - 1 ? n * lanes : width - lanes);
            panel.heads[count++] = k;
            before = lanes;
        }
    }
    if (count)
        TYPED(run_slots)(p, &panel, count, before);
}

/* -- softmax over rows ------------------------------------------------------------------------------------- */

/* Numbers of a row in memory are those of its entries in turn. Of 1, 2 or 4 heads a vector has several entries
 * (`flat`); of others a chunk of up to 8 heads of one. */
#define FLAT(heads) ((heads) == 1 || (heads) == 2 || (heads) == 4)

static INLINE void TYPED(larger)(TYPED(vector) *most, const TYPED(vector) *some)
{
    const TYPED(vector) x = *some;
    const TYPED(integers) more = (x > *most) | (x != x); /* what is not a number stays */
    *most = (TYPED(vector))((more & (TYPED(integers))x) | (~more & (TYPED(integers)) * most));
}

/* Fewer numbers than 8, with `room` numbers until the array ends: as a whole vector where that is within. Lanes
 * behind them get `other`, and what is stored there stays. */
static INLINE void TYPED(load_part)(TYPED(vector) *v, const LOOSE *x, int64_t count, int64_t room, REAL other)
{
    if (count >= 8)
        *v = LANE8(x);
    else if (room >= 8) {
        const TYPED(integers) own = TYPED(lane_numbers8) < (TYPED(integer))count;
        const TYPED(vector) rest = (TYPED(vector)){0} + other;
        *v = (TYPED(vector))((own & (TYPED(integers))LANE8(x)) | (~own & (TYPED(integers))rest));
    } else
        for (int k = 0; k < 8; k++)
            (*v)[k] = k < count ? x[k] : other;
}

static INLINE void TYPED(store_part)(LOOSE *y, const TYPED(vector) *v, int64_t count, int64_t room)
{
    if (count < 8 && room >= 8) {
        const TYPED(integers) own = TYPED(lane_numbers8) < (TYPED(integer))count;
        *(TYPED(loose_vector) *)y = (TYPED(vector))((own & (TYPED(integers)) * v) | (~own & (TYPED(integers))LANE8(y)));
    } else
        TYPED(store_some)(y, v, count);
}

static INLINE void TYPED(leaky)(TYPED(vector) *x, REAL slope)
{
    const TYPED(integers) positive = *x > 0;
    *x = (TYPED(vector))((positive & (TYPED(integers)) * x) | (~positive & (TYPED(integers))(*x * slope)));
}

/* Which vectors of a row follow each other: heads k0.. of `count` entries, `step` numbers apart, `size` numbers
 * in the last one or, of chunks, in each. */
struct TYPED(walk) {
    int64_t count, step, last, room; /* room: numbers from the row's first to the end of all rows */
    int each;                        /* numbers of all vectors but the last */
};

static INLINE void TYPED(walk_of)(struct TYPED(walk) *w, int64_t entries, int64_t heads, int64_t k0, int64_t room)
{
    w->room = room;
    if (FLAT(heads)) {
        const int64_t numbers = entries * heads;
        w->count = (numbers + 7) / 8, w->step = 8, w->last = numbers - 8 * (w->count - 1), w->each = 8;
    } else {
        const int64_t left = heads - k0;
        w->count = entries, w->step = heads, w->last = left < 8 ? left : 8, w->each = (int)w->last;
    }
}
#define NUMBERS_OF(w, n) ((n) < (w).count - 1 ? (w).each : (w).last)

/* Up to 8 numbers, one for each head of a vector. */
static INLINE void TYPED(load_heads)(TYPED(vector) *v, const LOOSE *x, int64_t heads, int64_t k0)
{
    for (int l = 0; l < 8; l++)
        (*v)[l] = FLAT(heads) ? x[l % heads] : k0 + l < heads ? x[k0 + l] : 0;
}

static INLINE void TYPED(add_heads)(LOOSE *x, const TYPED(vector) *v, int64_t heads, int64_t k0)
{
    for (int l = 0; l < 8; l++)
        if (FLAT(heads))
            x[l % heads] += (*v)[l];
        else if (k0 + l < heads)
            x[k0 + l] += (*v)[l];
}

/* One to seven numbers, behind which another array may begin. */
static INLINE void TYPED(load_few)(TYPED(vector) *v, const LOOSE *x, int64_t count)
{
    TYPED(vector) numbers = {0};
    UNROLL
    for (int l = 0; l < 7; l++)
        if (l < count)
            numbers[l] = x[l];
    *v = numbers;
}

/* The numbers of v for a vector of entries, so many of them; 0 behind. */
static INLINE void TYPED(load_ends)(TYPED(vector) *x, const struct edge_softmax *s, int64_t e, int64_t count,
                                    const int64_t heads)
{
    const int wide = s->at.wide;
    const LOOSE *const v = (const LOOSE *)s->v;
    TYPED(vector) numbers = {0};
    UNROLL
    for (int l = 0; l < 8; l++)
        if (l < count)
            numbers[l] = v[ENTRY_AT(s->at.indices, e + l / heads) * s->ldv + l % heads];
    *x = numbers;
}

/* x[e] = leaky ReLU of u + v[j] for the entries of a row. */
static INLINE void TYPED(scores_of_row)(const struct edge_softmax *s, int64_t i, int64_t e, int64_t stop, LOOSE *x,
                                        int64_t room, const int64_t heads)
{
    const int wide = s->at.wide;
    const LOOSE *const u = (const LOOSE *)s->u + i * s->ldu;
    const REAL slope = (REAL)s->slope;
    TYPED(vector) own = {0}, sum = {0};
    if (FLAT(heads)) {
        const int64_t whole = (stop - e) * heads;
        TYPED(load_heads)(&own, u, heads, 0);
        for (; e < stop; e += 8 / heads, x += 8) {
            const int64_t left = (stop - e) * heads;
            if (left >= 8)
                TYPED(load_ends)(&sum, s, e, 8, heads);
            else
                TYPED(load_ends)(&sum, s, e, left, heads);
            sum += own;
            TYPED(leaky)(&sum, slope);
            TYPED(store_part)(x, &sum, left, left + room - whole);
        }
        return;
    }
    const int64_t room_of_u = (s->at.rows - 1 - i) * s->ldu + heads;
    for (; e < stop; e++, x += heads, room -= heads) {
        const LOOSE *const other = (const LOOSE *)s->v + ENTRY_AT(s->at.indices, e) * s->ldv;
        for (int64_t k = 0; k < heads; k += 8) {
            TYPED(load_part)(&own, u + k, heads - k, room_of_u - k, 0);
            if (heads - k >= 8)
                sum = LANE8(other + k);
            else
                TYPED(load_few)(&sum, other + k, heads - k);
            sum += own;
            TYPED(leaky)(&sum, slope);
            TYPED(store_part)(x + k, &sum, heads - k, room - k);
        }
    }
}

static INLINE void TYPED(maxima_of_row)(const LOOSE *x, int64_t entries, int64_t room, LOOSE *maxima,
                                        const int64_t heads)
{
    for (int64_t k0 = 0; k0 < heads; k0 += 8) {
        struct TYPED(walk) w;
        TYPED(walk_of)(&w, entries, heads, k0, room);
        TYPED(vector) most = (TYPED(vector)){0} - (REAL)__builtin_inf(), some = {0};
        for (int64_t n = 0; n < w.count; n++) {
            const int64_t at = k0 + n * w.step;
            TYPED(load_part)(&some, x + at, NUMBERS_OF(w, n), w.room - at, -(REAL)__builtin_inf());
            TYPED(larger)(&most, &some);
        }
        for (int l = 0; l < 8; l++) {
            LOOSE *const of = maxima + (FLAT(heads) ? l % heads : k0 + l);
            if ((FLAT(heads) || k0 + l < heads) && (most[l] > *of || most[l] != most[l]))
                *of = most[l];
        }
    }
}

static INLINE void TYPED(powers_of_row)(LOOSE *x, int64_t entries, int64_t room, const LOOSE *maxima, LOOSE *sums,
                                        const int64_t heads)
{
    for (int64_t k0 = 0; k0 < heads; k0 += 8) {
        struct TYPED(walk) w;
        TYPED(walk_of)(&w, entries, heads, k0, room);
        TYPED(vector) most = {0}, some = {0}, sum = {0};
        TYPED(load_heads)(&most, maxima, heads, k0);
        for (int64_t n = 0; n < w.count; n++) {
            const int64_t numbers = NUMBERS_OF(w, n), at = k0 + n * w.step;
            TYPED(load_part)(&some, x + at, numbers, w.room - at, -(REAL)__builtin_inf());
            some -= most;
            TYPED(exponential)(&some);
            TYPED(store_part)(x + at, &some, numbers, w.room - at);
            sum += some;
        }
        TYPED(add_heads)(sums, &sum, heads, k0);
    }
}

static INLINE void TYPED(shares_of_row)(LOOSE *x, int64_t entries, int64_t room, const LOOSE *sums,
                                        const int64_t heads)
{
    for (int64_t k0 = 0; k0 < heads; k0 += 8) {
        struct TYPED(walk) w;
        TYPED(walk_of)(&w, entries, heads, k0, room);
        TYPED(vector) share = {0}, some = {0};
        TYPED(load_heads)(&share, sums, heads, k0);
        share = 1 / share;
        for (int64_t n = 0; n < w.count; n++) {
            const int64_t numbers = NUMBERS_OF(w, n), at = k0 + n * w.step;
            TYPED(load_part)(&some, x + at, numbers, w.room - at, 0);
            some *= share;
            TYPED(store_part)(x + at, &some, numbers, w.room - at);
        }
    }
}

/* Bits `at` on of `bits`, zeros so far. */
static void TYPED(pack_signs)(const LOOSE *x, int64_t count, uint8_t *bits, int64_t at)
{
    int64_t n = 0;
    for (; n < count && (at + n) % 8; n++)
        bits[(at + n) / 8] |= (uint8_t)((x[n] > 0) << (7 - (at + n) % 8));
    const int64_t whole = (count - n) / 8 * 8;
    TYPED(pack_positive)(x + n, whole, bits + (at + n) / 8);
    for (n += whole; n < count; n++)
        bits[(at + n) / 8] |= (uint8_t)((x[n] > 0) << (7 - (at + n) % 8));
}

static INLINE void TYPED(softmax_of_rows)(const struct edge_softmax *s, const int64_t heads)
{
    const int wide = s->at.wide;
    const int64_t total = ENTRY_AT(s->at.pointers, s->at.rows);
    for (int64_t i = 0, e = 0; i < s->at.rows; i++) {
        const int64_t begin = e, entries = ENTRY_AT(s->at.pointers, i + 1) - begin, room = (total - begin) * heads;
        LOOSE *const x = (LOOSE *)s->x + begin * heads;
        LOOSE *const maxima = (LOOSE *)s->maxima + i * heads, *const sums = (LOOSE *)s->sums + i * heads;
        e += entries;
        if (entries == 0)
            continue;
        if (s->phases & EDGE_SCORES) {
            if (s->u)
                TYPED(scores_of_row)(s, i, begin, e, x, room, heads);
            if (s->signs)
                TYPED(pack_signs)(x, entries * heads, s->signs, s->first + begin * heads);
            TYPED(maxima_of_row)(x, entries, room, maxima, heads);
        }
        if (s->phases & EDGE_POWERS)
            TYPED(powers_of_row)(x, entries, room, maxima, sums, heads);
        if (s->phases & EDGE_SHARES)
            TYPED(shares_of_row)(x, entries, room, sums, heads);
    }
}

#define BY_HEADS(run, heads_, ...)                                                                           \
    switch (heads_) {                                                                                        \
    case 1: run(__VA_ARGS__, 1); break;                                                                      \
    case 2: run(__VA_ARGS__, 2); break;                                                                      \
    case 4: run(__VA_ARGS__, 4); break;                                                                      \
    case 8: run(__VA_ARGS__, 8); break;                                                                      \
    default: run(__VA_ARGS__, heads_);                                                                       \
    }

static void TYPED(edge_softmax)(const struct edge_softmax *s)
{
    BY_HEADS(TYPED(softmax_of_rows), s->at.heads, s)
}

/* 1 where bits at, at + 1, ... are set, else the slope. */
static INLINE void TYPED(slopes_at)(TYPED(vector) *v, const uint8_t *bits, int64_t at, REAL slope)
{
    const TYPED(integers) place = {128, 64, 32, 16, 8, 4, 2, 1};
    const int byte = (bits[at / 8] << 8 | bits[at / 8 + 1]) >> (8 - at % 8) & 255;
    const TYPED(integers) set = (((TYPED(integers)){0} + byte) & place) != 0;
    const TYPED(vector) one = (TYPED(vector)){0} + 1, other = (TYPED(vector)){0} + slope;
    *v = (TYPED(vector))((set & (TYPED(integers))one) | (~set & (TYPED(integers))other));
}

static INLINE void TYPED(gradient_of_row)(const struct edge_softmax_back *s, int64_t begin, int64_t entries,
                                          int64_t room, const LOOSE *sums, LOOSE *totals, const int64_t heads)
{
    const LOOSE *const p = (const LOOSE *)s->p + begin * heads;
    LOOSE *const x = (LOOSE *)s->x + begin * heads;
    for (int64_t k0 = 0; k0 < heads; k0 += 8) {
        struct TYPED(walk) w;
        TYPED(walk_of)(&w, entries, heads, k0, room);
        TYPED(vector) sum = {0}, share = {0}, some = {0}, slopes, total = {0};
        TYPED(load_heads)(&sum, sums, heads, k0);
        for (int64_t n = 0; n < w.count; n++) {
            const int64_t at = k0 + n * w.step, numbers = NUMBERS_OF(w, n);
            TYPED(load_part)(&share, p + at, numbers, w.room - at, 0);
            TYPED(load_part)(&some, x + at, numbers, w.room - at, 0);
            some = share * (some - sum);
            if (s->signs) {
                TYPED(slopes_at)(&slopes, s->signs, s->first + begin * heads + at, (REAL)s->slope);
                some *= slopes;
            }
            TYPED(store_part)(x + at, &some, numbers, w.room - at);
            total += some;
        }
        if (totals)
            TYPED(add_heads)(totals, &total, heads, k0);
    }
}

static INLINE void TYPED(sums_of_row)(const struct edge_softmax_back *s, int64_t begin, int64_t entries,
                                      int64_t room, LOOSE *sums, const int64_t heads)
{
    const LOOSE *const p = (const LOOSE *)s->p + begin * heads, *const x = (const LOOSE *)s->x + begin * heads;
    for (int64_t k0 = 0; k0 < heads; k0 += 8) {
        struct TYPED(walk) w;
        TYPED(walk_of)(&w, entries, heads, k0, room);
        TYPED(vector) sum = {0}, share = {0}, some = {0};
        for (int64_t n = 0; n < w.count; n++) {
            const int64_t numbers = NUMBERS_OF(w, n), at = k0 + n * w.step;
            TYPED(load_part)(&share, p + at, numbers, w.room - at, 0);
            TYPED(load_part)(&some, x + at, numbers, w.room - at, 0);
            sum += share * some;
        }
        TYPED(add_heads)(sums, &sum, heads, k0);
    }
}

static INLINE void TYPED(softmax_back_of_rows)(const struct edge_softmax_back *s, const int64_t heads)
{
    const int wide = s->at.wide;
    const int64_t total = ENTRY_AT(s->at.pointers, s->at.rows);
    for (int64_t i = 0, e = 0; i < s->at.rows; i++) {
        const int64_t begin = e, entries = ENTRY_AT(s->at.pointers, i + 1) - begin, room = (total - begin) * heads;
        LOOSE *const sums = (LOOSE *)s->sums + i * heads;
        e += entries;
        if (entries > 0 && s->phases & EDGE_SUMS)
            TYPED(sums_of_row)(s, begin, entries, room, sums, heads);
        if (entries > 0 && s->phases & EDGE_GRADIENT)
            TYPED(gradient_of_row)(s, begin, entries, room, sums,
                                   s->totals ? (LOOSE *)s->totals + i * heads : NULL, heads);
    }
}

static void TYPED(edge_softmax_back)(const struct edge_softmax_back *s)
{
    BY_HEADS(TYPED(softmax_back_of_rows), s->at.heads, s)
}
