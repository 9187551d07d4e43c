#include "neighbours.h"
#include "sample.h"

#define POINTERS_AHEAD 16 /* vertices whose row pointers are asked for ahead */

static inline int64_t column_of(const struct graph *g, int64_t entry)
{
    return g->wide_indices ? ((const int64_t *)g->indices)[entry] : ((const int32_t *)g->indices)[entry];
}

static inline void ask_for_column(const struct graph *g, int64_t entry)
{
    __builtin_prefetch((const char *)g->indices + entry * (g->wide_indices ? 8 : 4));
}

static inline void ask_for_pointers(const struct graph *g, const int64_t *ids, int64_t i, int64_t end)
{
    if (i + POINTERS_AHEAD < end)
        __builtin_prefetch(g->pointers + ids[i + POINTERS_AHEAD]);
}

int64_t neighbours_count(const struct graph *g, const struct vertices *v, int64_t count, int64_t *ends,
                         int64_t *longest)
{
    int64_t last = v->bounds[v->blocks], total = 0, most = 0;
    for (int64_t i = 0; i < last; i++) {
        ask_for_pointers(g, v->ids, i, last);
        int64_t first = g->pointers[v->ids[i]], stop = g->pointers[v->ids[i] + 1], length = stop - first;
        if (first < 0 || length < 0 || stop > g->nonzeros)
            return i;
        ends[i] = total;
        total += length < count ? length : count;
        most = length > most ? length : most;
    }
    ends[last] = total;
    *longest = most;
    return -1;
}

/* The columns of these entries, in their place, and their values. Returns -1, or an entry whose column is none. */
static int64_t fetch(const struct neighbours *n, int64_t found, int64_t done)
{
    const struct graph *g = n->graph;
    for (int64_t i = 0; i < found; i++) {
        int64_t entry = n->entries[i], column = column_of(g, entry);
        if (column < 0 || column >= g->nodes)
            return entry;
        __builtin_prefetch(g->table + column, 1);
        n->entries[i] = column;
        if (!g->values)
            continue;
        if (g->wide_values)
            ((uint64_t *)n->values)[done + i] = ((const uint64_t *)g->values)[entry];
        else
            ((uint32_t *)n->values)[done + i] = ((const uint32_t *)g->values)[entry];
    }
    return -1;
}

static int64_t number(const struct neighbours *n, int64_t found, int64_t done, int64_t *columns, int64_t next)
{
    int32_t *table = n->graph->table;
    for (int64_t i = 0; i < found; i++) {
        int64_t column = n->entries[i];
        int32_t label = table[column];
        if (label < 0) {
            columns[next] = column;
            label = table[column] = (int32_t)next++;
        }
        n->labels[done + i] = label;
    }
    return next;
}

/* Draw of the row of vertex `at`, and ask for the columns. */
static int64_t draw_neighbours(const struct neighbours *n, int64_t at, uint64_t key, int64_t *entries)
{
    const struct graph *g = n->graph;
    int64_t vertex = n->rows->ids[at], first = g->pointers[vertex], length = g->pointers[vertex + 1] - first;
    key = sample_hash(sample_hash((uint64_t)vertex) ^ key);
    int64_t found = sample_ones(n->count, first, length, key, n->picked, n->prefix, entries);
    for (int64_t i = 0; i < found; i++) {
        ask_for_column(g, entries[i]);
        if (g->values)
            __builtin_prefetch((const char *)g->values + entries[i] * (g->wide_values ? 8 : 4));
    }
    return found;
}

int64_t neighbours_run(const struct neighbours *n)
{
    const struct vertices *v = n->rows;
    int64_t done = 0, wrong = -1;
    n->column_bounds[0] = 0;
    for (int64_t b = 0; b < v->blocks && wrong < 0; b++) {
        int64_t first = v->bounds[b], last = v->bounds[b + 1], next = last - first;
        int64_t *columns = n->columns + n->column_bounds[b];
        for (int64_t i = 0; i < next; i++)
            n->graph->table[columns[i] = v->ids[first + i]] = (int32_t)i;
        for (int64_t at = first; at < last && wrong < 0;) {
            int64_t found = 0;
            for (; at < last && found < NEIGHBOURS_GATHERED; at++) {
                ask_for_pointers(n->graph, v->ids, at, last);
                found += draw_neighbours(n, at, n->keys[b], n->entries + found);
            }
            wrong = fetch(n, found, done);
            if (wrong < 0)
                next = number(n, found, done, columns, next);
            done += found;
        }
        for (int64_t i = 0; i < next; i++)
            n->graph->table[columns[i]] = -1;
        n->column_bounds[b + 1] = n->column_bounds[b] + next;
    }
    return wrong;
}

#define KEEP(real)                                                                                            \
    static int64_t keep_##real(const struct edges_kept *k, int64_t vertex, const double *scale, int64_t *done) \
    {                                                                                                         \
        const struct graph *g = k->graph;                                                                     \
        for (int64_t e = g->pointers[vertex]; e < g->pointers[vertex + 1]; e++) {                             \
            int64_t column = column_of(g, e);                                                                 \
            if (column < 0 || column >= g->nodes)                                                             \
                return e;                                                                                     \
            int32_t label = g->table[column];                                                                 \
            if (label < 0)                                                                                    \
                continue;                                                                                     \
            real value = ((const real *)g->values)[e];                                                        \
            ((real *)k->values)[*done] = scale ? value * (real)scale[label] : value;                          \
            k->labels[(*done)++] = label;                                                                     \
        }                                                                                                     \
        return -1;                                                                                            \
    }
KEEP(float)
KEEP(double)

int64_t edges_run(const struct edges_kept *k)
{
    int32_t *table = k->graph->table;
    int64_t done = 0, wrong = -1;
    for (int64_t b = 0; b < k->rows->blocks && wrong < 0; b++) {
        int64_t first = k->columns->bounds[b], columns = k->columns->bounds[b + 1] - first;
        const int64_t *ids = k->columns->ids + first;
        const double *scale = k->scale ? k->scale + first : 0;
        for (int64_t i = 0; i < columns; i++)
            table[ids[i]] = (int32_t)i;
        for (int64_t r = k->rows->bounds[b]; r < k->rows->bounds[b + 1] && wrong < 0; r++) {
            k->ends[r] = done;
            wrong = (k->graph->wide_values ? keep_double : keep_float)(k, k->rows->ids[r], scale, &done);
        }
        for (int64_t i = 0; i < columns; i++)
            table[ids[i]] = -1;
    }
    k->ends[k->rows->bounds[k->rows->blocks]] = done;
    return wrong;
}
