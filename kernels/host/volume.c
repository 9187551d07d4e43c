/* Refinement for volume (volume.h): annealing over the rows on the boundary, with exact volumes.
 *
 * The objective is the sum over parts of x + c max(0, x - T)^2 for the rows x that a part sends, T being the bound, and the
 * second term again for the rows it receives. Its marginal price tells a row what one more or one less part in a net costs: 1
 * at a part with little to send, more at a part with too much. c rises as the temperature falls, and so does the price of
 * non-zeros above the capacity. What moves is a row, or where few rows are on the boundary the whole interface between two parts.
 * Acer, Selvitopi and Aykanat (Parallel Computing 59, 2016) put such costs on the vertices of a recursive
 * bisection; here all K parts and their volumes are known at every move, so the costs are exact. */

#include "volume.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCAN 12      /* a net of more places finds a part's place through a table */
#define GATHERING 2  /* visits per node and non-zero between two searches for the boundary */
#define ROOM 0.99    /* share of the capacity up to which non-zeros cost nothing */
#define SOFT 3       /* what those above that cost at first, */
#define STIFF 33     /* by which factor they become dearer while rows move, */
#define STIFFER 3e4  /* and while interfaces do */
#define STRICT 0.9   /* when so much of the work on rows is done, no part may get more non-zeros than its capacity any more */
#define COOLING 3    /* the temperature falls by this power of e */

/* How many rows of a net stand in a part. */
struct place {
    int32_t part, rows;
};

/* The net of a column; together, as nets are visited in no order and what is apart costs a cache miss each. */
struct net {
    int64_t first; /* of its places */
    int64_t table; /* where its table begins, or -1 */
    int32_t length; /* parts in it */
    int32_t owner;  /* the part of the row of H */
};

/* What speaks for moving the row in hand to a part. */
struct offer {
    double gain;
    int32_t nets, inside; /* those of the row that hold the part; is it in the row's own net? */
};

struct state {
    struct volume *v;
    struct net *nets;     /* nodes */
    struct place *places; /* of all nets; a net has room for every part that its rows can be in */
    int32_t *table;       /* of the large nets: part -> place, or -1 */
    int64_t *send, *receive, *load;
    double *more, *less;  /* parts: what sending a row more costs, what sending one less saves */
    double *price;        /* nodes: of the nets of the row in hand */
    struct offer *offers; /* parts: of the row in hand */
    int32_t *seen, seen_count;
    int32_t *boundary; /* rows that share a net with another part, and some that did */
    int64_t boundary_count;
    char *listed; /* nodes: is it in there? */
    int32_t *members; /* nodes: the rows of a window */
    int32_t *seeds;        /* nodes: met by a search */
    char *taken;           /* nodes: is it in there? */
    char *side;            /* nodes: of the interface in hand */
    signed char *flow;     /* non-zeros: from the row to the column; the arc the other way has its negative */
    int64_t *arc;          /* nodes: on the path by which a search met it, the arc back; or -1 - the arc to the source */
    int32_t *changed;      /* nodes: those that would change parts */
    double load_slope;     /* or 0: then the capacity is strict */
    int64_t least;         /* non-zeros: rows leave no part with less than half of that, until then */
    double lowest;         /* what that partition is worth */
    int64_t total;
    double send_limit, receive_limit, send_slope, receive_slope;
    int64_t spent;
    uint64_t random;
};

