/* Runs every host kernel on arrays of exactly their size that start at an odd address, so that the address
 * sanitizer sees each access beyond an end and the undefined-behaviour sanitizer each one that assumes
 * alignment; compares with plain loops in double. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregate.h"
#include "edges.h"
#include "elementwise.h"
#include "entries.h"
#include "neighbours.h"
#include "sample.h"
#include "spgemm.h"
#include "spmm.h"
#include "volume.h"

static uint64_t state = 1;
static long checks;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0 * 2 - 1;
}

/* An array of its own heap block, one byte after the block's start. */
static void *array(size_t bytes)
{
    return (char *)malloc(bytes + 1) + 1;
}

static void release(void *array)
{
    if (array)
        free((char *)array - 1);
}

static void put(void *a, int wide, int64_t at, double value)
{
    if (wide)
        memcpy((char *)a + 8 * at, &value, 8);
    else
        memcpy((char *)a + 4 * at, &(float){(float)value}, 4);
}

static double get(const void *a, int wide, int64_t at)
{
    float narrow;
    double value;
    if (wide) {
        memcpy(&value, (const char *)a + 8 * at, 8);
        return value;
    }
    memcpy(&narrow, (const char *)a + 4 * at, 4);
    return narrow;
}

static void put_integer(void *a, int wide, int64_t at, int64_t value)
{
    if (wide)
        memcpy((char *)a + 8 * at, &value, 8);
    else
        memcpy((char *)a + 4 * at, &(int32_t){(int32_t)value}, 4);
}

static void *numbers(int wide, int64_t count)
{
    void *a = array((size_t)count * (wide ? 8 : 4));
    for (int64_t i = 0; i < count; i++)
        put(a, wide, i, uniform());
    return a;
}

/* A matrix whose rows have 0, 1, 2, 0, a few, ... entries, one enough for several chains, and whose last row
 * is long. */
static void product(const struct spmm_set *set, int wide, int64_t width, unsigned options)
{
    enum { ROWS = 13, COLUMNS = 47 };
    const int64_t lengths[ROWS] = {0, 1, 2, 0, 5, COLUMNS, 1, 1, 0, 3, 0, 1, 35};
    struct spmm s = {.rows = ROWS, .width = width, .wide = wide, .threads = 1};
    for (int i = 0; i < ROWS; i++)
        s.nonzeros += lengths[i];
    s.wide_indices = options & 1, s.accumulate = options >> 1 & 1;
    s.ahead = options & 4 ? -1 : (int64_t)(options >> 3 & 3) * 4;
    s.ldb = width + (options >> 5 & 1) * 3, s.ldc = width + (options >> 6 & 1) * 2;
    const size_t integer = s.wide_indices ? 8 : 4,
                 result = (size_t)((ROWS - 1) * s.ldc + width) * (wide ? 8 : 4);
    void *pointers = array((ROWS + 1) * integer), *indices = array((size_t)s.nonzeros * integer);
    int64_t at = 0;
    for (int64_t i = 0; i < ROWS; i++) {
        put_integer(pointers, s.wide_indices, i, at);
        for (int64_t e = 0; e < lengths[i]; e++, at++)
            put_integer(indices, s.wide_indices, at, (i + e * 3) % COLUMNS);
    }
    put_integer(pointers, s.wide_indices, ROWS, at);
    void *values = numbers(wide, s.nonzeros), *B = numbers(wide, (COLUMNS - 1) * s.ldb + width);
    void *C = numbers(wide, (ROWS - 1) * s.ldc + width), *before = array(result);
    memcpy(before, C, result);
    s.pointers = pointers, s.indices = indices, s.values = values, s.B = B, s.C = C;
    spmm_run(set, &s);

    at = 0;
    for (int64_t i = 0; i < ROWS; at += lengths[i++])
        for (int64_t k = 0; k < width; k++, checks++) {
            double want = s.accumulate ? get(before, wide, i * s.ldc + k) : 0,
                   magnitude = s.accumulate + 1e-30;
            for (int64_t e = 0; e < lengths[i]; e++) {
                const double b = get(B, wide, (i + e * 3) % COLUMNS * s.ldb + k);
                const double term = get(values, wide, at + e) * b;
                want += term, magnitude += fabs(term);
            }
            const double got = get(C, wide, i * s.ldc + k);
            if (!(fabs(got - want) <= (wide ? 1e-14 : 4e-6) * magnitude)) {
                printf("%s wide %d width %ld options %u: row %ld column %ld is %g, not %g\n", set->name, wide,
                       (long)width, options, (long)i, (long)k, got, want);
                exit(1);
            }
        }
    void *all[] = {pointers, indices, values, B, C, before};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        release(all[a]);
}

static void expect(int good, const char *what, int64_t count)
{
    checks++;
    if (!good) {
        printf("%s of %ld numbers is wrong\n", what, (long)count);
        exit(1);
    }
}

static int64_t get_integer(const void *a, int wide, int64_t at)
{
    int32_t narrow;
    int64_t value;
    if (wide)
        return memcpy(&value, (const char *)a + 8 * at, 8), value;
    return memcpy(&narrow, (const char *)a + 4 * at, 4), narrow;
}

