/* Refinement for volume (volume.h) where few rows are on the boundary: the interface between two parts moves as a whole, to a
 * smallest cut within a window of rows around it. On a road map that carries it from one set of narrow places to the next, across
 * rows that none would cross alone. Edges stand for volume in the cut (where A is not symmetric, arcs without one the other way carry
 * no flow, and cuts are only guesses), but what it is worth is counted exactly, and accepted as in volume.c.
 *
 * A few parts in narrow country keep the largest volumes up. So where neighbourhoods are asked for, those parts are annealed again and
 * again with the parts around them, all else standing still (large neighbourhood search: Shaw, CP 1998), and when all parts keep to
 * the bound on sends, it falls by a row. A row of total volume costs little here: what is asked for is the largest. */

#include "volume_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GATHERING 2  /* visits per node and non-zero between two searches for the boundary */
#define COOLING 3    /* the temperature falls by this power of e */
#define CHEAP 0.1    /* what a row of total volume counts while that is within its bound */
#define EVEN 0.05    /* what twice the average of non-zeros, or none, costs a part, relative to the bound on sends */
#define SLOPE 20     /* price of a row more at twice the bounds at first, */
#define STEEPER 15   /* and by which factor it rises */
#define SOFT 3       /* that of non-zeros above the capacity at first, relative to the bound on sends, */
#define STIFFER 3e4  /* and by which factor it rises */
#define NARROWEST 16 /* rows on either side of the smallest window, at most */
#define SWEEPS 600   /* over a neighbourhood: as many interfaces are drawn for each of its parts */
#define PRICING 4    /* sweeps between two looks at what the parts pay */
#define HOTTEST 0.8  /* a neighbourhood's schedule starts anywhere between the whole one's start and this share of it */
#define WIDE 0.3     /* share of the neighbourhoods, where they are less than a quarter of all parts, that reach two parts far */
#define TRANSPLANTS 0.1 /* and of those above the bound that get another part */
#define LATE 0.8     /* from this share of a schedule on, partitions are cold enough to be worth a look */
#define PATIENCE 1   /* by what a neighbourhood may get worse at first, about */
#define WORST 5      /* what the square of a row above a bound counts in comparisons */

/* In `side`: source rows will be in part a, sink rows in part b, free rows where the cut puts them. */
enum { OUTSIDE, FREE, SOURCE, SINK };

/* The rows around the boundary between two parts, `count` of them in `members` from deep in b to deep in a: the first `low` are
 * sink, those from `high` on source, and those between free. */
struct interface {
    int32_t a, b;
    int64_t count, low, high;
};

/* What a search for a cut knows of a row; together, as rows are visited in no order. */
struct mark {
    int32_t rank; /* in `members`: low ones are near the sink */
    uint32_t arc; /* how often an arc was looked at: those to rows of lower rank first, then all others */
    int16_t side, met;
};

/* In `met`: a row not met in this round; one that a unit is at, or found no way on from; one that units went through. */
enum { UNMET, CLOSED, PASSED };

struct search {
    struct state *s;
    int32_t *members; /* nodes: the rows of a window */
    int32_t *entries; /* nodes: its free rows next to the source */
    int32_t *reached; /* nodes: those that units met in this round */
    int64_t reached_count;
    struct mark *marks; /* nodes */
    int32_t *path;    /* nodes */
    int32_t *changed; /* nodes: those that would change parts */
    char *taken;        /* nodes: is it among those listed? */
    signed char *flow;  /* non-zeros: from the row to the column; the arc the other way has its negative */
    int32_t *mate;      /* non-zeros: which of the column's arcs goes back, or -1 */
    char *inside;       /* parts: may its interfaces with others inside move? */
    int32_t insiders;   /* how many may, when the pool was filled */
    int32_t *pool; /* nodes: their rows on the boundary when they were gathered */
    int64_t pool_count;
    int32_t *now, *trial; /* nodes: the partition that neighbourhoods start from, and the best that one led to */
};

/* -- windows -- */