static uint64_t next(struct state *s) /* SplitMix64 */
{
    uint64_t z = (s->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(struct state *s) { return (double)(next(s) >> 11) * 0x1p-53; }

static double excess(double x, double limit, double slope)
{
    double over = x - limit;
    return over > 0 ? slope * over * over : 0;
}

static double send_cost(const struct state *s, int64_t x)
{
    return (double)x + excess((double)x, s->send_limit, s->send_slope);
}

static double receive_cost(const struct state *s, int64_t x) { return excess((double)x, s->receive_limit, s->receive_slope); }

/* Too many non-zeros are allowed for a time, at a price: only so is room passed on from part to part, as all are nearly full. */
static double load_cost(const struct state *s, int64_t x)
{
    return excess((double)x / (ROOM * (double)s->v->capacity), 1, s->load_slope * s->send_limit);
}

static void set_price(struct state *s, int32_t part)
{
    double here = send_cost(s, s->send[part]);
    s->more[part] = send_cost(s, s->send[part] + 1) - here;
    s->less[part] = here - send_cost(s, s->send[part] - 1);
}

/* -- nets -- */

static int32_t find(const struct state *s, int64_t net, int32_t part)
{
    const struct net *n = s->nets + net;
    const struct place *places = s->places + n->first;
    if (n->length > SCAN)
        return s->table[n->table + part];
    for (int32_t i = 0; i < n->length; i++)
        if (places[i].part == part)
            return i;
    return -1;
}

/* One row more of `part` in the net: is it the first? */
static int enter(struct state *s, int64_t net, int32_t part)
{
    struct net *n = s->nets + net;
    int32_t at = find(s, net, part);
    if (at >= 0) {
        s->places[n->first + at].rows++;
        return 0;
    }
    at = n->length++;
    s->places[n->first + at] = (struct place){part, 1};
    if (n->table >= 0)
        s->table[n->table + part] = at;
    return 1;
}

/* One row less: was it the last? */
static int leave(struct state *s, int64_t net, int32_t part)
{
    struct net *n = s->nets + net;
    struct place *places = s->places + n->first;
    int32_t at = find(s, net, part), last;
    if (--places[at].rows)
        return 0;
    last = --n->length;
    places[at] = places[last];
    if (n->table >= 0) {
        s->table[n->table + places[last].part] = at;
        s->table[n->table + part] = -1;
    }
    return 1;
}

static int make_nets(struct state *s)
{
    struct volume *v = s->v;
    int64_t *rows = calloc((size_t)v->nodes + 1, sizeof *rows), tables = 0, places = 0;
    if (!rows)
        return -1;
    for (int64_t i = 0; i < v->nodes; i++)
        rows[i] = 1;
    for (int64_t i = 0; i < v->nodes; i++)
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++)
            rows[v->columns[e]] += v->columns[e] != i;
    for (int64_t i = 0; i < v->nodes; i++) {
        int64_t room = rows[i] < v->parts ? rows[i] : v->parts;
        s->nets[i] = (struct net){places, room > SCAN ? tables : -1, 0, v->part[i]};
        places += room;
        tables += room > SCAN ? v->parts : 0;
    }
    free(rows);
    s->places = malloc((size_t)(places + 1) * sizeof *s->places);
    s->table = malloc((size_t)(tables + 1) * sizeof *s->table);
    if (!s->places || !s->table)
        return -1;
    memset(s->table, -1, (size_t)tables * sizeof *s->table);
    for (int64_t i = 0; i < v->nodes; i++) {
        enter(s, i, s->nets[i].owner);
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++)
            if (v->columns[e] != i)
                enter(s, v->columns[e], s->nets[i].owner);
        s->load[s->nets[i].owner] += v->weights[i];
    }
    return 0;
}

static void count_volumes(struct state *s)
{
    struct volume *v = s->v;
    for (int64_t i = 0; i < v->nodes; i++) {
        s->send[s->nets[i].owner] += s->nets[i].length - 1;
        s->total += s->nets[i].length - 1;
        for (int32_t at = 0; at < s->nets[i].length; at++) {
            int32_t part = s->places[s->nets[i].first + at].part;
            s->receive[part] += part != s->nets[i].owner;
        }
    }
}

/* -- one move -- */

/* Move row i to part b. Of every other net of the row the owner stays, and sends more or less; of its own net the owner changes. */
static void move(struct state *s, int64_t i, int32_t b)
{
    struct volume *v = s->v;
    int32_t a = s->nets[i].owner, sent = s->nets[i].length - 1;
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        int32_t net = v->columns[e], owner, emptied, entered;
        if (net == i)
            continue;
        owner = s->nets[net].owner;
        emptied = leave(s, net, a);
        entered = enter(s, net, b);
        s->receive[a] -= emptied;
        s->receive[b] += entered;
        if (entered != emptied) {
            s->send[owner] += entered - emptied;
            s->total += entered - emptied;
            set_price(s, owner);
        }
    }
    int32_t emptied = leave(s, i, a), entered = enter(s, i, b);
    s->receive[a] += !emptied;
    s->receive[b] -= !entered;
    s->send[a] -= sent;
    s->send[b] += sent + entered - emptied;
    s->total += entered - emptied;
    s->load[a] -= v->weights[i];
    s->load[b] += v->weights[i];
    set_price(s, a);
    set_price(s, b);
    s->nets[i].owner = b;
}

