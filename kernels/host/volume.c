/* Refinement for volume (volume.h): annealing over the rows on the boundary, with exact volumes.
 *
 * The net of column j holds row j and all rows with a non-zero in column j. The part of row j, its owner,
 * sends row j of H to every other part in the net.
 *
 * The objective is the sum over parts of x + c max(0, x - T)^2 for the x rows of H that a part sends, T being
 * the bound. Its marginal price tells what one more or one less part in a net costs: 1 where the owner sends
 * little, more where it sends much. c rises as the temperature falls.
 * Acer, Selvitopi and Aykanat (Parallel Computing 59, 2016) put such costs on the vertices of a recursive
 * bisection. Here all K parts and their volumes are known at every move, so the costs are exact. */

#include "volume.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COOLING 3   /* the temperature falls by this power of e */
#define SLOPE 20    /* what a row above the bound costs at first, at twice the bound, */
#define STEEPER 380 /* and how much more at last */

/* How many rows of a net stand in a part. */
struct place {
    int32_t part, rows;
};

/* The net of a column. One struct, as nets are visited in no order and every array would be a cache miss. */
struct net {
    int64_t first;  /* of its places */
    int32_t length; /* parts in it */
    int32_t owner;  /* the part of the row of H */
};

/* What speaks for moving the row in hand to a part. */
struct offer {
    double gain;
    int32_t met, inside; /* does a net of the row hold the part; does the row's own net? */
};

struct state {
    struct volume *v;
    struct net *nets;     /* nodes */
    struct place *places; /* of all nets; a net has room for every part that its rows can be in */
    int64_t *send, *load; /* parts */
    double *more, *less;  /* parts: what sending a row more costs, what sending a row less saves */
    double *price;        /* nodes: of the nets of the row in hand */
    struct offer *offers; /* parts: of the row in hand */
    int32_t *seen, seen_count;
    int32_t *boundary; /* rows that share a net with another part */
    double lowest;     /* what the best partition met is worth */
    double limit, slope;
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

static double cost(const struct state *s, int64_t x)
{
    double over = fmax(0, (double)x - s->limit);
    return (double)x + s->slope * over * over;
}

static void set_price(struct state *s, int32_t part)
{
    double here = cost(s, s->send[part]);
    s->more[part] = cost(s, s->send[part] + 1) - here;
    s->less[part] = here - cost(s, s->send[part] - 1);
}

static double average_sent(const struct state *s)
{
    double total = 0;
    for (int32_t part = 0; part < s->v->parts; part++)
        total += (double)s->send[part];
    return total / s->v->parts;
}

static int32_t find(const struct state *s, int64_t net, int32_t part)
{
    const struct place *places = s->places + s->nets[net].first;
    for (int32_t i = 0; i < s->nets[net].length; i++)
        if (places[i].part == part)
            return i;
    return -1;
}

/* One row more of `part` in the net: is it the first? */
static int enter(struct state *s, int64_t net, int32_t part)
{
    struct net *n = s->nets + net;
    int32_t at = find(s, net, part);
    if (at >= 0)
        s->places[n->first + at].rows++;
    else
        s->places[n->first + n->length++] = (struct place){part, 1};
    return at < 0;
}

/* One row less: was it the last? */
static int leave(struct state *s, int64_t net, int32_t part)
{
    struct net *n = s->nets + net;
    struct place *place = s->places + n->first + find(s, net, part);
    if (--place->rows)
        return 0;
    *place = s->places[n->first + --n->length];
    return 1;
}

static int make_nets(struct state *s)
{
    struct volume *v = s->v;
    int64_t *rows = calloc((size_t)v->nodes + 1, sizeof *rows), places = 0;
    if (!rows)
        return -1;
    for (int64_t i = 0; i < v->nodes; i++)
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++)
            rows[v->columns[e]] += v->columns[e] != i;
    for (int64_t i = 0; i < v->nodes; i++) {
        s->nets[i] = (struct net){places, 0, v->part[i]};
        places += rows[i] < v->parts ? rows[i] + 1 : v->parts; /* row i itself, too */
    }
    free(rows);
    s->places = malloc((size_t)(places + 1) * sizeof *s->places);
    return s->places ? 0 : -1;
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
    for (int64_t i = 0; i < v->nodes; i++)
        s->send[v->part[i]] += s->nets[i].length - 1;
}

/* Move row i to part b: nets, volumes, loads and prices. The owners of its other nets stay, and send more or
 * less; the owner of its own net changes. */
static void move(struct state *s, int64_t i, int32_t b)
{
    struct volume *v = s->v;
    int32_t a = s->nets[i].owner;
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        int32_t net = v->columns[e], owner = s->nets[net].owner;
        if (net == i)
            continue;
        int emptied = leave(s, net, a), entered = enter(s, net, b);
        if (entered != emptied) {
            s->send[owner] += entered - emptied;
            set_price(s, owner);
        }
    }
    s->send[a] -= s->nets[i].length - 1;
    leave(s, i, a);
    enter(s, i, b);
    s->send[b] += s->nets[i].length - 1;
    s->load[a] -= row_nonzeros(v, i);
    s->load[b] += row_nonzeros(v, i);
    s->nets[i].owner = b;
    set_price(s, a);
    set_price(s, b);
}

/* What the nets of row i, apart from its own, cost if it moves: `base` to a part that is in none of them, and
 * at least -`most` to any part. A row alone in its part takes the part out of the net; otherwise it brings
 * the new part in, unless it is there. The price of either is kept for `look`. */