/* The best of rows of 0, 1, 2, ... entries, of whole numbers and some NaN, and where their gradients go. */
static void aggregates(const struct spmm_set *set, int wide, int64_t width, unsigned options)
{
    enum { ROWS = 9, COLUMNS = 11, ENTRIES = ROWS * (ROWS - 1) / 2 };
    const int wide_indices = options & 1, valued = options >> 1 & 1, plus = options >> 2 & 1,
              least = options >> 3 & 1, merge = options >> 4 & 1, coded = options >> 5 & 1;
    const int64_t ldb = width + (merge ? 3 : 0), ldt = width + (coded ? 2 : 0), ldc = width + valued;
    const size_t integer = wide_indices ? 8 : 4, number = wide ? 8 : 4;
    void *pointers = array((ROWS + 1) * integer), *indices = array(ENTRIES * integer);
    void *values = numbers(wide, ENTRIES), *B = numbers(wide, (COLUMNS - 1) * ldb + width);
    void *T = numbers(wide, (ROWS - 1) * ldt + width), *C = array((size_t)((ROWS - 1) * ldc + width) * number);
    void *codes = array(COLUMNS * number), *places = array(COLUMNS * number);
    double before[ROWS][256];
    for (int64_t i = 0; i <= ROWS; i++)
        put_integer(pointers, wide_indices, i, i * (i - 1) / 2);
    for (int64_t i = 0, at = 0; i < ROWS; i++)
        for (int64_t e = 0; e < i; e++, at++)
            put_integer(indices, wide_indices, at, (i + e) % COLUMNS), put(values, wide, at, (double)(at % 3) - 1);
    for (int64_t j = 0; j < COLUMNS; j++)
        for (int64_t k = 0; k < width; k++)
            put(B, wide, j * ldb + k, (j + k) % 13 == 7 ? NAN : (double)((j * 5 + k) % 4) - 2);
    for (int64_t j = 0; j < COLUMNS; j++)
        put_integer(codes, wide, j, j * 4 % COLUMNS), put_integer(places, wide, j * 4 % COLUMNS, j);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < width; k++) {
            before[i][k] = (double)((i + k) % 3) - 1;
            put(T, wide, i * ldt + k, before[i][k]), put_integer(C, wide, i * ldc + k, 3);
        }
    const struct aggregate a = {.rows = ROWS, .width = width, .wide = wide, .wide_indices = wide_indices, .threads = 1,
                                .pointers = pointers, .indices = indices, .values = valued ? values : NULL, .B = B,
                                .codes = coded ? codes : NULL, .first = 2, .T = T, .C = C, .ldb = ldb, .ldt = ldt,
                                .ldc = ldc, .plus = plus, .least = least, .merge = merge};
    aggregate_run(set, &a);
    double *sums = calloc((size_t)(COLUMNS * width), sizeof *sums);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < width; k++) {
            double best = merge ? before[i][k] : least ? INFINITY : -INFINITY;
            int64_t code = merge ? 3 : -1;
            for (int64_t p = i * (i - 1) / 2; p < i * (i + 1) / 2; p++) {
                const int64_t j = get_integer(indices, wide_indices, p);
                const double b = get(B, wide, j * ldb + k), v = get(values, wide, p);
                const double x = !valued ? b : plus ? v + b : v * b;
                const int64_t own = coded ? get_integer(codes, wide, j) : j + 2;
                const int better = least ? x < best : x > best, equal = x == best || (isnan(x) && isnan(best));
                if (better || (isnan(x) && !isnan(best)) || (equal && (code < 0 || own < code)))
                    best = x, code = own;
            }
            const double got = get(T, wide, i * ldt + k);
            expect((got == best || (isnan(got) && isnan(best))) && get_integer(C, wide, i * ldc + k) == code, "best",
                   width);
            const int64_t j = code < 0 ? -1 : !coded ? code - 2 : get_integer(places, wide, code) - 2;
            int64_t p = j < 0 || j >= 7 ? -1 : i * (i - 1) / 2;
            for (; p >= 0 && p < i * (i + 1) / 2 && get_integer(indices, wide_indices, p) != j + (coded ? 2 : 0); p++)
                ;
            if (p >= 0)
                sums[j * width + k] += get(T, wide, i * ldt + k);
        }
    void *out = numbers(wide, 7 * width);
    const struct aggregate_back back = {.rows = ROWS, .width = width, .columns = 7, .wide = wide, .G = T, .C = C,
                                        .wide_indices = wide_indices, .places = coded ? places : NULL, .first = 2,
                                        .out = out, .ldg = ldt, .ldc = ldc, .ldo = width};
    aggregate_back_run(&back);
    for (int64_t at = 0; at < 7 * width; at++)
        expect(fabs(get(out, wide, at) - sums[at]) < 1e-5 || isnan(sums[at]) || isinf(sums[at]), "gradient", width);
    void *all[] = {pointers, indices, values, B, T, C, codes, places, out};
    for (size_t one = 0; one < sizeof all / sizeof *all; one++)
        release(all[one]);
    free(sums);
}