/* What the nets of row i, apart from its own, cost if it moves: `base` to a part that shares none of them, and no less than -`most`.
 * Alone in its part in a net, the row takes the part out of it; else it brings another in, unless that is there. The price of either is
 * kept for `look`. Returns the number of nets, and in `left` in how many the row is alone. */
static int64_t price_nets(struct state *s, int64_t i, double *base, double *most, int64_t *left)
{
    const struct volume *v = s->v;
    int32_t a = s->nets[i].owner;
    int64_t nets = 0;
    *base = *most = 0, *left = 0;
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        int64_t net = v->columns[e];
        int32_t owner = s->nets[net].owner;
        if (net == i)
            continue;
        int alone = owner != a && s->places[s->nets[net].first + find(s, net, a)].rows == 1;
        double price = alone ? s->less[owner] : s->more[owner];
        s->price[nets++] = price;
        *left += alone;
        *base += alone ? 0 : price;
        *most += alone ? price : 0;
    }
    s->spent += nets + 1;
    return nets;
}

/* What every part that shares a net with row i saves in these nets against a part that shares none: gain. */
static void look(struct state *s, int64_t i)
{
    const struct volume *v = s->v;
    int32_t seen = 0;
    for (int32_t k = 0; k < s->seen_count; k++)
        s->offers[s->seen[k]] = (struct offer){0, 0, 0};
    const double *price = s->price;
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        int64_t net = v->columns[e];
        if (net == i)
            continue;
        const struct place *places = s->places + s->nets[net].first;
        for (int32_t at = 0, length = s->nets[net].length; at < length; at++) {
            struct offer *offer = s->offers + places[at].part;
            s->seen[seen] = places[at].part;
            seen += !offer->nets++ && !offer->inside;
            offer->gain += *price;
        }
        price++;
    }
    const struct place *own = s->places + s->nets[i].first;
    for (int32_t at = 0; at < s->nets[i].length; at++) {
        struct offer *offer = s->offers + own[at].part;
        s->seen[seen] = own[at].part;
        seen += !offer->nets;
        offer->inside = 1;
    }
    s->seen_count = seen;
}

/* The best part for row i among those that share a net with it where that adds less than `limit` to the objective, or else -1. */
static int32_t best(struct state *s, int64_t i, double limit)
{
    struct volume *v = s->v;
    double base, most;
    int64_t weight = v->weights[i], left, nets;
    int strict = !(s->load_slope > 0);
    if (!strict && (s->load[s->nets[i].owner] - weight) * 2 < s->least) {
        s->spent++;
        return -1; /* a part that all its rows have left is in no net, where others would meet it again */
    }
    nets = price_nets(s, i, &base, &most, &left);
    int32_t a = s->nets[i].owner, sent = s->nets[i].length - 1, choice = -1;
    int32_t kept = s->places[s->nets[i].first + find(s, i, a)].rows > 1;
    int over = strict && s->load[a] > v->capacity;
    double without = send_cost(s, s->send[a] - sent) - send_cost(s, s->send[a]);
    without += receive_cost(s, s->receive[a] - left + kept) - receive_cost(s, s->receive[a]);
    without += load_cost(s, s->load[a] - weight) - load_cost(s, s->load[a]);
    if (over)
        limit = INFINITY; /* out, whatever it costs */
    /* Where it goes, at least sent + kept - 1 rows are sent more; most rows are not worth a closer look. */
    without += sent + kept - 1;
    if (without - most >= limit)
        return -1;
    look(s, i);
    for (int32_t k = 0; k < s->seen_count; k++) {
        int32_t b = s->seen[k];
        const struct offer *offer = s->offers + b;
        double change = base - offer->gain + without;
        if (change >= limit || b == a)
            continue;
        if (strict && s->load[b] + weight > v->capacity && !(over && s->load[b] + weight < s->load[a]))
            continue;
        change += load_cost(s, s->load[b] + weight) - load_cost(s, s->load[b]);
        change += send_cost(s, s->send[b] + sent + kept - offer->inside) - send_cost(s, s->send[b]) - (sent + kept - 1);
        change += receive_cost(s, s->receive[b] + nets - offer->nets - offer->inside) - receive_cost(s, s->receive[b]);
        if (change < limit) {
            choice = b;
            limit = change;
        }
    }
    return choice;
}