static void price_nets(struct state *s, int64_t i, double *base, double *most)
{
    const struct volume *v = s->v;
    int32_t a = s->nets[i].owner;
    double *price = s->price;
    *base = *most = 0;
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        int64_t net = v->columns[e];
        int32_t owner = s->nets[net].owner;
        if (net == i)
            continue;
        int alone = owner != a && s->places[s->nets[net].first + find(s, net, a)].rows == 1;
        *price = alone ? s->less[owner] : s->more[owner];
        *(alone ? most : base) += *price++;
    }
    s->spent += price - s->price + 1;
}

static struct offer *meet(struct state *s, int32_t part)
{
    struct offer *offer = s->offers + part;
    if (!offer->met)
        s->seen[s->seen_count++] = part;
    offer->met = 1;
    return offer;
}

/* What every part that shares a net with row i saves in these nets against a part that shares none: gain. */
static void look(struct state *s, int64_t i)
{
    const struct volume *v = s->v;
    const double *price = s->price;
    while (s->seen_count)
        s->offers[s->seen[--s->seen_count]] = (struct offer){0, 0, 0};
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        int64_t net = v->columns[e];
        if (net == i)
            continue;
        const struct place *places = s->places + s->nets[net].first;
        for (int32_t at = 0, length = s->nets[net].length; at < length; at++)
            meet(s, places[at].part)->gain += *price;
        price++;
    }
    const struct place *own = s->places + s->nets[i].first;
    for (int32_t at = 0; at < s->nets[i].length; at++)
        meet(s, own[at].part)->inside = 1;
}

/* The best part for row i among those that share a net with it, where that adds less than `limit` to the
 * objective, or else -1. */
static int32_t best(struct state *s, int64_t i, double limit)
{
    struct volume *v = s->v;
    double base, most;
    int64_t weight = row_nonzeros(v, i);
    int32_t a = s->nets[i].owner, sent = s->nets[i].length - 1, choice = -1;
    int over = s->load[a] > v->capacity;
    price_nets(s, i, &base, &most);
    if (over)
        limit = INFINITY; /* out, whatever it costs */
    /* Where it goes, at least `least` rows are sent more; most rows are not worth a closer look. */
    int32_t least = sent - (s->places[s->nets[i].first + find(s, i, a)].rows == 1);
    double without = cost(s, s->send[a] - sent) - cost(s, s->send[a]);
    if (without + least - most >= limit)
        return -1;
    look(s, i);
    for (int32_t k = 0; k < s->seen_count; k++) {
        int32_t b = s->seen[k];
        int64_t load = s->load[b] + weight, sends = s->send[b] + least + 1 - s->offers[b].inside;
        double change = base - s->offers[b].gain + without + cost(s, sends) - cost(s, s->send[b]);
        if (b == a || change >= limit || (load > v->capacity && !(over && load < s->load[a])))
            continue;
        choice = b, limit = change;
    }
    return choice;
}

static int64_t gather(struct state *s)
{
    const struct volume *v = s->v;
    int64_t count = 0;
    for (int64_t i = 0; i < v->nodes; i++) {
        int cut = s->nets[i].length > 1;
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1] && !cut; e++)
            cut = s->nets[v->columns[e]].length > 1;
        if (cut)
            s->boundary[count++] = (int32_t)i;
    }
    s->spent += v->nodes / 4; /* a row that is not moved costs less than a visit */
    return count;
}

/* Visit the rows on the boundary once, in random order. */
static void sweep(struct state *s, int64_t count, double heat)
{
    while (count) {
        int64_t other = (int64_t)(next(s) % (uint64_t)count--);
        int32_t i = s->boundary[other];
        s->boundary[other] = s->boundary[count];
        int32_t b = best(s, i, -heat * log(1 - uniform(s)));
        if (b >= 0)
            move(s, i, b);
    }
}

static double largest(const struct state *s, const int64_t *of_parts)
{
    int64_t found = 0;
    for (int32_t part = 0; part < s->v->parts; part++)
        found = of_parts[part] > found ? of_parts[part] : found;
    return (double)found;
}

/* Keep the partition in hand if the fewest rows are sent on average and at most. */
static void keep_if_best(struct state *s)
{
    struct volume *v = s->v;
    double value = average_sent(s) + largest(s, s->send);
    value *= 1 + 100 * fmax(0, largest(s, s->load) / (double)v->capacity - 1);
    if (value >= s->lowest)
        return;
    s->lowest = value;
    for (int64_t i = 0; i < v->nodes; i++)
        v->part[i] = s->nets[i].owner;
    memcpy(v->send, s->send, (size_t)v->parts * sizeof *v->send);
}

static void anneal(struct state *s)
{
    const struct volume *v = s->v;
    keep_if_best(s);
    for (double progress = 0; progress < 1; progress = (double)s->spent / (double)v->work) {
        int64_t count = gather(s);
        if (!count)
            return;
        s->limit = floor(v->send_bound * average_sent(s));
        s->slope = (SLOPE + STEEPER * progress * progress) / (2 * s->limit + 2);
        for (int32_t part = 0; part < v->parts; part++)
            set_price(s, part);
        sweep(s, count, v->heat * exp(-COOLING * progress));
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
        {(void **)&s.send, sizeof *s.send * parts},
        {(void **)&s.load, sizeof *s.load * parts},
        {(void **)&s.more, sizeof *s.more * parts},
        {(void **)&s.less, sizeof *s.less * parts},
        {(void **)&s.offers, sizeof *s.offers * parts},
        {(void **)&s.seen, sizeof *s.seen * parts},
    };
    int status = 0;
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        if (!(*arrays[k].array = calloc(arrays[k].bytes, 1)))
            status = -1;
    if (!status && !(status = make_nets(&s))) {
        fill_nets(&s);
        anneal(&s);
    }
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        free(*arrays[k].array);
    free(s.places);
    return status;
}
