/* Refinement for volume (volume.h): annealing over the rows on the boundary, with exact volumes.
 *
 * The net of column j holds row j and all rows with a non-zero in column j. The part of row j, its owner,
 * sends row j of H to every other part in the net.
 *
 * The objective is the sum over parts of x + c max(0, x - T)^2 for the x rows of H that a part sends, T being
 * the bound, and the second term again for those that it receives. Its marginal price tells what one more or
 * one less part in a net costs: 1 where the owner sends little, more where it sends much. c rises as the
 * temperature falls, and so does the price of non-zeros above the capacity.
 * Acer, Selvitopi and Aykanat (Parallel Computing 59, 2016) put such costs on the vertices of a recursive
 * bisection. Here all K parts and their volumes are known at every move, so the costs are exact. */

#include "volume.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCAN 12     /* a net of more places finds a part's place through a table */
#define GATHERING 2 /* visits per node and non-zero between two searches for the boundary */
#define COOLING 3   /* the temperature falls by this power of e */
#define SLOPE 20    /* what a row above a bound costs at first, at twice the bound, */
#define STEEPER 380 /* and how much more at last */
#define ROOM 0.99   /* share of the capacity up to which non-zeros cost nothing */
#define SOFT 3      /* what those above that cost at first, relative to the bound on sends, */
#define STIFFER 33  /* and by which factor they become dearer */
#define STRICT 0.9  /* from this share of the work on, no part may take more non-zeros than its capacity */

/* How many rows of a net stand in a part. */
struct place {
    int32_t part, rows;
};

/* The net of a column. One struct, as nets are visited in no order and every array would be a cache miss. */
struct net {
    int64_t first;  /* of its places */
    int64_t table;  /* where its table begins, or -1 */
    int32_t length; /* parts in it */
    int32_t owner;  /* the part of the row of H */
};

/* What speaks for moving the row in hand to a part. */
struct offer {
    double gain;
    int32_t nets, inside; /* nets of the row that hold the part; does the row's own net hold it? */
};

struct state {
    struct volume *v;
    struct net *nets;     /* nodes */
    struct place *places; /* of all nets; a net has room for every part that its rows can be in */
    int32_t *table;       /* of the large nets: part -> place, or -1 */
    int64_t *send, *receive, *load; /* parts */
    double *more, *less;  /* parts: what sending a row more costs, what sending a row less saves */
    double *price;        /* nodes: of the nets of the row in hand */
    struct offer *offers; /* parts: of the row in hand */
    int32_t *seen, seen_count;
    int32_t *boundary; /* rows that share a net with another part, and some that did */
    int64_t boundary_count;
    char *listed;      /* nodes: is it on the boundary's list? */
    double load_slope; /* or 0: then the capacity is strict */
    int64_t least;     /* non-zeros: nothing leaves a part with less than half of that, until then */
    double lowest;     /* what the best partition met is worth */
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

static int64_t row_nonzeros(const struct volume *v, int64_t i) { return v->pointers[i + 1] - v->pointers[i]; }

static double excess(double x, double limit, double slope)
{
    double over = x - limit;
    return over > 0 ? slope * over * over : 0;
}

static double send_cost(const struct state *s, int64_t x)
{
    return (double)x + excess((double)x, s->send_limit, s->send_slope);
}

static double receive_cost(const struct state *s, int64_t x)
{
    return excess((double)x, s->receive_limit, s->receive_slope);
}

/* Too many non-zeros are allowed for a time, at a price: room can only be passed on from part to part, as all
 * parts are nearly full. */
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

static double average_sent(const struct state *s)
{
    double total = 0;
    for (int32_t part = 0; part < s->v->parts; part++)
        total += (double)s->send[part];
    return total / s->v->parts;
}

/* Follow the average, and make what is above the bounds cost `slope` per row at twice the bound. */
static void set_prices(struct state *s, double slope)
{
    const struct volume *v = s->v;
    double average = average_sent(s);
    s->send_limit = floor(v->send_bound * average);
    s->receive_limit = floor(v->receive_bound * average);
    s->send_slope = slope / (2 * s->send_limit + 2);
    s->receive_slope = slope / (2 * s->receive_limit + 2);
    for (int32_t part = 0; part < v->parts; part++)
        set_price(s, part);
}

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
    int32_t at = find(s, net, part);
    if (--places[at].rows)
        return 0;
    int32_t last = --n->length;
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
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++)
            rows[v->columns[e]] += v->columns[e] != i;
    for (int64_t i = 0; i < v->nodes; i++) {
        int64_t room = rows[i] < v->parts ? rows[i] + 1 : v->parts; /* row i itself, too */
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
    return 0;
}