/* List the rows of `part` in breadth-first order from those next to `other`, at most `count`; the number listed. */
static int64_t approach(struct search *w, int32_t part, int32_t other, int32_t *rows, int64_t count)
{
    struct state *s = w->s;
    const struct volume *v = s->v;
    int64_t filled = 0, looked = 0;
    for (int32_t i = s->head[part]; i >= 0 && filled < count; i = s->after[i], looked++) {
        int32_t meets = 0;
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1] && !meets; e++)
            meets = s->nets[v->columns[e]].owner == other;
        if (meets) {
            w->taken[i] = 1;
            rows[filled++] = i;
        }
    }
    for (int64_t at = 0; at < filled && filled < count; at++)
        for (int64_t e = v->pointers[rows[at]]; e < v->pointers[rows[at] + 1] && filled < count; e++) {
            int32_t row = v->columns[e];
            if (!w->taken[row] && s->nets[row].owner == part) {
                w->taken[row] = 1;
                rows[filled++] = row;
            }
        }
    for (int64_t k = 0; k < filled; k++)
        w->taken[rows[k]] = 0;
    s->spent += looked + filled;
    return filled;
}

/* List the rows around the interface between a and b, so far into each; the number of b's. */
static int64_t line_up(struct search *w, struct interface *at, int64_t into_a, int64_t into_b)
{
    int32_t *rows = w->members;
    int64_t of_b = approach(w, at->b, at->a, rows, into_b);
    for (int64_t k = 0; k < of_b / 2; k++) {
        int32_t row = rows[k];
        rows[k] = rows[of_b - 1 - k];
        rows[of_b - 1 - k] = row;
    }
    at->count = of_b + approach(w, at->a, at->b, rows + of_b, into_a);
    return of_b;
}

/* Rows from an interface, up to `depth` of them; into b they count as negative. */
static int64_t draw_depth(struct state *s, int64_t depth) { return (int64_t)(volume_next(s) % (uint64_t)(2 * depth + 1)) - depth; }

static int64_t within(int64_t x, int64_t count) { return x < 0 ? 0 : x < count ? x : count; }

/* Draw an interface and a window of rows around it; 0 if the parts drawn do not meet, or may not move. */
static int draw_interface(struct search *w, struct interface *at)
{
    struct state *s = w->s;
    int32_t i = w->pool[volume_next(s) % (uint64_t)w->pool_count];
    double deepest = fmax((double)s->v->nodes / s->v->parts / 2, 1), narrowest = fmin(NARROWEST, deepest);
    *at = (struct interface){.a = s->nets[i].owner, .b = volume_neighbour(s, i)};
    if (at->b < 0 || !w->inside[at->a] || !w->inside[at->b])
        return 0;
    int64_t depth = (int64_t)(narrowest * pow(deepest / narrowest, volume_uniform(s)));
    int64_t one = draw_depth(s, depth), other = draw_depth(s, depth), low = one < other ? one : other, high = one < other ? other : one;
    int64_t of_b = line_up(w, at, high > 0 ? high : 0, low < 0 ? -low : 0); /* what lies beyond follows from the parts */
    at->low = within(of_b + low, at->count), at->high = within(of_b + high, at->count);
    return at->count > 0;
}

/* -- smallest cuts (Ford and Fulkerson): every edge takes one unit of flow -- */

static int64_t back(const struct search *w, int64_t e) { return w->s->v->pointers[w->s->v->columns[e]] + w->mate[e]; }

static void find_mates(struct search *w)
{
    const struct volume *v = w->s->v;
    for (int64_t i = 0; i < v->nodes; i++)
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
            int64_t first = v->pointers[v->columns[e]], last = v->pointers[v->columns[e] + 1], to = first;
            while (to < last && v->columns[to] != i)
                to++;
            w->mate[e] = to < last ? (int32_t)(to - first) : -1;
        }
}

/* Mark the sides, and list the free rows next to the source; their number. */
static int64_t mark(struct search *w, struct interface at)
{
    const struct state *s = w->s;
    const struct volume *v = s->v;
    const int32_t *rows = w->members;
    int64_t entries = 0;
    for (int64_t k = 0; k < at.count; k++)
        w->marks[rows[k]] = (struct mark){.rank = (int32_t)k, .side = k < at.low ? SINK : k < at.high ? FREE : SOURCE};
    for (int64_t k = at.low; k < at.high; k++) {
        int entry = 0;
        for (int64_t e = v->pointers[rows[k]]; e < v->pointers[rows[k] + 1]; e++) {
            int32_t row = v->columns[e], part = s->nets[row].owner;
            if (w->marks[row].side == OUTSIDE)
                w->marks[row].side = part == at.a ? SOURCE : part == at.b ? SINK : OUTSIDE;
            entry |= w->marks[row].side == SOURCE;
        }
        if (entry)
            w->entries[entries++] = rows[k];
    }
    return entries;
}