/* -- sweeps -- */

static void list(struct state *s, int64_t i)
{
    if (!s->listed[i])
        s->boundary[s->boundary_count++] = (int32_t)i;
    s->listed[i] = 1;
}

static void gather_boundary(struct state *s)
{
    struct volume *v = s->v;
    s->boundary_count = 0;
    memset(s->listed, 0, (size_t)v->nodes);
    for (int64_t i = 0; i < v->nodes; i++) {
        int cut = s->nets[i].length > 1;
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1] && !cut; e++)
            cut = s->nets[v->columns[e]].length > 1;
        if (cut)
            list(s, i);
    }
    s->spent += v->nodes;
}

static void shuffle(struct state *s, int32_t *rows, int64_t count)
{
    for (int64_t k = count - 1; k > 0; k--) {
        int64_t other = (int64_t)(next(s) % (uint64_t)(k + 1));
        int32_t row = rows[k];
        rows[k] = rows[other];
        rows[other] = row;
    }
}

static void sweep(struct state *s, double heat)
{
    const struct volume *v = s->v;
    shuffle(s, s->boundary, s->boundary_count);
    for (int64_t k = 0, count = s->boundary_count; k < count; k++) {
        int64_t i = s->boundary[k];
        int32_t b = best(s, i, -heat * log(1 - uniform(s)));
        if (b < 0)
            continue;
        move(s, i, b);
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++)
            list(s, v->columns[e]); /* where A is not symmetric there are more; they wait for the next gathering */
    }
}

/* -- interfaces: where two parts meet in few edges, the boundary between them moves as a whole, to a smallest cut within a window
 *    of rows around it. On a road map that carries it from one set of narrow places to the next, across rows that none
 *    would cross alone. Edges stand for volume in the cut, but what it is worth is counted exactly. Where A is not symmetric, arcs
 *    without one the other way carry no flow, and such cuts are only guesses -- */

static double objective(const struct state *s)
{
    double sum = 0;
    for (int32_t part = 0; part < s->v->parts; part++)
        sum += send_cost(s, s->send[part]) + receive_cost(s, s->receive[part]);
    return sum;
}

/* Another part in the nets of a row, drawn as often as it is there; -1 if there is none. */
static int32_t neighbour(struct state *s, int64_t i)
{
    const struct volume *v = s->v;
    int32_t chosen = -1;
    uint64_t met = 0;
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        const struct net *net = s->nets + v->columns[e];
        s->spent++;
        for (int32_t at = 0; at < net->length && net->length > 1; at++) {
            int32_t part = s->places[net->first + at].part;
            if (part != s->nets[i].owner && next(s) % ++met == 0)
                chosen = part;
        }
    }
    return chosen;
}

static void move_rows(struct state *s, const int32_t *rows, int64_t count, int32_t b)
{
    for (int64_t k = 0; k < count; k++) {
        s->spent += 2 * (s->v->pointers[rows[k] + 1] - s->v->pointers[rows[k]] + 1);
        move(s, rows[k], b);
    }
}

/* In `side`: source rows will be in part a, sink rows in part b, free rows where the cut puts them. */
enum { OUTSIDE, FREE, SOURCE, SINK };

/* The rows around the boundary between two parts, `count` of them in `members` from deep in b to deep in a: the first `low` are
 * sink, those from `high` on source, and those between free. */
struct interface {
    int32_t a, b;
    int64_t count, low, high;
};

/* List the rows of `part` in breadth-first order from those next to `other`, at most `count`; the number listed. */
static int64_t approach(struct state *s, int32_t part, int32_t other, int32_t *rows, int64_t count)
{
    const struct volume *v = s->v;
    int64_t filled = 0;
    for (int64_t k = 0; k < s->boundary_count && filled < count; k++) {
        int32_t i = s->boundary[k], meets = 0;
        if (s->nets[i].owner != part)
            continue;
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1] && !meets; e++)
            meets = s->nets[v->columns[e]].owner == other;
        if (meets && !s->taken[i]) {
            s->taken[i] = 1;
            rows[filled++] = i;
        }
    }
    for (int64_t at = 0; at < filled && filled < count; at++)
        for (int64_t e = v->pointers[rows[at]]; e < v->pointers[rows[at] + 1] && filled < count; e++) {
            int32_t row = v->columns[e];
            if (!s->taken[row] && s->nets[row].owner == part) {
                s->taken[row] = 1;
                rows[filled++] = row;
            }
        }
    for (int64_t k = 0; k < filled; k++)
        s->taken[rows[k]] = 0;
    s->spent += s->boundary_count / 4 + filled;
    return filled;
}

