#include "spgemm.h"

#define MOST_LEVELS 11 /* 64^11 columns and more */

struct tree {
    int levels;
    uint64_t *level[MOST_LEVELS]; /* that of the columns first */
};

static inline int64_t words_for(int64_t bits)
{
    return bits / 64 + (bits % 64 > 0 || !bits);
}

int64_t spgemm_words(int64_t width)
{
    int64_t words = 0, level = width;
    do
        words += level = words_for(level);
    while (level > 1);
    return words;
}

static struct tree lay(uint64_t *bits, int64_t width)
{
    struct tree t = {0, {0}};
    int64_t level = width;
    do {
        t.level[t.levels++] = bits;
        bits += level = words_for(level);
    } while (level > 1);
    return t;
}

/* A word that has bits has one in the level above. */
static inline void mark(const struct tree *t, int64_t column)
{
    for (int level = 0; level < t->levels; level++) {
        uint64_t *word = t->level[level] + (column >> 6), before = *word;
        *word |= (uint64_t)1 << (column & 63);
        if (before)
            return;
        column >>= 6;
    }
}

struct row {
    const struct spgemm *s;
    int64_t found;
};

#define SPGEMM(real, integer)                                                                              \
    /* Write the columns below a word, rising, and their sums; take both back. */                          \
    static void collect_##real##_##integer(struct row *r, const struct tree *t, int level, int64_t at)     \
    {                                                                                                      \
        real *sums = r->s->sums;                                                                           \
        uint64_t word = t->level[level][at];                                                               \
        t->level[level][at] = 0;                                                                           \
        for (; word; word &= word - 1) {                                                                   \
            int64_t column = at * 64 + __builtin_ctzll(word);                                              \
            if (level) {                                                                                   \
                collect_##real##_##integer(r, t, level - 1, column);                                       \
                continue;                                                                                  \
            }                                                                                              \
            ((integer *)r->s->indices)[r->found] = (integer)column;                                        \
            ((real *)r->s->values)[r->found++] = sums[column];                                             \
            sums[column] = 0;                                                                              \
        }                                                                                                  \
    }                                                                                                      \
                                                                                                           \
    static int64_t add_##real##_##integer(const struct spgemm *s, const struct tree *t, int64_t row)       \
    {                                                                                                      \
        const integer *pointers = s->b_pointers, *indices = s->b_indices;                                  \
        const real *values = s->b_values;                                                                  \
        real *sums = s->sums;                                                                              \
        for (int64_t a = s->a_pointers[row]; a < s->a_pointers[row + 1]; a++) {                            \
            real factor = ((const real *)s->a_values)[a];                                                  \
            for (int64_t e = pointers[s->a_indices[a]]; e < pointers[s->a_indices[a] + 1]; e++) {          \
                int64_t column = indices[e];                                                               \
                if (column < 0 || column >= s->width)                                                      \
                    return e;                                                                              \
                sums[column] += factor * values[e];                                                        \
                if (!(t->level[0][column >> 6] >> (column & 63) & 1))                                      \
                    mark(t, column);                                                                       \
            }                                                                                              \
        }                                                                                                  \
        return -1;                                                                                         \
    }                                                                                                      \
                                                                                                           \
    static int64_t multiply_##real##_##integer(const struct spgemm *s)                                     \
    {                                                                                                      \
        struct tree t = lay(s->bits, s->width);                                                            \
        struct row r = {s, 0};                                                                             \
        int64_t wrong = -1;                                                                                \
        for (int64_t row = 0; row < s->rows && wrong < 0; row++) {                                         \
            s->pointers[row] = r.found;                                                                    \
            wrong = add_##real##_##integer(s, &t, row);                                                    \
            collect_##real##_##integer(&r, &t, t.levels - 1, 0);                                           \
        }                                                                                                  \
        s->pointers[s->rows] = r.found;                                                                    \
        return wrong;                                                                                      \
    }
SPGEMM(float, int32_t)
SPGEMM(float, int64_t)
SPGEMM(double, int32_t)
SPGEMM(double, int64_t)

int64_t spgemm_run(const struct spgemm *s)
{
    if (s->wide)
        return (s->wide_indices ? multiply_double_int64_t : multiply_double_int32_t)(s);
    return (s->wide_indices ? multiply_float_int64_t : multiply_float_int32_t)(s);
}