static void passes(const struct elementwise_set *set, int wide, int64_t rows, int64_t width)
{
    const int64_t count = rows * width;
    void *x = numbers(wide, count), *y = numbers(wide, count), *m = numbers(wide, count),
         *v = numbers(wide, count);
    uint32_t *low = malloc((size_t)rows * 4), *odd = malloc((size_t)rows * 4),
             *columns = malloc((size_t)width * 4);
    uint8_t *bits = malloc((size_t)(count + 7) / 8);
    int64_t *order = malloc((size_t)rows * 8);
    for (int64_t i = 0; i < rows; i++)
        low[i] = (uint32_t)i * 77777, odd[i] = (uint32_t)i * 2 + 12345, order[i] = (i * 5 + 3) % rows;
    for (int64_t j = 0; j < width; j++)
        columns[j] = (uint32_t)j * 1234567;
    for (int relu = 0; relu < 2; relu++) {
        set->activate(&(struct activate){
            rows, width, width, width, x, NULL, y, low, odd, columns, 1u << 31, 2.0, relu, bits});
        for (int64_t i = 0; i < count; i++) {
            uint32_t hash = (columns[i % width] ^ low[i / width]) * odd[i / width];
            hash = (hash ^ hash >> 16) * 0x846CA68Bu;
            const double from = get(x, wide, i), want = hash < 1u << 31 && !(relu && from < 0) ? 2 * from : 0;
            expect(get(y, wide, i) == want, "dropout", count);
            expect((bits[i / 8] >> (7 - i % 8) & 1) == (want > 0), "bits of dropout", count);
        }
    }
    set->pack_positive(x, count, bits);
    set->keep_positive(y, count, bits, 3.0);
    for (int64_t i = 0; i < count; i++)
        expect((bits[i / 8] >> (7 - i % 8) & 1) == (get(x, wide, i) > 0) &&
                   (get(x, wide, i) > 0 || get(y, wide, i) == 0),
               "bits", count);
    for (int64_t i = 0; i < count; i++)
        put(v, wide, i, fabs(get(v, wide, i)));
    set->adam(&(struct adam){count, y, m, v, x, 1, 0, 0.9, 0.999, 0.01, 0.5, 1e-8});
    gather_rows(x, width * (wide ? 8 : 4), order, 1, rows, width * (wide ? 8 : 4), m, width * (wide ? 8 : 4));
    for (int64_t i = 0; i < count; i++)
        put(v, wide, i, 0);
    set->scatter_add(m, width, order, rows, width, v, width);
    int64_t *labels = malloc((size_t)rows * 8), *some = malloc((size_t)rows * 8), listed = 0;
    for (int64_t i = 0; i < rows; i++)
        if (i % 3 != 1)
            some[listed] = i, labels[listed++] = (i * 7) % width;
    void *sums = numbers(wide, listed), *own = numbers(wide, listed);
    set->cross_entropy(
        &(struct cross_entropy){rows, width, width, width, listed, x, y, some, labels, sums, own, 1.0});
    for (int64_t i = 0, l = 0; i < rows; i++) {
        double largest = -1, sum = 0;
        for (int64_t j = 0; j < width; j++)
            largest = fmax(largest, get(x, wide, i * width + j));
        for (int64_t j = 0; j < width; j++)
            sum += exp(get(x, wide, i * width + j) - largest);
        for (int64_t j = 0; j < width; j++) {
            double want = exp(get(x, wide, i * width + j) - largest) / sum - (l < listed && labels[l] == j);
            if (l == listed || some[l] != i)
                want = 0;
            expect(fabs(get(y, wide, i * width + j) - want) <= 1e-6, "cross-entropy", count);
        }
        l += l < listed && some[l] == i;
    }
    uint8_t *flags = malloc((size_t)(listed * width) + 1);
    for (int64_t i = 0; i < listed * width; i++)
        flags[i] = (uint8_t)(i % 5 == 2);
    double *losses = calloc((size_t)listed + 1, 8);
    set->binary_cross_entropy(
        &(struct binary_cross_entropy){rows, width, width, width, listed, x, y, some, flags, losses, 1.0});
    for (int64_t i = 0, l = 0; i < rows; i++) {
        const int there = l < listed && some[l] == i;
        double loss = 0;
        for (int64_t j = 0; j < width; j++) {
            const double z = get(x, wide, i * width + j), label = there ? flags[l * width + j] : 0;
            loss += there ? log1p(exp(z)) - z * label : 0;
            const double want = there ? 1 / (1 + exp(-z)) - label : 0;
            expect(fabs(get(y, wide, i * width + j) - want) <= 1e-6, "binary cross-entropy", count);
        }
        expect(!there || fabs(losses[l] - loss) <= 1e-5 * (1 + loss), "binary losses", count);
        l += there;
    }
    free(flags), free(losses);
    release(sums), release(own), free(labels), free(some);
    int64_t permutation = 1;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < i; k++)
            permutation &= order[i] != order[k];
    expect(!permutation || memcmp(v, x, (size_t)count * (wide ? 8 : 4)) == 0, "gather and scatter", count);
    void *all[] = {x, y, m, v};
    for (int a = 0; a < 4; a++)
        release(all[a]);
    free(low), free(odd), free(columns), free(bits), free(order);
}

/* Additive attention over the entries of `at`, count of them, with `columns` columns for each head, and some more for
 * the last: scores, their signs, and sums of slopes with the signs in any order. */
static void additive(const struct edge_set *set, int wide, const struct edge_pattern *at, int64_t columns, void *order,
                     int64_t count)
{
    enum { NODES = 9, MORE = 3 };
    const int64_t rows = at->rows, heads = at->heads, f = heads * columns + MORE, bytes = (f + 7) / 8;
    int64_t *bounds = malloc((size_t)(heads + 1) * 8);
    uint8_t *signs = malloc((size_t)(count * bytes));
    for (int64_t k = 0; k <= heads; k++)
        bounds[k] = k < heads ? k * columns : f;
    void *u = numbers(wide, rows * f), *v = numbers(wide, NODES * f), *a = numbers(wide, f);
    void *out = numbers(wide, count * heads), *C = numbers(wide, rows * f);
    set->scores(&(struct edge_scores){*at, f, f, f, u, v, a, bounds, 0.5, out, signs});
    for (int64_t i = 0; i < rows; i++)
        for (int64_t e = i * (i - 1) / 2; e < i * (i + 1) / 2; e++)
            for (int64_t k = 0; k < heads; k++) {
                double score = 0;
                for (int64_t c = bounds[k]; c < bounds[k + 1]; c++) {
                    const double sum = get(u, wide, i * f + c) + get(v, wide, e * 5 % NODES * f + c);
                    score += get(a, wide, c) * (sum > 0 ? sum : sum / 2);
                    if (fabs(sum) > 1e-6)
                        expect((signs[e * bytes + c / 8] >> (7 - c % 8) & 1) == (sum > 0), "signs of scores", f);
                }
                expect(fabs(get(out, wide, e * heads + k) - score) <= 1e-4 * (1 + fabs(score)), "scores", f);
            }
    for (int add = 0; add < 2; add++)
        set->slopes(&(struct edge_slopes){*at, f, f, out, add ? order : NULL, signs, bounds, 0.5, C, add});
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0, k = 0; c < f; c++) {
            double sum = 0;
            while (bounds[k + 1] <= c)
                k++;
            for (int64_t e = i * (i - 1) / 2; e < i * (i + 1) / 2; e++)
                for (int other = 0; other < 2; other++) {
                    const uint8_t *const of = signs + (other ? count - 1 - e : e) * bytes;
                    sum += get(out, wide, e * heads + k) * (of[c / 8] >> (7 - c % 8) & 1 ? 1 : 0.5);
                }
            expect(fabs(get(C, wide, i * f + c) - sum) <= 1e-4 * (1 + fabs(sum)), "slopes", f);
        }
    void *arrays[] = {u, v, a, out, C};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++)
        release(arrays[n]);
    free(bounds), free(signs);
}