/* Where the arc against arc e from row i begins, or -1. */
static int64_t reverse(const struct volume *v, int64_t i, int64_t e)
{
    int32_t to = v->columns[e];
    for (int64_t back = v->pointers[to]; back < v->pointers[to + 1]; back++)
        if (v->columns[back] == i)
            return back;
    return -1;
}

/* Start a search for a path at the free rows that may take a unit more from the source; the number of rows in `seeds`. */
static int64_t leave_source(struct state *s, const int32_t *rows, int64_t count)
{
    const struct volume *v = s->v;
    int64_t filled = 0;
    for (int64_t k = 0; k < count; k++)
        for (int64_t e = v->pointers[rows[k]]; e < v->pointers[rows[k] + 1] && !s->taken[rows[k]]; e++)
            if (s->side[v->columns[e]] == SOURCE && s->flow[e] > -1) {
                s->taken[rows[k]] = 1;
                s->arc[rows[k]] = -1 - e;
                s->seeds[filled++] = rows[k];
            }
    return filled;
}

/* Breadth first to the sink: the arc that enters it, from `*end`, or -1. */
static int64_t reach_sink(struct state *s, int64_t *filled, int32_t *end)
{
    const struct volume *v = s->v;
    for (int64_t at = 0; at < *filled; at++) {
        int32_t i = *end = s->seeds[at];
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
            int32_t to = v->columns[e];
            if (s->flow[e] > 0)
                continue;
            if (s->side[to] == SINK)
                return e;
            int64_t back = s->side[to] == FREE && !s->taken[to] ? reverse(v, i, e) : -1;
            if (back < 0)
                continue;
            s->taken[to] = 1;
            s->arc[to] = back;
            s->seeds[(*filled)++] = to;
        }
    }
    return -1;
}

/* Send one unit of flow along a shortest path (Edmonds and Karp) from the source to the sink through free rows; every edge takes
 * one. If none arrives, the rows reached remain in `seeds`, marked in `taken`: the source's side of a smallest cut. */
static int augment(struct state *s, const int32_t *rows, int64_t count, int64_t *reached)
{
    const struct volume *v = s->v;
    int32_t end = -1;
    *reached = leave_source(s, rows, count);
    int64_t last = reach_sink(s, reached, &end);
    s->spent += (*reached + count) / 2;
    if (last < 0)
        return 0;
    for (int64_t k = 0; k < *reached; k++)
        s->taken[s->seeds[k]] = 0;
    for (s->flow[last]++; s->arc[end] >= 0;) {
        int64_t back = s->arc[end];
        s->flow[back]--;
        s->flow[reverse(v, end, back)]++;
        end = v->columns[back];
    }
    s->flow[-1 - s->arc[end]]--;
    return 1;
}

/* Line up to `depth` rows of either part; the number of b's. */
static int64_t line_up(struct state *s, struct interface *at, int64_t depth)
{
    int64_t of_b = approach(s, at->b, at->a, s->members, depth);
    for (int64_t k = 0; k < of_b / 2; k++) {
        int32_t row = s->members[k];
        s->members[k] = s->members[of_b - 1 - k];
        s->members[of_b - 1 - k] = row;
    }
    at->count = of_b + approach(s, at->a, at->b, s->members + of_b, depth);
    return of_b;
}

static void mark(struct state *s, struct interface at)
{
    const struct volume *v = s->v;
    const int32_t *rows = s->members;
    for (int64_t k = 0; k < at.count; k++)
        s->side[rows[k]] = k < at.low ? SINK : k < at.high ? FREE : SOURCE;
    for (int64_t k = at.low; k < at.high; k++)
        for (int64_t e = v->pointers[rows[k]]; e < v->pointers[rows[k] + 1]; e++) {
            int32_t row = v->columns[e], part = s->nets[row].owner;
            if (s->side[row] == OUTSIDE)
                s->side[row] = part == at.a ? SOURCE : part == at.b ? SINK : OUTSIDE;
        }
}

