#include "entries.h"

#include <string.h>

#define DIGIT 11 /* bits of a digit, at most */
#define DIGITS (64 / DIGIT + 1)
#define TOP 8
#define MANY (1 << 17) /* records, whose parts are sorted apart */
#define INLINE static inline __attribute__((always_inline))

INLINE int64_t number(const void *array, int wide, int64_t at)
{
    int32_t narrow;
    int64_t value;
    if (wide) {
        memcpy(&value, (const char *)array + 8 * at, 8);
        return value;
    }
    memcpy(&narrow, (const char *)array + 4 * at, 4);
    return narrow;
}

INLINE void make_keys(const struct entry_keys *k, int wide)
{
    const int64_t *first = k->first, *next = k->next, *shifts = k->shifts;
    int64_t *out = k->out;
    int shift = k->shift, bits = k->bits;
    for (int64_t i = 0; i < k->count; i++) {
        int64_t position = number(k->positions, wide, i), cell = position >> shift;
        int64_t block = first[cell] + (position >= next[cell]);
        out[i] += (position << bits) + shifts[block];
    }
}

void entry_keys_run(const struct entry_keys *k)
{
    if (k->wide)
        make_keys(k, 1);
    else
        make_keys(k, 0);
}

INLINE uint64_t key_of(const char *record)
{
    uint64_t key;
    memcpy(&key, record, 8);
    return key;
}

/* Sort by one digit; `starts` has the place of the first record of each value. */
INLINE void scatter(const char *from, char *to, int64_t count, int64_t size, int low, uint64_t mask, int64_t *starts)
{
    for (int64_t i = 0; i < count; i++, from += size)
        memcpy(to + size * starts[key_of(from) >> low & mask]++, from, (size_t)size);
}

/* Turn counts into the places where each value begins; return 0 if all records have the same value. */
static int begin(int64_t *counts, int64_t values, int64_t records)
{
    int64_t place = 0, apart = 1;
    for (int64_t value = 0; value < values; value++) {
        int64_t here = counts[value];
        apart = apart && here != records;
        counts[value] = place;
        place += here;
    }
    return (int)apart;
}

/* Sort from the last digit to the first one, in two arrays in turn. Returns 1 where all is in `to` at last. */
INLINE int by_digits(char *from, char *to, int64_t count, int64_t size, int low, int high)
{
    int span = high - low, digits = (span + DIGIT - 1) / DIGIT, moved = 0;
    int width = digits ? (span + digits - 1) / digits : 0;
    int64_t counts[DIGITS][1 << DIGIT];
    uint64_t all = ((uint64_t)1 << span) - 1, mask = ((uint64_t)1 << width) - 1;
    for (int digit = 0; digit < digits; digit++)
        memset(counts[digit], 0, sizeof **counts << width);
    for (int64_t i = 0; i < count; i++) {
        uint64_t key = key_of(from + i * size) >> low & all;
        for (int digit = 0; digit < digits; digit++, key >>= width)
            counts[digit][key & mask]++;
    }
    for (int digit = 0; digit < digits; digit++, all >>= width) {
        if (!begin(counts[digit], (int64_t)mask + 1, count))
            continue;
        scatter(from, to, count, size, low + digit * width, mask & all, counts[digit]);
        char *sorted = to;
        to = from, from = sorted, moved = !moved;
    }
    return moved;
}

/* Many records are sorted by their highest bits first: each part then stays in a cache. */
INLINE int sort(const struct entry_records *r, int64_t size)
{
    char *records = r->records, *room = r->room;
    int high = r->high - TOP;
    if (r->count < MANY || high <= r->low)
        return by_digits(records, room, r->count, size, r->low, r->high);
    int64_t ends[1 << TOP] = {0}, start = 0;
    uint64_t mask = (1 << TOP) - 1;
    for (int64_t i = 0; i < r->count; i++)
        ends[key_of(records + i * size) >> high & mask]++;
    begin(ends, 1 << TOP, r->count);
    scatter(records, room, r->count, size, high, mask, ends);
    for (int part = 0; part < 1 << TOP; start = ends[part++]) {
        int64_t count = ends[part] - start;
        char *here = room + start * size, *beside = records + start * size;
        if (by_digits(here, beside, count, size, r->low, high))
            memcpy(here, beside, (size_t)(count * size));
    }
    return 1;
}

