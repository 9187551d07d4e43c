/* The passes of additive attention in edges.h for one type of number: scores with a bit for each entry and column, and
 * sums of slopes by these bits. Included by isa.h after edge_passes.h. Eight columns are a vector, and a byte. */

static const TYPED(integers) TYPED(bit_of_lane) = {128, 64, 32, 16, 8, 4, 2, 1};

/* -- scores ------------------------------------------------------------------------------------------------ */

/* a leaky ReLU(x + y) of 8 columns, and which sums are above 0. */
static INLINE uint8_t TYPED(scores_of_8)(const LOOSE *x, const LOOSE *y, const LOOSE *a, REAL slope, TYPED(vector) *out)
{
    const TYPED(vector) sum = LANE8(x) + LANE8(y), less = slope * sum;
    const TYPED(integers) positive = sum > 0;
    union {
        bytes8 bytes;
        uint64_t word;
    } mask = {.bytes = __builtin_convertvector(positive, bytes8)};
    *out = LANE8(a) * (TYPED(vector))((positive & (TYPED(integers))sum) | (~positive & (TYPED(integers))less));
    return (uint8_t)((mask.word & 0x0101010101010101u) * 0x8040201008040201u >> 56); /* as in pack_positive */
}

/* Fewer than 8 columns; the other lanes are 0. */
static INLINE uint8_t TYPED(scores_of_few)(const LOOSE *x, const LOOSE *y, const LOOSE *a, REAL slope, int64_t count,
                                           TYPED(vector) *out)
{
    int bits = 0;
    *out = (TYPED(vector)){0};
    for (int64_t l = 0; l < count; l++) {
        const REAL sum = x[l] + y[l];
        (*out)[l] = a[l] * (sum > 0 ? sum : slope * sum);
        bits |= (sum > 0) << (7 - l);
    }
    return (uint8_t)bits;
}

static INLINE REAL TYPED(sum_of_8)(const TYPED(vector) *v)
{
    return (((*v)[0] + (*v)[4]) + ((*v)[2] + (*v)[6])) + (((*v)[1] + (*v)[5]) + ((*v)[3] + (*v)[7]));
}

/* even: the width of all heads, a multiple of 8; or 0. */
static INLINE void TYPED(scores_of_entry)(const struct edge_scores *s, const LOOSE *x, const LOOSE *y, LOOSE *out,
                                          uint8_t *signs, const int64_t even)
{
    const int64_t heads = s->at.heads, width = s->width, *const bounds = s->bounds;
    const LOOSE *const a = (const LOOSE *)s->a;
    const REAL slope = (REAL)s->slope;
    TYPED(vector) sums[8], some;
    int64_t k = 0, c = 0;
    for (; even && k + 8 <= heads; k += 8) {
        UNROLL
        for (int h = 0; h < 8; h++) {
            sums[h] = (TYPED(vector)){0};
            for (const int64_t stop = c + even; c < stop; c += 8) {
                signs[c / 8] = TYPED(scores_of_8)(x + c, y + c, a + c, slope, &some);
                sums[h] += some;
            }
        }
        TYPED(sums_of_8)(sums);
        *(TYPED(loose_vector) *)(out + k) = sums[0];
    }
    for (int64_t h = k; h < heads; h++)
        out[h] = 0;
    sums[0] = (TYPED(vector)){0};
    for (; c < width; c += 8) { /* the columns of heads k on; heads may begin within a byte */
        if (c + 8 <= width)
            signs[c / 8] = TYPED(scores_of_8)(x + c, y + c, a + c, slope, &some);
        else
            signs[c / 8] = TYPED(scores_of_few)(x + c, y + c, a + c, slope, width - c, &some);
        while (bounds[k + 1] <= c)
            k++;
        const int whole = bounds[k + 1] >= c + 8 || k + 1 == heads;
        if (whole)
            sums[0] += some;
        if (!whole || bounds[k + 1] <= c + 8) {
            out[k] += TYPED(sum_of_8)(&sums[0]);
            sums[0] = (TYPED(vector)){0};
        }
        for (int64_t l = 0; !whole && l < 8 && c + l < width; l++) {
            while (bounds[k + 1] <= c + l)
                k++;
            out[k] += some[l];
        }
    }
}