/* Passes over entries of rows that have 0, 1, 2, ... of them, with `heads` heads of so many columns, which have
 * columns of no head on both sides. */
static void over_entries(const struct edge_set *set, int wide, int wide_indices, int64_t heads, int64_t columns)
{
    enum { ROWS = 6, NODES = 9, FIRST = 3 };
    const int64_t count = ROWS * (ROWS - 1) / 2, all = count * heads, f = heads * columns + 2;
    const size_t integer = wide_indices ? 8 : 4, bytes = (size_t)(FIRST + all) / 8 + 2;
    void *pointers = array((ROWS + 1) * integer), *indices = array((size_t)count * integer);
    void *order = array((size_t)count * integer);
    int64_t *bounds = malloc((size_t)(heads + 1) * 8);
    uint8_t *signs = calloc(bytes, 1);
    for (int64_t i = 0; i <= ROWS; i++)
        put_integer(pointers, wide_indices, i, i * (i - 1) / 2); /* the first row has none */
    for (int64_t e = 0; e < count; e++)
        put_integer(indices, wide_indices, e, e * 5 % NODES), put_integer(order, wide_indices, e, count - 1 - e);
    for (int64_t k = 0; k <= heads; k++)
        bounds[k] = 1 + k * columns;
    void *u = numbers(wide, ROWS * f), *v = numbers(wide, NODES * f), *C = numbers(wide, ROWS * f);
    void *x = numbers(wide, all), *maxima = numbers(wide, ROWS * heads), *sums = numbers(wide, ROWS * heads);
    const struct edge_pattern at = {ROWS, heads, pointers, indices, wide_indices};
    set->dots(&(struct edge_dots){at, f, f, u, v, bounds, x});
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t e = i * (i - 1) / 2; e < i * (i + 1) / 2; e++)
            for (int64_t k = 0; k < heads; k++) {
                double sum = 0;
                for (int64_t c = bounds[k]; c < bounds[k + 1]; c++)
                    sum += get(u, wide, i * f + c) * get(v, wide, e * 5 % NODES * f + c);
                expect(fabs(get(x, wide, e * heads + k) - sum) <= 1e-4, "dots", all);
            }
    for (int add = 0; add < 2; add++)
        set->products(&(struct edge_products){at, f, f, x, add ? order : NULL, v, bounds, C, add});
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < heads; k++)
            for (int64_t c = bounds[k]; c < bounds[k + 1]; c++) {
                double sum = 0;
                for (int64_t e = i * (i - 1) / 2; e < i * (i + 1) / 2; e++)
                    sum += (get(x, wide, e * heads + k) + get(x, wide, (count - 1 - e) * heads + k)) *
                           get(v, wide, e * 5 % NODES * f + c);
                expect(fabs(get(C, wide, i * f + c) - sum) <= 1e-4 * (1 + fabs(sum)), "products", all);
            }
    for (int64_t n = 0; n < ROWS * heads; n++)
        put(maxima, wide, n, -INFINITY), put(sums, wide, n, 0);
    set->softmax(&(struct edge_softmax){at, f, f, FIRST, u, v, x, maxima, sums, signs, 0.5, 7});
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < heads; k++) {
            double powers = 0;
            for (int64_t e = i * (i - 1) / 2, n; e < i * (i + 1) / 2; e++) {
                const double sum = get(u, wide, i * f + k) + get(v, wide, e * 5 % NODES * f + k);
                powers += exp(sum > 0 ? sum : sum / 2), n = FIRST + e * heads + k;
                expect((signs[n / 8] >> (7 - n % 8) & 1) == (get(u, wide, i * f + k) > -get(v, wide, e * 5 % NODES * f + k)),
                       "signs", all);
            }
            for (int64_t e = i * (i - 1) / 2; e < i * (i + 1) / 2; e++) {
                const double sum = get(u, wide, i * f + k) + get(v, wide, e * 5 % NODES * f + k);
                const double want = exp(sum > 0 ? sum : sum / 2) / powers;
                expect(fabs(get(x, wide, e * heads + k) - want) <= 1e-5, "softmax", all);
            }
        }
    void *d = numbers(wide, all), *before = numbers(wide, all);
    memcpy(before, d, (size_t)all * (wide ? 8 : 4));
    for (int64_t n = 0; n < ROWS * heads; n++)
        put(maxima, wide, n, 0), put(sums, wide, n, 0);
    set->softmax_back(&(struct edge_softmax_back){at, FIRST, x, d, sums, maxima, signs, 0.5, 3});
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < heads; k++) {
            double mean = 0, total = 0;
            for (int64_t e = i * (i - 1) / 2; e < i * (i + 1) / 2; e++)
                mean += get(x, wide, e * heads + k) * get(before, wide, e * heads + k);
            for (int64_t e = i * (i - 1) / 2; e < i * (i + 1) / 2; e++) {
                const int64_t n = e * heads + k, bit = FIRST + n;
                const double slope = signs[bit / 8] >> (7 - bit % 8) & 1 ? 1 : 0.5;
                const double want = slope * get(x, wide, n) * (get(before, wide, n) - mean);
                expect(fabs(get(d, wide, n) - want) <= 1e-5, "softmax, back", all);
                total += want;
            }
            expect(fabs(get(maxima, wide, i * heads + k) - total) <= 1e-4, "totals", all);
        }
    additive(set, wide, &at, columns, order, count);
    void *arrays[] = {pointers, indices, order, u, v, C, x, maxima, sums, d, before};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++)
        release(arrays[a]);
    free(bounds), free(signs);
}