static void unmark(struct state *s, struct interface at)
{
    const struct volume *v = s->v;
    const int32_t *rows = s->members;
    for (int64_t k = 0; k < at.count; k++)
        s->side[rows[k]] = OUTSIDE;
    for (int64_t k = at.low; k < at.high; k++)
        for (int64_t e = v->pointers[rows[k]]; e < v->pointers[rows[k] + 1]; e++) {
            s->side[v->columns[e]] = OUTSIDE;
            s->flow[e] = 0;
        }
}

/* List in `changed` the rows that a smallest cut would move, first `to_a` of them from b to a, then the others; their number. */
static int64_t cut(struct state *s, struct interface at, int64_t *to_a)
{
    const int32_t *rows = s->members;
    int64_t reached, moved = 0;
    mark(s, at);
    while (augment(s, rows + at.low, at.high - at.low, &reached))
        ;
    for (int into_b = 0; into_b < 2; into_b++) {
        *to_a = into_b ? *to_a : 0;
        for (int64_t k = 0; k < at.count; k++) {
            int source = k >= at.high || (k >= at.low && s->taken[rows[k]]);
            if (source != into_b && s->nets[rows[k]].owner == (into_b ? at.a : at.b))
                s->changed[moved++] = rows[k];
        }
        *to_a = into_b ? *to_a : moved;
    }
    for (int64_t k = 0; k < reached; k++)
        s->taken[s->seeds[k]] = 0;
    unmark(s, at);
    return moved;
}

/* Draw an interface and a window of rows around it; 0 if the parts drawn do not meet. */
static int draw_interface(struct state *s, struct interface *at)
{
    const struct volume *v = s->v;
    int32_t i = s->boundary[next(s) % (uint64_t)s->boundary_count];
    double deepest = (double)v->nodes / v->parts / 2;
    *at = (struct interface){.a = s->nets[i].owner, .b = neighbour(s, i)};
    if (at->b < 0)
        return 0;
    int64_t of_b = line_up(s, at, (int64_t)exp(uniform(s) * log(fmax(deepest, 16) / 16) + log(16)));
    if (!of_b || of_b == at->count)
        return 0;
    at->low = (int64_t)(next(s) % (uint64_t)at->count), at->high = (int64_t)(next(s) % (uint64_t)at->count);
    if (at->low > at->high) {
        int64_t low = at->high;
        at->high = at->low, at->low = low;
    }
    return 1;
}

static void exchange(struct state *s, int64_t to_a, int64_t moved, int32_t a, int32_t b)
{
    move_rows(s, s->changed, to_a, a);
    move_rows(s, s->changed + to_a, moved - to_a, b);
}

static double cost_of_two(const struct state *s, int32_t a, int32_t b)
{
    return objective(s) + load_cost(s, s->load[a]) + load_cost(s, s->load[b]);
}

static void sweep_interfaces(struct state *s, double heat)
{
    const struct volume *v = s->v;
    for (int64_t k = 0; k < v->parts; k++) {
        struct interface at;
        int64_t to_a;
        s->spent++;
        if (!draw_interface(s, &at))
            continue;
        int64_t moved = cut(s, at, &to_a);
        double before = cost_of_two(s, at.a, at.b);
        exchange(s, to_a, moved, at.a, at.b);
        double delta = cost_of_two(s, at.a, at.b) - before;
        if (!(delta <= 0 || delta < -heat * log(1 - uniform(s)))) {
            exchange(s, to_a, moved, at.b, at.a);
            continue;
        }
        for (int64_t r = 0; r < moved; r++)
            for (int64_t e = v->pointers[s->changed[r]]; e < v->pointers[s->changed[r] + 1]; e++)
                list(s, v->columns[e]);
    }
}

static int64_t most(const int64_t *numbers, int32_t count)
{
    int64_t largest = 0;
    for (int32_t k = 0; k < count; k++)
        if (numbers[k] > largest)
            largest = numbers[k];
    return largest;
}

static double send_limit(const struct state *s) { return fmax(s->v->send_bound * (double)s->total / s->v->parts, s->v->send_least); }

