#include "sample.h"

#include <math.h>

/* SplitMix64 (distgnn/rng.py). */
uint64_t sample_hash(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The next number of the generator, uniform in [0, 1). */
static double next_uniform(uint64_t *state)
{
    double uniform = (double)(sample_hash(*state) >> 11) * 0x1p-53;
    *state += 0x9E3779B97F4A7C15u;
    return uniform;
}

/* Prefix sums of the weights that have not been drawn; returns their sum. */
static double prefix_sums(int64_t length, const double *weights, const uint8_t *picked, double *prefix)
{
    double sum = 0;
    for (int64_t i = 0; i < length; i++) {
        sum += picked[i] ? 0.0 : weights ? weights[i] : 1.0;
        prefix[i] = sum;
    }
    return sum;
}

/* The first entry whose prefix sum exceeds x; `length` where none does. It has a positive weight. */
static int64_t search(int64_t length, const double *prefix, double x)
{
    int64_t low = 0;
    while (length > 0) {
        int64_t half = length / 2;
        if (prefix[low + half] <= x) {
            low += half + 1;
            length -= half + 1;
        } else {
            length = half;
        }
    }
    return low;
}

static int64_t positives(int64_t length, const double *weights)
{
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++) {
        if (!(weights[i] >= 0) || isinf(weights[i]))
            return -1;
        count += weights[i] > 0;
    }
    return count;
}

static int draw(const struct sample *s, int64_t length, const double *weights, uint8_t *picked,
                uint64_t state, double *remaining)
{
    /* Until something is taken out of ones, the first prefix sum that exceeds x is that of entry floor(x). */
    int counting = !weights;
    double total = counting ? (double)length : prefix_sums(length, weights, picked, s->prefix), drawn = 0;
    if (isinf(total))
        return -1;
    for (int64_t j = 0;; j++) {
        if (drawn > total / 2) { /* so that at most every second draw is a repeat, and `remaining` exact */
            total = prefix_sums(length, weights, picked, s->prefix);
            drawn = 0;
            counting = 0;
        }
        if (remaining)
            remaining[j] = total - drawn;
        if (j == s->count)
            return 0;
        int64_t i;
        do {
            double x = next_uniform(&state) * total;
            i = counting ? (int64_t)x : search(length, s->prefix, x);
        } while (i == length || picked[i]); /* x may round to a total that is subnormal */
        picked[i] = 1;
        if (s->order)
            s->order[j] = i;
        drawn += weights ? weights[i] : 1.0;
    }
}

int64_t sample_run(const struct sample *s)
{
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t first = s->pointers[r], length = s->pointers[r + 1] - first;
        const double *weights = s->weights + first;
        uint8_t *picked = s->picked + first;
        double *remaining = s->remaining ? s->remaining + r * (s->count + 1) : 0;
        int64_t candidates = positives(length, weights);
        if (candidates < 0)
            return r;
        if (candidates <= s->count) {
            for (int64_t i = 0; i < length; i++)
                picked[i] = weights[i] > 0;
            for (int64_t j = 0; remaining && j <= s->count; j++)
                remaining[j] = 0;
            continue;
        }
        for (int64_t i = 0; i < length; i++)
            picked[i] = 0;
        if (draw(s, length, weights, picked, s->keys[r], remaining))
            return r;
    }
    return -1;
}

/* The entries that are marked and listed, ascending, as positions from `first` on; unmarks them. */
static void collect(int64_t length, int64_t count, uint8_t *picked, int64_t first, int64_t *positions)
{
    if (count * count < length) { /* sort the list by insertion: positions holds it */
        for (int64_t j = 0; j < count; j++) {
            int64_t entry = positions[j], at = j;
            picked[entry] = 0;
            for (; at > 0 && positions[at - 1] > first + entry; at--)
                positions[at] = positions[at - 1];
            positions[at] = first + entry;
        }
        return;
    }
    for (int64_t i = 0, found = 0; i < length && found < count; i++) {
        if (picked[i])
            positions[found++] = first + i;
        picked[i] = 0;
    }
}