/* Refine random partitions of a random directed graph; its volumes must be those that counting finds. */
static void partition(int64_t nodes, int32_t parts, int64_t degree)
{
    int64_t *pointers = (int64_t *)malloc(8 * (size_t)(nodes + 1)), edges = 0;
    int32_t *columns = (int32_t *)malloc(4 * (size_t)(nodes * degree + 1)), *part = (int32_t *)malloc(4 * (size_t)nodes);
    int64_t *send = (int64_t *)malloc(8 * (size_t)parts), *receive = (int64_t *)malloc(8 * (size_t)parts);
    char *reached = (char *)malloc((size_t)parts);
    for (int64_t i = 0; i < nodes; i++) {
        pointers[i] = edges;
        for (int64_t j = i % 3; j < nodes && edges - pointers[i] < degree; j += 1 + (int64_t)((uniform() + 1) * (double)nodes / 4))
            columns[edges++] = (int32_t)j;
        part[i] = (int32_t)((uniform() + 1) / 2 * parts);
    }
    pointers[nodes] = edges;
    struct volume v = {.nodes = nodes, .parts = parts, .pointers = pointers, .columns = columns, .part = part, .send = send,
                       .receive = receive, .capacity = edges / parts + degree, .send_bound = 1.2, .receive_bound = 1.3,
                       .heat = 1, .work = 40 * (nodes + edges), .seed = (uint64_t)nodes};
    expect(volume_refine(&v) == 0, "volume", nodes);
    int64_t *sent = (int64_t *)calloc((size_t)parts, 8), *got = (int64_t *)calloc((size_t)parts, 8);
    for (int64_t j = 0; j < nodes; j++) {
        memset(reached, 0, (size_t)parts);
        for (int64_t i = 0; i < nodes; i++)
            for (int64_t e = pointers[i]; e < pointers[i + 1]; e++)
                reached[part[i]] |= columns[e] == j;
        for (int32_t p = 0; p < parts; p++) {
            sent[part[j]] += p != part[j] && reached[p];
            got[p] += p != part[j] && reached[p];
        }
    }
    for (int32_t p = 0; p < parts; p++)
        expect(sent[p] == send[p] && got[p] == receive[p], "volumes of parts", p);
    void *all[] = {pointers, columns, part, send, receive, reached, sent, got};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        free(all[a]);
}

/* Rows of every length to `longest`, weights of very different sizes and zeros between them: sizes, and the
 * weight that remains. */
static void rows_sampled(int64_t longest, int64_t count)
{
    int64_t entries = longest * (longest + 1) / 2;
    int64_t *pointers = malloc((size_t)(longest + 2) * sizeof *pointers);
    double *weights = malloc((size_t)(entries + 1) * sizeof *weights),
           *prefix = malloc((size_t)(longest + 1) * sizeof *prefix);
    uint64_t *keys = malloc((size_t)(longest + 1) * sizeof *keys);
    uint8_t *picked = array((size_t)entries);
    double *remaining = malloc((size_t)((longest + 1) * (count + 1)) * sizeof *remaining);
    pointers[0] = 0;
    for (int64_t r = 0; r <= longest; r++) {
        pointers[r + 1] = pointers[r] + r;
        keys[r] = (uint64_t)(uniform() * 1e18 + 2e18);
    }
    for (int64_t e = 0; e < entries; e++)
        weights[e] = uniform() > 0.6 ? 0 : exp(20 * uniform());
    struct sample s = {longest + 1, count, pointers, weights, keys, picked, remaining, prefix, 0};
    expect(sample_run(&s) == -1, "rows without fault", longest);
    for (int64_t r = 0; r <= longest; r++) {
        int64_t positive = 0, drawn = 0;
        double left = 0;
        for (int64_t e = pointers[r]; e < pointers[r + 1]; e++) {
            double w = weights[e];
            positive += w > 0;
            drawn += picked[e];
            left += picked[e] ? 0 : w;
            expect(picked[e] <= (w > 0), "no column of weight 0", e);
        }
        expect(drawn == (positive < count ? positive : count), "columns of a row", r);
        double told = remaining[r * (count + 1) + count];
        expect(positive <= count ? told == 0 : fabs(told - left) <= 1e-12 * left, "weight that remains", r);
    }
    weights[entries - 1] = -1;
    expect(sample_run(&s) == longest, "row with a fault", longest);
    release(picked);
    void *all[] = {pointers, weights, prefix, keys, remaining};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        free(all[a]);
}

/* Rows longest - 1, longest - 2, ... of a triangle: distinct, ascending, within their row, and the marks are
 * gone. */
static void rows_selected(int64_t longest, int64_t count)
{
    int64_t rows = longest, at = 0;
    int64_t *pointers = malloc((size_t)(longest + 1) * sizeof *pointers),
            *selected = malloc((size_t)rows * sizeof *selected);
    uint64_t *keys = malloc((size_t)rows * sizeof *keys);
    uint8_t *picked = array((size_t)longest);
    double *prefix = malloc((size_t)longest * sizeof *prefix);
    int64_t *positions = malloc((size_t)(rows * count + 1) * sizeof *positions),
            *counts = malloc((size_t)rows * sizeof *counts);
    memset(picked, 0, (size_t)longest);
    for (int64_t r = 0; r <= longest; r++)
        pointers[r] = r * (r + 1) / 2;
    for (int64_t r = 0; r < rows; r++) {
        selected[r] = rows - 1 - r;
        keys[r] = (uint64_t)(uniform() * 1e18 + 2e18);
    }
    struct sample_selected s = {rows, count, pointers, selected, keys, picked, prefix, positions, counts};
    int64_t total = sample_selected_run(&s);
    for (int64_t r = 0; r < rows; r++) {
        int64_t first = pointers[selected[r]], last = pointers[selected[r] + 1],
                wanted = last - first < count ? last - first : count;
        expect(counts[r] == wanted, "columns of a selected row", r);
        for (int64_t i = at; i < at + wanted; i++)
            expect(positions[i] >= (i > at ? positions[i - 1] + 1 : first) && positions[i] < last,
                   "position in its row", i);
        at += wanted;
    }
    expect(total == at, "positions in all", total);
    for (int64_t i = 0; i < longest; i++)
        expect(!picked[i], "mark taken back", i);
    release(picked);
    void *all[] = {pointers, selected, keys, prefix, positions, counts};
    for (size_t one = 0; one < sizeof all / sizeof *all; one++)
        free(all[one]);
}