static void unmark(struct search *w, struct interface at)
{
    const struct volume *v = w->s->v;
    const int32_t *rows = w->members;
    for (int64_t k = 0; k < at.count; k++)
        w->marks[rows[k]].side = OUTSIDE;
    for (int64_t k = at.low; k < at.high; k++)
        for (int64_t e = v->pointers[rows[k]]; e < v->pointers[rows[k] + 1]; e++) {
            w->marks[v->columns[e]].side = OUTSIDE;
            w->flow[e] = 0;
        }
}

/* The next arc from the source to a row that may take a unit more, from that arc on; or -1. Flow stands on the arc from the row. */
static int64_t entrance(const struct search *w, int32_t row, int64_t e)
{
    const struct volume *v = w->s->v;
    while (e < v->pointers[row + 1] && !(w->marks[v->columns[e]].side == SOURCE && w->flow[e] > -1))
        e++;
    return e < v->pointers[row + 1] ? e : -1;
}

static void meet(struct search *w, int32_t row)
{
    struct mark *here = w->marks + row;
    if (here->met == UNMET) {
        here->arc = 0;
        w->reached[w->reached_count++] = row;
    }
    here->met = CLOSED;
}

static void forget(struct search *w)
{
    while (w->reached_count)
        w->marks[w->reached[--w->reached_count]].met = UNMET;
}

/* The arc that a row is at. */
static int64_t current(const struct search *w, int32_t row)
{
    const int64_t *pointers = w->s->v->pointers + row;
    int64_t arc = pointers[0] + w->marks[row].arc;
    return arc < pointers[1] ? arc : arc - (pointers[1] - pointers[0]);
}

/* Send a unit that enters at `row` to the sink, depth first; 0 if no way is left. */
static int send_unit(struct search *w, int32_t row)
{
    const struct volume *v = w->s->v;
    int64_t depth = 0, steps = 0;
    int32_t i = row;
    meet(w, row);
    for (;; steps++) {
        int64_t degree = v->pointers[i + 1] - v->pointers[i];
        if (w->marks[i].arc == 2 * degree) {
            if (!depth)
                break;
            i = w->path[--depth];
            w->marks[i].arc++;
            continue;
        }
        int64_t e = current(w, i);
        int32_t to = v->columns[e];
        const struct mark *next = w->marks + to;
        int open = w->flow[e] <= 0;
        if (open && next->side == SINK) {
            w->flow[e]++;
            w->marks[i].met = PASSED;
            while (depth--) {
                int64_t taken = current(w, w->path[depth]);
                w->marks[w->path[depth]].met = PASSED;
                w->flow[taken]++;
                w->flow[back(w, taken)]--;
            }
            w->s->spent += steps / 2;
            return 1;
        }
        int towards = (next->rank < w->marks[i].rank) == (w->marks[i].arc < degree);
        if (open && towards && next->side == FREE && next->met != CLOSED && w->mate[e] >= 0) {
            w->path[depth++] = i;
            i = to;
            meet(w, to);
        } else
            w->marks[i].arc++;
    }
    w->s->spent += steps / 2;
    return 0;
}

/* Send as many units as possible from the source to the sink. Then the rows met are the source's side of a smallest cut. */
static void fill(struct search *w, int64_t entries)
{
    for (int sent = 1; sent;) {
        forget(w);
        sent = 0;
        w->s->spent += entries;
        for (int64_t k = 0; k < entries; k++) {
            int32_t row = w->entries[k];
            int64_t e = entrance(w, row, w->s->v->pointers[row]);
            for (; e >= 0 && w->marks[row].met != CLOSED && send_unit(w, row); e = entrance(w, row, e)) {
                w->flow[e]--;
                sent = 1;
            }
        }
    }
}

/* List in `changed` the rows that a smallest cut would move, first `to_a` of them from b to a, then the others; their number. */
static int64_t cut(struct search *w, struct interface at, int64_t *to_a)
{
    const struct state *s = w->s;
    const int32_t *rows = w->members;
    int64_t moved = 0;
    w->s->spent += at.high - at.low;
    fill(w, mark(w, at));
    for (int into_b = 0; into_b < 2; into_b++) {
        *to_a = into_b ? *to_a : 0;
        for (int64_t k = 0; k < at.count; k++) {
            int source = k >= at.high || (k >= at.low && w->marks[rows[k]].met);
            if (source != into_b && s->nets[rows[k]].owner == (into_b ? at.a : at.b))
                w->changed[moved++] = rows[k];
        }
        *to_a = into_b ? *to_a : moved;
    }
    forget(w);
    unmark(w, at);
    return moved;
}