static INLINE void TYPED(scores_by_width)(const struct edge_scores *s, const int64_t even)
{
    const void *const pointers = s->at.pointers, *const indices = s->at.indices;
    const int64_t rows = s->at.rows, heads = s->at.heads, ldv = s->ldv, bytes = (s->width + 7) / 8;
    const int wide = s->at.wide;
    const int64_t total = ENTRY_AT(pointers, rows);
    const LOOSE *const v = (const LOOSE *)s->v;
    for (int64_t i = 0, e = 0; i < rows; i++) {
        const int64_t stop = ENTRY_AT(pointers, i + 1);
        const LOOSE *const x = (const LOOSE *)s->u + i * s->ldu;
        for (; e < stop; e++) {
            if (e + GATHER_AHEAD < total) {
                const LOOSE *const later = v + ENTRY_AT(indices, e + GATHER_AHEAD) * ldv;
                for (int64_t c = 0; c < s->width; c += CACHE_LINE / (int64_t)sizeof(REAL))
                    __builtin_prefetch(later + c);
            }
            TYPED(scores_of_entry)
            (s, x, v + ENTRY_AT(indices, e) * ldv, (LOOSE *)s->out + e * heads, s->signs + e * bytes, even);
        }
    }
}

static void TYPED(edge_scores)(const struct edge_scores *s)
{
    const int64_t even = TYPED(even_width)(s->bounds, s->at.heads);
    if (even == 8)
        TYPED(scores_by_width)(s, 8);
    else
        TYPED(scores_by_width)(s, even);
}

/* -- sums of slopes ---------------------------------------------------------------------------------------- */

/* Columns 8 first to 8 (first + slots), of which `heads_of` are the heads; alike: all 8 of a byte have one. */
static INLINE void TYPED(slopes_of_rows)(const struct edge_slopes *p, int64_t first, const int64_t *heads_of,
                                         const int slots, const int alike)
{
    const void *const pointers = p->at.pointers, *const order = p->order;
    const int64_t rows = p->at.rows, heads = p->at.heads, bytes = (p->width + 7) / 8, left = p->width - 8 * first;
    const int wide = p->at.wide;
    const int64_t total = ENTRY_AT(pointers, rows);
    const TYPED(vector) one = (TYPED(vector)){0} + 1, slope = (TYPED(vector)){0} + (REAL)p->slope;
    const uint8_t *const signs = p->signs + first;
    for (int64_t i = 0, e = 0; i < rows; i++) {
        const int64_t stop = ENTRY_AT(pointers, i + 1);
        LOOSE *const c = (LOOSE *)p->C + i * p->ldc + 8 * first;
        TYPED(vector) sums[8];
        UNROLL
        for (int s = 0; s < slots; s++)
            sums[s] = (TYPED(vector)){0};
        for (; e < stop; e++) {
            const LOOSE *const w = (const LOOSE *)p->values + e * heads;
            const uint8_t *const bits = signs + (order ? ENTRY_AT(order, e) : e) * bytes;
            if (order && e + GATHER_AHEAD < total)
                __builtin_prefetch(signs + ENTRY_AT(order, e + GATHER_AHEAD) * bytes);
            UNROLL
            for (int s = 0; s < slots; s++) {
                const TYPED(integers) set = (((TYPED(integers)){0} + bits[s]) & TYPED(bit_of_lane)) != 0;
                TYPED(vector) some = (TYPED(vector))((set & (TYPED(integers))one) | (~set & (TYPED(integers))slope));
                if (alike)
                    some *= w[heads_of[8 * s]];
                else
                    for (int l = 0; l < 8; l++)
                        some[l] *= w[heads_of[8 * s + l]];
                sums[s] += some;
            }
        }
        UNROLL
        for (int s = 0; s < slots; s++) {
            const int64_t columns = left - 8 * s;
            if (columns >= 8 && p->accumulate)
                *(TYPED(loose_vector) *)(c + 8 * s) += sums[s];
            else if (columns >= 8)
                *(TYPED(loose_vector) *)(c + 8 * s) = sums[s];
            else
                for (int64_t l = 0; l < columns; l++)
                    c[8 * s + l] = p->accumulate ? c[8 * s + l] + sums[s][l] : sums[s][l];
        }
    }
}

#define SLOPES(slots)                                                                                        \
    (alike ? TYPED(slopes_of_rows)(p, first, heads_of, slots, 1)                                             \
           : TYPED(slopes_of_rows)(p, first, heads_of, slots, 0))

static void TYPED(edge_slopes)(const struct edge_slopes *p)
{
    const int64_t bytes = (p->width + 7) / 8;
    int64_t head = 0, heads_of[64];
    for (int64_t first = 0, slots; first < bytes; first += slots) {
        int alike = 1;
        slots = bytes - first >= 8 ? 8 : bytes - first >= 4 ? 4 : bytes - first >= 2 ? 2 : 1;
        for (int64_t l = 0; l < 8 * slots; l++) {
            while (8 * first + l < p->width && p->bounds[head + 1] <= 8 * first + l)
                head++;
            heads_of[l] = head;
            alike &= head == heads_of[l / 8 * 8];
        }
        if (slots == 8)
            SLOPES(8);
        else if (slots == 4)
            SLOPES(4);
        else if (slots == 2)
            SLOPES(2);
        else
            SLOPES(1);
    }
}