/* Two blocks of ids below `n`, the first empty, the second of `count` ids with every third id as a seed. */
static void ids_renumbered(int64_t n, int64_t count)
{
    int64_t seeds = (n + 2) / 3, bounds[] = {0, 0, count}, seed_bounds[] = {0, 0, seeds}, added_bounds[3];
    int64_t *ids = malloc((size_t)(count + 1) * sizeof *ids),
            *seed = malloc((size_t)(seeds + 1) * sizeof *seed);
    int64_t *labels = malloc((size_t)(count + 1) * sizeof *labels),
            *added = malloc((size_t)(count + 1) * sizeof *added);
    int32_t *table = malloc((size_t)n * sizeof *table);
    for (int64_t i = 0; i < n; i++)
        table[i] = -1;
    for (int64_t i = 0; i < seeds; i++)
        seed[i] = 3 * i;
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int64_t)((uniform() + 1) / 2 * (double)n) % n;
    struct relabel r = {2, bounds, seed_bounds, ids, seed, 0, table, labels, added, added_bounds};
    relabel_run(&r);
    for (int64_t i = 0; i < count; i++)
        expect(labels[i] == (ids[i] % 3 ? -1 : ids[i] / 3), "position among the seeds", i);
    r.extend = 1;
    relabel_run(&r);
    for (int64_t i = 0; i < count; i++)
        expect(ids[i] == (labels[i] < seeds ? seed[labels[i]] : added[labels[i] - seeds]), "number of an id",
               i);
    for (int64_t i = 0; i < n; i++)
        expect(table[i] == -1, "table as it was", i);
    void *all[] = {ids, seed, labels, added, table};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        free(all[a]);
}

/* A triangle of `n` rows: row r has r columns, alternate ones from r % 2 on, modulo n. */
struct triangle {
    int64_t n, nonzeros;
    int64_t *pointers;
    void *indices, *values;
    int32_t *table;
};

static struct triangle triangle(int64_t n, int wide_indices, int wide)
{
    struct triangle t = {n, n * (n - 1) / 2, malloc((size_t)(n + 1) * 8), 0, 0, malloc((size_t)n * 4)};
    t.indices = malloc((size_t)t.nonzeros * (wide_indices ? 8 : 4));
    t.values = malloc((size_t)t.nonzeros * (wide ? 8 : 4));
    for (int64_t r = 0; r <= n; r++)
        t.pointers[r] = r * (r - 1) / 2;
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < r; i++) {
            put_integer(t.indices, wide_indices, t.pointers[r] + i, (r % 2 + 2 * i) % n);
            put(t.values, wide, t.pointers[r] + i, (double)(t.pointers[r] + i));
        }
    for (int64_t i = 0; i < n; i++)
        t.table[i] = -1;
    return t;
}

static void drop(struct triangle t)
{
    void *all[] = {t.pointers, t.indices, t.values, t.table};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        free(all[a]);
}

static int64_t integer_at(const void *a, int wide, int64_t at)
{
    return wide ? ((const int64_t *)a)[at] : ((const int32_t *)a)[at];
}

/* Blocks of no rows, of all rows from the last on, of two: entries are of their row, labels of their columns;
 * kept edges are those that lead to the columns. */