static void fill_nets(struct state *s)
{
    struct volume *v = s->v;
    for (int64_t i = 0; i < v->nodes; i++) {
        enter(s, i, v->part[i]);
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++)
            if (v->columns[e] != i)
                enter(s, v->columns[e], v->part[i]);
        s->load[v->part[i]] += row_nonzeros(v, i);
    }
    for (int64_t i = 0; i < v->nodes; i++) {
        const struct place *places = s->places + s->nets[i].first;
        s->send[v->part[i]] += s->nets[i].length - 1;
        for (int32_t at = 0; at < s->nets[i].length; at++)
            s->receive[places[at].part] += places[at].part != v->part[i];
    }
}

/* Move row i to part b: nets, volumes, loads and prices. The owners of its other nets stay, and send more or
 * less; the owner of its own net changes. */
static void move(struct state *s, int64_t i, int32_t b)
{
    struct volume *v = s->v;
    int32_t a = s->nets[i].owner, sent = s->nets[i].length - 1, emptied, entered;
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        int32_t net = v->columns[e], owner = s->nets[net].owner;
        if (net == i)
            continue;
        emptied = leave(s, net, a);
        entered = enter(s, net, b);
        s->receive[a] -= emptied;
        s->receive[b] += entered;
        if (entered != emptied) {
            s->send[owner] += entered - emptied;
            set_price(s, owner);
        }
    }
    emptied = leave(s, i, a);
    entered = enter(s, i, b);
    s->receive[a] += !emptied;
    s->receive[b] -= !entered;
    s->send[a] -= sent;
    s->send[b] += sent + entered - emptied;
    s->load[a] -= row_nonzeros(v, i);
    s->load[b] += row_nonzeros(v, i);
    s->nets[i].owner = b;
    set_price(s, a);
    set_price(s, b);
}

/* What the nets of row i, apart from its own, cost if it moves: `base` to a part that is in none of them, and
 * at least -`most` to any part. A row alone in its part takes the part out of the net; otherwise it brings
 * the new part in, unless it is there. The price of either is kept for `look`. Returns the number of nets,
 * and in `left` in how many the row is alone. */
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
    const double *price = s->price;
    int32_t seen = 0;
    for (int32_t k = 0; k < s->seen_count; k++)
        s->offers[s->seen[k]] = (struct offer){0, 0, 0};
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        int64_t net = v->columns[e];
        if (net == i)
            continue;
        const struct place *places = s->places + s->nets[net].first;
        for (int32_t at = 0, length = s->nets[net].length; at < length; at++) {
            struct offer *offer = s->offers + places[at].part;
            s->seen[seen] = places[at].part;
            seen += !offer->nets++;
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

/* The best part for row i among those that share a net with it, where that adds less than `limit` to the
 * objective, or else -1. */
static int32_t best(struct state *s, int64_t i, double limit)
{
    struct volume *v = s->v;
    double base, most;
    int64_t weight = row_nonzeros(v, i), left;
    int32_t a = s->nets[i].owner, sent = s->nets[i].length - 1, choice = -1;
    int strict = !(s->load_slope > 0), over = strict && s->load[a] > v->capacity;
    if (!strict && (s->load[a] - weight) * 2 < s->least) {
        s->spent++;
        return -1; /* a part that all its rows have left is in no net, where others would meet it again */
    }
    int64_t nets = price_nets(s, i, &base, &most, &left);
    int32_t kept = s->places[s->nets[i].first + find(s, i, a)].rows > 1, least = sent + kept - 1;
    double without = send_cost(s, s->send[a] - sent) - send_cost(s, s->send[a]);
    without += receive_cost(s, s->receive[a] - left + kept) - receive_cost(s, s->receive[a]);
    without += load_cost(s, s->load[a] - weight) - load_cost(s, s->load[a]);
    if (over)
        limit = INFINITY; /* out, whatever it costs */
    /* Where it goes, at least `least` rows are sent more; most rows are not worth a closer look. */
    without += least;
    if (without - most >= limit)
        return -1;
    look(s, i);
    for (int32_t k = 0; k < s->seen_count; k++) {
        int32_t b = s->seen[k];
        const struct offer *offer = s->offers + b;
        int64_t load = s->load[b] + weight, sends = s->send[b] + least + 1 - offer->inside;
        int64_t receives = s->receive[b] + nets - offer->nets - offer->inside;
        double change = base - offer->gain + without;
        if (b == a || change >= limit || (strict && load > v->capacity && !(over && load < s->load[a])))
            continue;
        change += load_cost(s, load) - load_cost(s, s->load[b]);
        change += send_cost(s, sends) - send_cost(s, s->send[b]) - least;
        change += receive_cost(s, receives) - receive_cost(s, s->receive[b]);
        if (change < limit)
            choice = b, limit = change;
    }
    return choice;
}

static void list(struct state *s, int64_t i)
{
    if (!s->listed[i])
        s->boundary[s->boundary_count++] = (int32_t)i;
    s->listed[i] = 1;
}

static void gather(struct state *s)
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

/* Visit the rows on the boundary once, in random order. */
static void sweep(struct state *s, double heat)
{
    const struct volume *v = s->v;
    for (int64_t k = s->boundary_count - 1; k >= 0; k--) {
        int64_t other = (int64_t)(next(s) % (uint64_t)(k + 1));
        int32_t i = s->boundary[other];
        s->boundary[other] = s->boundary[k];
        s->boundary[k] = i;
        int32_t b = best(s, i, -heat * log(1 - uniform(s)));
        if (b < 0)
            continue;
        move(s, i, b);
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++)
            list(s, v->columns[e]); /* rows that A reaches one way only wait for the next gathering */
    }
}