int entry_sort(const struct entry_records *r)
{
    return r->size == 8 ? sort(r, 8) : r->size == 12 ? sort(r, 12) : sort(r, 16);
}

INLINE double weight_of(const char *record, int size)
{
    float narrow;
    double weight = 0;
    if (size == 16)
        memcpy(&weight, record + 8, 8);
    else if (size == 12)
        memcpy(&narrow, record + 8, 4), weight = (double)narrow;
    return weight;
}

INLINE int64_t merge(char *records, int64_t count, int size)
{
    int64_t last = 0;
    for (int64_t i = 1; i < count; i++) {
        char *record = records + i * size, *kept = records + last * size;
        if (key_of(record) != key_of(kept))
            memmove(records + ++last * size, record, (size_t)size);
        else if (size > 8 && weight_of(record, size) > weight_of(kept, size))
            memmove(kept, record, (size_t)size);
    }
    return count ? last + 1 : 0;
}

int64_t entry_merge(const struct entry_records *r)
{
    return r->size == 8    ? merge(r->records, r->count, 8)
           : r->size == 12 ? merge(r->records, r->count, 12)
                           : merge(r->records, r->count, 16);
}

INLINE uint64_t splitmix64(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void entry_rows_run(const struct entry_rows *r)
{
    uint64_t mask = ((uint64_t)1 << r->bits) - 1;
    for (int64_t i = 0; i < r->count; i++) {
        r->counts[(r->keys[i] >> r->bits) - r->first]++;
        if (r->wide)
            ((int64_t *)r->columns)[i] = (int64_t)((uint64_t)r->keys[i] & mask);
        else
            ((int32_t *)r->columns)[i] = (int32_t)((uint64_t)r->keys[i] & mask);
    }
}

INLINE uint64_t hash(uint64_t place, uint64_t key, const double *weight)
{
    uint64_t word = splitmix64(splitmix64(place) ^ key), bits;
    if (!weight)
        return word;
    memcpy(&bits, weight, 8);
    return splitmix64(word ^ bits);
}

INLINE void hash_all(struct entry_hashes *h, int wide, int wide_ids)
{
    uint64_t sum = 0, mirrored = 0, n = h->n, key = h->key;
    for (int64_t row = 0, e = 0; row < h->at.rows; row++) {
        uint64_t head = (uint64_t)number(h->row_ids, wide_ids, row);
        int64_t loops = 0;
        for (int64_t end = e + h->at.counts[row]; e < end; e++) {
            uint64_t tail = (uint64_t)number(h->column_ids, wide_ids, number(h->at.columns, wide, e));
            const double *weight = h->weights ? h->weights + e : h->weights;
            loops += head == tail;
            sum += hash(head * n + tail, key, weight);
            if (h->both)
                mirrored += hash(tail * n + head, key, weight);
        }
        h->loops[row] = loops;
    }
    h->sum = sum, h->mirrored = mirrored;
}

void entry_hash(struct entry_hashes *h)
{
    if (!h->at.wide && !h->wide_ids)
        hash_all(h, 0, 0);
    else
        hash_all(h, h->at.wide, h->wide_ids);
}

INLINE void scale(const struct entry_scales *s, int wide, int wide_out)
{
    for (int64_t row = 0, e = 0; row < s->at.rows; row++)
        for (int64_t end = e + s->at.counts[row]; e < end; e++) {
            double factor = s->left[row];
            if (s->right)
                factor *= s->right[number(s->at.columns, wide, e)];
            if (s->weights)
                factor *= s->weights[e];
            if (wide_out)
                ((double *)s->out)[e] = factor;
            else
                ((float *)s->out)[e] = (float)factor;
        }
}

void entry_scale(const struct entry_scales *s)
{
    if (!s->at.wide && !s->wide_out)
        scale(s, 0, 0);
    else
        scale(s, s->at.wide, s->wide_out);
}