static void rows_at_once(int64_t n, int64_t count, int wide_indices, int wide)
{
    struct triangle t = triangle(n, wide_indices, wide);
    struct graph g = {n, t.nonzeros, t.pointers, t.indices, t.values, wide_indices, wide, t.table};
    int64_t bounds[] = {0, 0, n, n + 2}, rows = n + 2, longest;
    uint64_t keys[] = {1, 2, 3};
    int64_t *ids = malloc((size_t)rows * 8), *ends = malloc((size_t)(rows + 1) * 8), column_bounds[4];
    for (int64_t i = 0; i < rows; i++)
        ids[i] = i < n ? n - 1 - i : i - n;
    struct vertices v = {3, bounds, ids};
    expect(neighbours_count(&g, &v, count, ends, &longest) == -1 && longest == n - 1, "longest row", longest);
    int64_t total = ends[rows];
    uint8_t *picked = calloc((size_t)longest, 1);
    double *prefix = malloc((size_t)longest * 8);
    int64_t most = longest < count ? longest : count,
            *entries = malloc((size_t)(NEIGHBOURS_GATHERED + most) * 8), *columns = malloc((size_t)(rows + total) * 8);
    int32_t *labels = malloc((size_t)total * 4);
    void *values = malloc((size_t)total * (wide ? 8 : 4));
    struct neighbours d = {&g, &v, count, keys, picked, prefix, entries, labels, values, columns, column_bounds};
    expect(neighbours_run(&d) == -1, "columns are nodes", n);
    for (int64_t b = 0; b < 3; b++)
        for (int64_t r = bounds[b]; r < bounds[b + 1]; r++) {
            int64_t length = ids[r], before = -1;
            expect(ends[r + 1] - ends[r] == (length < count ? length : count), "entries of a row", r);
            for (int64_t e = ends[r]; e < ends[r + 1]; e++) {
                int64_t entry = (int64_t)get(values, wide, e);
                expect(entry > before && entry >= t.pointers[ids[r]] && entry < t.pointers[ids[r] + 1], "entry", e);
                expect(columns[column_bounds[b] + labels[e]] == integer_at(t.indices, wide_indices, entry), "label",
                       e);
                before = entry;
            }
            expect(columns[column_bounds[b] + r - bounds[b]] == ids[r], "rows first", r);
        }
    g.values = 0;
    expect(neighbours_run(&d) == -1, "without values", n);
    g.values = t.values;
    double *scale = malloc((size_t)rows * 8);
    for (int64_t i = 0; i < rows; i++)
        scale[i] = (double)(i + 1);
    int64_t room = 0;
    for (int64_t b = 0; b < 3; b++)
        for (int64_t r = bounds[b]; r < bounds[b + 1]; r++)
            room += ids[r] < bounds[b + 1] - bounds[b] ? ids[r] : bounds[b + 1] - bounds[b];
    int32_t *places = malloc((size_t)room * 4);
    void *kept = malloc((size_t)room * (wide ? 8 : 4));
    struct edges_kept k = {&g, &v, &v, scale, ends, places, kept};
    expect(edges_run(&k) == -1, "columns are nodes", n);
    for (int64_t b = 0, at = 0; b < 3; b++)
        for (int64_t r = bounds[b]; r < bounds[b + 1]; r++) {
            expect(ends[r] == at, "where a row begins", r);
            for (int64_t e = t.pointers[ids[r]]; e < t.pointers[ids[r] + 1]; e++)
                for (int64_t c = bounds[b]; c < bounds[b + 1]; c++)
                    if (ids[c] == integer_at(t.indices, wide_indices, e)) {
                        expect(places[at] == c - bounds[b], "place of a kept edge", at);
                        expect(get(kept, wide, at++) == (double)e * scale[c], "value of a kept edge", e);
                    }
        }
    put_integer(t.indices, wide_indices, t.nonzeros - 1, n);
    expect(edges_run(&k) == t.nonzeros - 1, "a column that is none", n);
    if (count >= longest)
        expect(neighbours_run(&d) == t.nonzeros - 1, "a column that is none", n);
    for (int64_t i = 0; i < n; i++)
        expect(t.table[i] == -1, "table as it was", i);
    drop(t);
    void *all[] = {ids, ends, picked, prefix, entries, columns, labels, values, scale, places, kept};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        free(all[a]);
}

/* Triangle by triangle, of `width` columns in all, beside sums in dense rows. */
static void sparse_product(int64_t n, int64_t width, int wide_indices, int wide)
{
    struct triangle A = triangle(n, 1, wide), B = triangle(n, wide_indices, wide);
    int64_t words = spgemm_words(width), room = 0;
    for (int64_t r = 0; r < n; r++) {
        int64_t products = 0;
        for (int64_t a = A.pointers[r]; a < A.pointers[r + 1]; a++)
            products += integer_at(A.indices, 1, a);
        room += products < width ? products : width;
    }
    void *b_pointers = malloc((size_t)(n + 1) * 8), *sums = calloc((size_t)width, wide ? 8 : 4);
    for (int64_t r = 0; r <= n; r++)
        put_integer(b_pointers, wide_indices, r, B.pointers[r]);
    for (int64_t e = 0; e < B.nonzeros; e++) /* spread over the columns */
        put_integer(B.indices, wide_indices, e, integer_at(B.indices, wide_indices, e) * (width / n));
    uint64_t *bits = calloc((size_t)words, 8);
    int64_t *pointers = malloc((size_t)(n + 1) * 8);
    void *indices = malloc((size_t)room * (wide_indices ? 8 : 4)), *values = malloc((size_t)room * (wide ? 8 : 4));
    struct spgemm s = {n,    width, A.pointers, A.indices, b_pointers, B.indices, A.values, B.values, wide_indices,
                       wide, sums,  bits,       pointers,  indices,    values};
    expect(spgemm_run(&s) == -1, "columns are there", n);
    double *dense = malloc((size_t)width * 8), *there = malloc((size_t)width * 8);
    for (int64_t r = 0, at = 0; r < n; r++) {
        memset(dense, 0, (size_t)width * 8);
        memset(there, 0, (size_t)width * 8);
        for (int64_t a = A.pointers[r]; a < A.pointers[r + 1]; a++)
            for (int64_t k = integer_at(A.indices, 1, a), e = B.pointers[k]; e < B.pointers[k + 1]; e++) {
                dense[integer_at(B.indices, wide_indices, e)] += get(A.values, wide, a) * get(B.values, wide, e);
                there[integer_at(B.indices, wide_indices, e)] = 1;
            }
        expect(pointers[r] == at, "where a row begins", r);
        for (int64_t c = 0; c < width; c++)
            if (there[c]) {
                expect(integer_at(indices, wide_indices, at) == c, "column", at);
                expect(fabs(get(values, wide, at++) - dense[c]) <= 1e-5 * dense[c], "sum", c);
            }
    }
    put_integer(B.indices, wide_indices, 0, width);
    expect(n < 3 || spgemm_run(&s) >= 0, "a column that is none", n);
    for (int64_t c = 0; c < width; c++)
        expect(get(sums, wide, c) == 0, "sums as they were", c);
    for (int64_t w = 0; w < words; w++)
        expect(bits[w] == 0, "bits as they were", w);
    drop(A);
    drop(B);
    void *all[] = {b_pointers, sums, bits, pointers, indices, values, dense, there};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        free(all[a]);
}

/* Records of each size, with keys of few and of many bits: ascending, those of one key in the order they had, and
 * then each key once, with its largest number. */