/* -- moves -- */

static void move_rows(struct state *s, const int32_t *rows, int64_t count, int32_t b)
{
    for (int64_t k = 0; k < count; k++) {
        s->spent += 2 * (s->v->pointers[rows[k] + 1] - s->v->pointers[rows[k]] + 1);
        volume_move(s, rows[k], b);
    }
}

static void exchange(struct search *w, int64_t to_a, int64_t moved, int32_t a, int32_t b)
{
    move_rows(w->s, w->changed, to_a, a);
    move_rows(w->s, w->changed + to_a, moved - to_a, b);
}

/* What all parts send, and what these two receive and hold. */
static double cost_of_two(const struct state *s, int32_t a, int32_t b)
{
    double received = volume_receive_cost(s, s->receive[a]) + volume_receive_cost(s, s->receive[b]);
    return s->sum + received + volume_load_cost(s, s->load[a]) + volume_load_cost(s, s->load[b]);
}

/* Draw an interface and move it, unless that is worse by more than the temperature allows. */
static void try_interface(struct search *w, double heat)
{
    struct state *s = w->s;
    const struct volume *v = s->v;
    struct interface at;
    int64_t to_a, moved;
    s->spent++;
    if (!draw_interface(w, &at) || !(moved = cut(w, at, &to_a)))
        return;
    double before = cost_of_two(s, at.a, at.b);
    int64_t of_a = s->load[at.a];
    exchange(w, to_a, moved, at.a, at.b);
    double delta = cost_of_two(s, at.a, at.b) - before;
    int emptied = s->load[at.a] != of_a && s->load[s->load[at.a] < of_a ? at.a : at.b] * 2 < s->least;
    if (emptied || !(delta <= 0 || delta < -heat * log(1 - volume_uniform(s)))) {
        exchange(w, to_a, moved, at.b, at.a);
        return;
    }
    for (int64_t r = 0; r < moved; r++)
        for (int64_t e = v->pointers[w->changed[r]]; e < v->pointers[w->changed[r] + 1]; e++)
            volume_list(s, v->columns[e]);
}

/* What the partition in hand is worth, by prices that do not rise with the progress of the work. */
static double worth(const struct state *s)
{
    const struct volume *v = s->v;
    double average = (double)s->total / v->parts, sends = floor(volume_send_limit(s)), receives = floor(v->receive_bound * average);
    double sum = CHEAP * (double)s->total + (1 - CHEAP) * fmax(0, (double)(s->total - v->total_bound));
    for (int32_t part = 0; part < v->parts; part++) {
        double off = (double)s->load[part] / s->average_load - 1;
        sum += volume_excess((double)s->send[part], sends, WORST) + volume_excess((double)s->receive[part], receives, WORST);
        sum += EVEN * sends * off * off + 1e4 * volume_over(s->load[part], (double)v->capacity);
    }
    return sum;
}

static void fill_pool(struct search *w)
{
    const struct state *s = w->s;
    w->pool_count = w->insiders = 0;
    for (int32_t part = 0; part < s->v->parts; part++) {
        w->insiders += w->inside[part];
        for (int32_t i = w->inside[part] ? s->head[part] : -1; i >= 0; i = s->after[i])
            w->pool[w->pool_count++] = i;
    }
}

static void set_prices(struct state *s, double progress)
{
    volume_set_prices(s, SLOPE * pow(STEEPER, progress), s->total < s->v->total_bound ? CHEAP : 1);
    s->load_slope = SOFT * pow(STIFFER, progress);
    s->even = EVEN * s->send_limit;
}

static double heat_at(const struct state *s, double progress) { return s->v->heat * exp(-COOLING * progress); }

static void copy_parts(const struct state *s, int32_t *part)
{
    for (int64_t i = 0; i < s->v->nodes; i++)
        part[i] = s->nets[i].owner;
}

static void return_to(struct state *s, const int32_t *part)
{
    for (int64_t i = 0; i < s->v->nodes; i++)
        if (s->nets[i].owner != part[i])
            volume_move(s, i, part[i]);
}