static double over(int64_t largest, double limit) { return limit > 0 && (double)largest > limit ? (double)largest / limit - 1 : 0; }

/* What the partition is worth: its volume, and two per cent of it more for every per cent that a bound is missed by. */
static double worth(const struct state *s)
{
    const struct volume *v = s->v;
    double average = (double)s->total / v->parts;
    double missed = over(most(s->send, v->parts), send_limit(s)) + over(most(s->receive, v->parts), v->receive_bound * average);
    missed += 50 * over(most(s->load, v->parts), (double)v->capacity);
    return (double)s->total * (1 + 2 * missed);
}

static void keep_if_best(struct state *s)
{
    struct volume *v = s->v;
    double value = worth(s);
    if (value >= s->lowest)
        return;
    s->lowest = value;
    for (int64_t i = 0; i < v->nodes; i++)
        v->part[i] = s->nets[i].owner;
    memcpy(v->send, s->send, (size_t)v->parts * sizeof *v->send);
    memcpy(v->receive, s->receive, (size_t)v->parts * sizeof *v->receive);
}

static void set_prices(struct state *s, double slope)
{
    struct volume *v = s->v;
    double average = (double)s->total / v->parts;
    s->send_limit = floor(send_limit(s));
    s->receive_limit = floor(v->receive_bound * average);
    s->send_slope = slope / (2 * s->send_limit + 2);
    s->receive_slope = slope / (2 * s->receive_limit + 2);
    for (int32_t part = 0; part < v->parts; part++)
        set_price(s, part);
}

/* Anneal the rows, or the interfaces: of those the bound on non-zeros hardly counts at first. */
static void anneal(struct state *s)
{
    const struct volume *v = s->v;
    int64_t gathering = 0;
    double weights = 0;
    for (int32_t part = 0; part < v->parts; part++)
        weights += (double)s->load[part];
    s->least = (int64_t)fmin(1.1 * weights / v->parts, (double)v->capacity);
    for (double progress = 0; progress < 1; progress = (double)s->spent / (double)v->work) {
        double heat = v->heat * exp(-COOLING * progress);
        if (s->spent >= gathering) {
            gather_boundary(s);
            gathering = s->spent + GATHERING * (v->nodes + v->pointers[v->nodes]);
        }
        if (!s->boundary_count)
            return;
        set_prices(s, v->interfaces ? 20 * pow(15, progress) : 20 + 380 * progress * progress);
        s->load_slope = v->interfaces ? SOFT * pow(STIFFER, progress) : progress < STRICT ? SOFT * pow(STIFF, progress) : 0;
        v->interfaces ? sweep_interfaces(s, heat) : sweep(s, heat);
        keep_if_best(s);
    }
}

int volume_refine(struct volume *v)
{
    struct state s = {.v = v, .random = v->seed};
    void **arrays[] = {
        (void **)&s.boundary, (void **)&s.members, (void **)&s.seeds, /* 4 bytes per node */
        (void **)&s.changed, (void **)&s.nets, (void **)&s.arc, /* 4, 24, 8 */
        (void **)&s.listed, (void **)&s.taken, (void **)&s.side, (void **)&s.flow, /* 1; 1 per non-zero */
        (void **)&s.send, (void **)&s.receive, (void **)&s.load, (void **)&s.more, (void **)&s.less, /* 8 per part */
        (void **)&s.offers, (void **)&s.seen, (void **)&s.price};
    size_t nodes = (size_t)v->nodes + 1, parts = (size_t)v->parts + 1;
    size_t bytes[] = {4 * nodes, 4 * nodes, 4 * nodes, 4 * nodes, sizeof *s.nets * nodes, 8 * nodes,
                      nodes, nodes, nodes, (size_t)v->pointers[v->nodes] + 1,
                      8 * parts, 8 * parts, 8 * parts, 8 * parts, 8 * parts, sizeof *s.offers * parts, 4 * parts + 4, 8 * nodes};
    int status = 0;
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) {
        *arrays[k] = calloc(bytes[k], 1);
        status |= *arrays[k] ? 0 : -1;
    }
    if (!status && !(status = make_nets(&s))) {
        count_volumes(&s);
        s.lowest = INFINITY;
        keep_if_best(&s);
        anneal(&s);
    }
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        free(*arrays[k]);
    free(s.places);
    free(s.table);
    return status;
}