static void records_sorted(int64_t count, int size, int bits)
{
    char *records = array((size_t)(count * size)), *room = array((size_t)(count * size)), *sorted;
    for (int64_t i = 0; i < count; i++) {
        int64_t key = (int64_t)((uniform() + 1) * ldexp(1, bits - 1)) & ((1ll << bits) - 1);
        memcpy(records + i * size, &key, 8);
        if (size > 8)
            put(records + i * size + 8, size == 16, 0, (double)i);
    }
    struct entry_records r = {count, size, 0, bits, records, room};
    sorted = entry_sort(&r) ? room : records;
    for (int64_t i = 1; i < count; i++) {
        char *one = sorted + i * size, *before = one - size;
        int64_t key, last;
        memcpy(&key, one, 8), memcpy(&last, before, 8);
        double rise = size > 8 ? get(one + 8, size == 16, 0) - get(before + 8, size == 16, 0) : 1;
        expect(key > last || (key == last && rise > 0), "record in order", i);
    }
    r.records = sorted;
    int64_t left = entry_merge(&r);
    expect(left <= count && (left > 0) == (count > 0), "records left", left);
    for (int64_t i = 1; i < left; i++)
        expect(memcmp(sorted + i * size, sorted + (i - 1) * size, 8) != 0, "key once", i);
    release(records), release(room);
}

/* Blocks 0..4, 5..6 and 7..stop-1, cells of 4 positions. */
static void entries_keyed(int wide, int64_t stop)
{
    int64_t ends[] = {5, 7, stop}, shifts[] = {100, 2000, 30000}, cells = (stop + 3) / 4;
    int64_t *first = malloc(8 * (size_t)cells), *next = malloc(8 * (size_t)cells), *out = calloc((size_t)stop, 8);
    void *positions = array((size_t)stop * (wide ? 8 : 4));
    for (int64_t cell = 0; cell < cells; cell++) {
        first[cell] = 4 * cell >= 7 ? 2 : 4 * cell >= 5 ? 1 : 0;
        next[cell] = ends[first[cell]];
    }
    first[1] = 1, next[1] = 7; /* the block of 4 is another then: a table is taken at its word */
    for (int64_t i = 0; i < stop; i++)
        put_integer(positions, wide, i, i);
    struct entry_keys k = {stop, positions, first, next, shifts, out, wide, 2, 3};
    entry_keys_run(&k);
    int64_t *counts = malloc(8 * (size_t)stop), *loops = malloc(8 * (size_t)stop), entries = 0;
    double *weights = malloc(8 * (size_t)stop), *scaled = malloc(8 * (size_t)stop);
    for (int64_t i = 0; i < stop; i++) {
        counts[i] = i % 3 < stop - entries ? i % 3 : stop - entries;
        entries += counts[i], weights[i] = 2, scaled[i] = 0;
    }
    struct entry_pattern at = {stop, counts, positions, wide};
    struct entry_hashes h = {at, positions, positions, NULL, 7, 9, 0, 0, loops, wide, 1};
    entry_hash(&h);
    uint64_t hashed = h.sum;
    h.weights = weights;
    entry_hash(&h);
    expect(hashed != h.sum, "hashes of weights", stop);
    entry_scale(&(struct entry_scales){at, weights, weights, weights, scaled, 1});
    for (int64_t i = 0; i < stop; i++)
        expect(scaled[i] == (i < entries ? 8 : 0), "scaled entry", i);
    free(counts), free(loops), free(weights), free(scaled);
    for (int64_t i = 0; i < stop; i++)
        expect(out[i] == 8 * i + (i < 4 ? 100 : i < 7 ? 2000 : 30000), "key of a position", i);
    free(first), free(next), free(out), release(positions);
}

int main(void)
{
    for (int64_t count = 0; count < 3000; count = 3 * count + 1)
        for (int bits = 1; bits < 63; bits += 1 + bits / 3)
            for (int size = 8; size <= 16; size += 4)
                records_sorted(count, size, bits);
    for (int64_t stop = 8; stop < 40; stop++)
        entries_keyed((int)(stop % 2), stop);
    static const int64_t widths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 41, 64, 100, 129};
    for (int64_t nodes = 1; nodes < 200; nodes = 2 * nodes + 1)
        for (int32_t parts = 1; parts < 20; parts += 3)
            for (int64_t degree = 0; degree < 30; degree += 7)
                partition(nodes, parts, degree);
    for (int64_t count = 0; count < 40; count = 2 * count + 1)
        rows_sampled(30, count);
    for (int64_t count = 0; count < 40; count = 2 * count + 1)
        rows_selected(30, count);
    for (int64_t count = 0; count < 100; count = 3 * count + 1)
        ids_renumbered(10 + count, count);
    for (int kinds = 0; kinds < 4; kinds++) {
        for (int64_t count = 0; count < 70; count = 3 * count + 1)
            rows_at_once(50, count, kinds % 2, kinds / 2);
        for (int64_t width = 40; width < 400000; width *= 20)
            sparse_product(40, width, kinds % 2, kinds / 2);
    }
    for (int set = 0; spmm_sets()[set]; set++) {
        for (int wide = 0; wide < 2; wide++)
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                for (unsigned options = 0; options < 128; options++)
                    product(spmm_sets()[set], wide, widths[w], options);
        for (int wide = 0; wide < 2; wide++)
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                for (unsigned options = 0; options < 64; options++)
                    aggregates(spmm_sets()[set], wide, widths[w], options);
        for (int wide = 0; wide < 2; wide++)
            for (int64_t width = 1; width < 40; width++)
                passes(spmm_sets()[set]->passes + wide, wide, width % 12 + 1, width);
        for (int options = 0; options < 4; options++)
            for (int64_t heads = 1; heads < 19; heads++)
                for (int64_t columns = 1; columns < 20; columns += 1 + columns / 9)
                    over_entries(spmm_sets()[set]->edges + options % 2, options % 2, options / 2, heads, columns);
        printf("%s: %ld numbers checked\n", spmm_sets()[set]->name, checks);
    }
    return 0;
}