/* Anneal all parts together. */
static void anneal(struct search *w)
{
    struct state *s = w->s;
    const struct volume *v = s->v;
    int64_t gathering = 0;
    memset(w->inside, 1, (size_t)v->parts);
    for (double progress = 0; progress < 1; progress = (double)s->spent / (double)v->work) {
        if (s->spent >= gathering) {
            volume_gather(s);
            fill_pool(w);
            gathering = s->spent + GATHERING * (v->nodes + v->pointers[v->nodes]);
        }
        if (!w->pool_count)
            return;
        set_prices(s, progress);
        for (int32_t k = 0; k < v->parts; k++)
            try_interface(w, heat_at(s, progress));
        double value = worth(s);
        if (value < s->lowest) {
            s->lowest = value;
            volume_keep(s);
        }
    }
}

/* -- neighbourhoods -- */

/* Take in all parts that those inside meet. */
static void spread(struct search *w)
{
    const struct state *s = w->s;
    const struct volume *v = s->v;
    fill_pool(w);
    for (int64_t k = 0; k < w->pool_count; k++)
        for (int64_t e = v->pointers[w->pool[k]]; e < v->pointers[w->pool[k] + 1]; e++)
            w->inside[s->nets[v->columns[e]].owner] = 1;
}

static void hand_over(struct state *s, int32_t row, int32_t part)
{
    const struct volume *v = s->v;
    s->spent += 4 * (v->pointers[row + 1] - v->pointers[row] + 1);
    volume_move(s, row, part);
    volume_list(s, row);
    for (int64_t e = v->pointers[row]; e < v->pointers[row + 1]; e++)
        volume_list(s, v->columns[e]);
}

/* Give the rows of a part to the parts around it, those on its boundary first; what has no way out stays. */
static void dissolve(struct search *w, int32_t part)
{
    struct state *s = w->s;
    const struct volume *v = s->v;
    int64_t left = 0;
    for (int64_t i = 0; i < v->nodes; i++)
        if (s->nets[i].owner == part)
            w->members[left++] = (int32_t)i;
    for (int64_t before = 0; left != before;) {
        before = left, left = 0;
        for (int64_t k = 0; k < before; k++) {
            int32_t row = w->members[k], other = -1;
            for (int64_t e = v->pointers[row]; e < v->pointers[row + 1]; e++)
                if (s->nets[v->columns[e]].owner != part && (other < 0 || volume_next(s) % 2))
                    other = s->nets[v->columns[e]].owner;
            if (other >= 0)
                hand_over(s, row, other);
            else
                w->members[left++] = row;
        }
        s->spent += before;
    }
}

/* Give the rows of `part` nearest to one on its boundary to another, as many as make up half of its non-zeros. */
static void split(struct search *w, int32_t part, int32_t other)
{
    struct state *s = w->s;
    const struct volume *v = s->v;
    int64_t filled = s->head[part] >= 0, half = s->load[part] / 2;
    w->members[0] = s->head[part];
    for (int64_t at = 0; at < filled; at++) {
        w->taken[w->members[at]] = 1;
        for (int64_t e = v->pointers[w->members[at]]; e < v->pointers[w->members[at] + 1]; e++) {
            int32_t row = v->columns[e];
            if (!w->taken[row] && s->nets[row].owner == part) {
                w->taken[row] = 1;
                w->members[filled++] = row;
            }
        }
    }
    for (int64_t k = 0; k < filled; k++) {
        w->taken[w->members[k]] = 0;
        if (s->load[part] > half)
            hand_over(s, w->members[k], other);
    }
    s->spent += filled;
}

/* One of the parts outside with few non-zeros, or -1. */
static int32_t draw_light(const struct search *w)
{
    struct state *s = w->s;
    int32_t chosen = -1;
    double lowest = INFINITY;
    for (int32_t part = 0; part < s->v->parts; part++) {
        double value = (double)s->load[part] * (1 + volume_uniform(s) / 2);
        if (!w->inside[part] && value < lowest)
            lowest = value, chosen = part;
    }
    return chosen;
}

/* Draw a part, one of those above the bound if there are any (or, in a tenth of the cases, any part), and all that it meets. Now and
 * then a light part from elsewhere is dissolved, takes half of it, and both places are the neighbourhood: where parts cannot all be
 * small enough, there must be one more. */