typedef int32_t four __attribute__((vector_size(16)));

#define FEW 8 /* vectors of entries that are compared with all at once */

static inline four of(int32_t x)
{
    return (four){x, x, x, x};
}

/* As draw and collect do, of rows that are at least twice as long: no sum is made again. Entries are found among
 * those drawn before, and sorted, without a branch that depends on them. */
static void draw_few(int64_t count, int64_t first, int64_t length, uint64_t state, int64_t *positions)
{
    four order[FEW];
    int32_t drawn[4 * FEW], vectors = (int32_t)(count + 3) / 4, unused = 4 * vectors - (int32_t)count;
    for (int32_t v = 0; v < vectors; v++)
        order[v] = of(-1);
    for (int32_t j = 0; j < count; j++) {
        four same;
        do {
            double x = next_uniform(&state) * (double)length;
            drawn[j] = (int32_t)x;
            same = of(0);
            for (int32_t v = 0; v < vectors; v++)
                same |= order[v] == of(drawn[j]);
        } while (drawn[j] == length || (same[0] | same[1] | same[2] | same[3]));
        order[j / 4][j % 4] = drawn[j];
    }
    for (int32_t j = 0; j < count; j++) {
        four less = of(0);
        for (int32_t v = 0; v < vectors; v++)
            less -= order[v] < of(drawn[j]); /* true is -1, as all that is unused */
        positions[less[0] + less[1] + less[2] + less[3] - unused] = first + drawn[j];
    }
}

int64_t sample_ones(int64_t count, int64_t first, int64_t length, uint64_t key, uint8_t *picked, double *prefix,
                    int64_t *positions)
{
    struct sample row = {.rows = 1, .count = count, .prefix = prefix, .order = positions};
    if (length <= count) {
        for (int64_t i = 0; i < length; i++)
            positions[i] = first + i;
        return length;
    }
    if (count <= 4 * FEW && length >= 2 * count && length < INT32_MAX) {
        draw_few(count, first, length, key, positions);
        return count;
    }
    draw(&row, length, 0, picked, key, 0);
    collect(length, count, picked, first, positions);
    return count;
}

int64_t sample_selected_run(const struct sample_selected *s)
{
    int64_t total = 0;
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t first = s->pointers[s->selected[r]], length = s->pointers[s->selected[r] + 1] - first;
        total += s->counts[r] = sample_ones(s->count, first, length, s->keys[r], s->picked, s->prefix,
                                            s->positions + total);
    }
    return total;
}

static void relabel_block(const struct relabel *r, int64_t b, int64_t *added)
{
    int64_t first = r->bounds[b], last = r->bounds[b + 1];
    int64_t seeds = r->seed_bounds[b + 1] - r->seed_bounds[b], next = seeds;
    const int64_t *seed = r->seeds + r->seed_bounds[b];
    int32_t *table = r->table;
    for (int64_t i = 0; i < seeds; i++)
        table[seed[i]] = (int32_t)i;
    for (int64_t e = first; e < last; e++) {
        int32_t label = table[r->ids[e]];
        if (label < 0 && r->extend) {
            label = table[r->ids[e]] = (int32_t)next++;
            *added++ = r->ids[e];
        }
        r->labels[e] = label;
    }
    for (int64_t i = 0; i < seeds; i++)
        table[seed[i]] = -1;
    for (int64_t i = seeds; i < next; i++)
        table[*--added] = -1;
    if (r->extend)
        r->added_bounds[b + 1] = r->added_bounds[b] + next - seeds;
}

void relabel_run(const struct relabel *r)
{
    if (r->extend)
        r->added_bounds[0] = 0;
    for (int64_t b = 0; b < r->blocks; b++)
        if (r->extend || r->bounds[b] < r->bounds[b + 1])
            relabel_block(r, b, r->extend ? r->added + r->added_bounds[b] : 0);
}