static double largest(const struct state *s, const int64_t *of_parts)
{
    int64_t found = 0;
    for (int32_t part = 0; part < s->v->parts; part++)
        found = of_parts[part] > found ? of_parts[part] : found;
    return (double)found;
}

/* Keep the partition in hand if the fewest rows are sent on average and at most, and received too many. */
static void keep_if_best(struct state *s)
{
    struct volume *v = s->v;
    double average = average_sent(s), receives = v->receive_bound * average;
    double value = average + largest(s, s->send) + fmax(0, largest(s, s->receive) - receives);
    value *= 1 + 100 * fmax(0, largest(s, s->load) / (double)v->capacity - 1);
    if (value >= s->lowest)
        return;
    s->lowest = value;
    for (int64_t i = 0; i < v->nodes; i++)
        v->part[i] = s->nets[i].owner;
    memcpy(v->send, s->send, (size_t)v->parts * sizeof *v->send);
    memcpy(v->receive, s->receive, (size_t)v->parts * sizeof *v->receive);
}

static void anneal(struct state *s)
{
    const struct volume *v = s->v;
    int64_t gathering = 0;
    keep_if_best(s);
    for (double progress = 0; progress < 1; progress = (double)s->spent / (double)v->work) {
        if (s->spent >= gathering) {
            gather(s);
            gathering = s->spent + GATHERING * (v->nodes + v->pointers[v->nodes]);
        }
        if (!s->boundary_count)
            return;
        set_prices(s, SLOPE + STEEPER * progress * progress);
        s->load_slope = progress < STRICT ? SOFT * pow(STIFFER, progress) : 0;
        sweep(s, v->heat * exp(-COOLING * progress));
        keep_if_best(s);
    }
}

int volume_refine(struct volume *v)
{
    struct state s = {.v = v, .random = v->seed, .lowest = INFINITY};
    size_t nodes = (size_t)v->nodes + 1, parts = (size_t)v->parts + 1;
    struct {
        void **array;
        size_t bytes;
    } arrays[] = {
        {(void **)&s.nets, sizeof *s.nets * nodes},
        {(void **)&s.price, sizeof *s.price * nodes},
        {(void **)&s.boundary, sizeof *s.boundary * nodes},
        {(void **)&s.listed, nodes},
        {(void **)&s.send, sizeof *s.send * parts},
        {(void **)&s.receive, sizeof *s.receive * parts},
        {(void **)&s.load, sizeof *s.load * parts},
        {(void **)&s.more, sizeof *s.more * parts},
        {(void **)&s.less, sizeof *s.less * parts},
        {(void **)&s.offers, sizeof *s.offers * parts},
        {(void **)&s.seen, sizeof *s.seen * (parts + 1)},
    };
    int status = 0;
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        if (!(*arrays[k].array = calloc(arrays[k].bytes, 1)))
            status = -1;
    if (!status && !(status = make_nets(&s))) {
        fill_nets(&s);
        s.least = (int64_t)fmin(1.1 * (double)v->pointers[v->nodes] / v->parts, (double)v->capacity);
        anneal(&s);
    }
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        free(*arrays[k].array);
    free(s.places);
    free(s.table);
    return status;
}