static void draw_neighbourhood(struct search *w)
{
    struct state *s = w->s;
    const struct volume *v = s->v;
    int32_t centre = 0, light = -1;
    double highest = -1;
    for (int32_t part = 0; part < v->parts; part++) {
        double value = (s->send[part] > s->send_limit) + 1.1 * volume_uniform(s);
        if (value > highest)
            highest = value, centre = part;
    }
    memset(w->inside, 0, (size_t)v->parts);
    w->inside[centre] = 1;
    spread(w);
    fill_pool(w);
    int few = 4 * w->insiders < v->parts;
    if (few && volume_uniform(s) < WIDE)
        spread(w);
    if (few && s->send[centre] > s->send_limit && volume_uniform(s) < TRANSPLANTS)
        light = draw_light(w);
    if (light >= 0) {
        w->inside[light] = 1;
        spread(w);
        spread(w);
        dissolve(w, light);
        split(w, centre, light);
    }
    fill_pool(w);
}

/* Anneal the parts inside, from somewhere in the schedule to its end; what the best partition met late is worth, that in `trial`. */
static double anneal_inside(struct search *w)
{
    struct state *s = w->s;
    double from = HOTTEST * volume_uniform(s), lowest = INFINITY;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double progress = from + (1 - from) * sweep / SWEEPS, value;
        if (sweep % PRICING == 0)
            set_prices(s, progress);
        for (int32_t k = 0; k < w->insiders; k++)
            try_interface(w, heat_at(s, progress));
        if (progress > LATE && (value = worth(s)) < lowest) {
            lowest = value;
            copy_parts(s, w->trial);
        }
        if (sweep % 10 == 9)
            fill_pool(w);
    }
    return lowest;
}

/* Where all parts keep to the bound, go on from there with one that they do not keep to; 0 if there is nothing to do. */
static int tighten(struct search *w)
{
    struct state *s = w->s;
    struct volume *v = s->v;
    int kept = 0;
    for (; volume_most(v->send, v->parts) <= v->send_least && v->send_least > 1; kept = 1)
        v->send_least -= 1;
    if (kept) {
        return_to(s, v->part);
        copy_parts(s, w->now);
        set_prices(s, 1);
        s->lowest = worth(s);
    }
    return kept;
}

static void improve_neighbourhoods(struct search *w)
{
    struct state *s = w->s;
    struct volume *v = s->v;
    volume_gather(s);
    copy_parts(s, w->now);
    tighten(w);
    double current = s->lowest;
    while (s->spent < v->work) {
        set_prices(s, 1);
        draw_neighbourhood(w);
        if (!w->pool_count)
            return;
        double value = anneal_inside(w), patience = PATIENCE * (1 - (double)s->spent / (double)v->work);
        return_to(s, w->trial);
        if (value < s->lowest) {
            s->lowest = value;
            volume_keep(s);
        }
        if (tighten(w))
            current = s->lowest;
        else if (value <= current - patience * log(1 - volume_uniform(s))) {
            copy_parts(s, w->now);
            current = worth(s);
        } else
            return_to(s, w->now);
        volume_gather(s);
    }
}

int volume_interfaces(struct state *s)
{
    const struct volume *v = s->v;
    struct search w = {.s = s};
    size_t nodes = (size_t)v->nodes + 1, nonzeros = (size_t)v->pointers[v->nodes] + 1;
    struct {
        void **array;
        size_t bytes;
    } arrays[] = {
        {(void **)&w.members, sizeof *w.members * nodes},
        {(void **)&w.entries, sizeof *w.entries * nodes},
        {(void **)&w.reached, sizeof *w.reached * nodes},
        {(void **)&w.marks, sizeof *w.marks * nodes},
        {(void **)&w.path, sizeof *w.path * nodes},
        {(void **)&w.changed, sizeof *w.changed * nodes},
        {(void **)&w.taken, nodes},
        {(void **)&w.flow, nonzeros},
        {(void **)&w.mate, sizeof *w.mate * nonzeros},
        {(void **)&w.inside, (size_t)v->parts + 1},
        {(void **)&w.pool, sizeof *w.pool * nodes},
        {(void **)&w.now, sizeof *w.now * nodes},
        {(void **)&w.trial, sizeof *w.trial * nodes},
    };
    int status = 0;
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        if (!(*arrays[k].array = calloc(arrays[k].bytes, 1)))
            status = -1;
    if (!status) {
        find_mates(&w);
        set_prices(s, 1);
        s->lowest = worth(s);
        volume_keep(s);
        v->moves == VOLUME_NEIGHBOURHOODS ? improve_neighbourhoods(&w) : anneal(&w);
    }
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        free(*arrays[k].array);
    return status;
}
