/* Refinement for volume (volume.h): annealing over the rows on the boundary, with exact volumes. Interfaces: volume_interfaces.c.
 *
 * The objective is the sum over parts of u x + c max(0, x - T)^2 for the rows x that a part sends, T being the bound, and the
 * second term again for the rows it receives. Its marginal price tells a row what one more or one less part in a net costs: u
 * at a part with little to send, more at a part with too much. c rises as the temperature falls, and so does the price of
 * non-zeros above the capacity. u is 1 where rows move.
 * Acer, Selvitopi and Aykanat (Parallel Computing 59, 2016) put such costs on the vertices of a recursive
 * bisection; here all K parts and their volumes are known at every move, so the costs are exact. */

#include "volume_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCAN 12      /* a net of more places finds a part's place through a table */
#define GATHERING 2  /* visits per node and non-zero between two searches for the boundary */
#define ROOM 0.99    /* share of the capacity up to which non-zeros cost nothing */
#define SOFT 3       /* what those above that cost at first, relative to the bound on sends, */
#define STIFF 33     /* and by which factor they become dearer */
#define STRICT 0.9   /* when so much of the work on rows is done, no part may get more non-zeros than its capacity any more */
#define COOLING 3    /* the temperature falls by this power of e */

uint64_t volume_next(struct state *s) /* SplitMix64 */
{
    uint64_t z = (s->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double volume_uniform(struct state *s) { return (double)(volume_next(s) >> 11) * 0x1p-53; }

double volume_excess(double x, double limit, double slope)
{
    double over = x - limit;
    return over > 0 ? slope * over * over : 0;
}

static double send_cost(const struct state *s, int64_t x)
{
    return s->unit * (double)x + volume_excess((double)x, s->send_limit, s->send_slope);
}

double volume_receive_cost(const struct state *s, int64_t x)
{
    return volume_excess((double)x, s->receive_limit, s->receive_slope);
}

/* Too many non-zeros are allowed for a time, at a price: only so is room passed on from part to part, as all are nearly full. */
double volume_load_cost(const struct state *s, int64_t x)
{
    double off = (double)x / s->average_load - 1;
    return s->even * off * off + volume_excess((double)x / (ROOM * (double)s->v->capacity), 1, s->load_slope * s->send_limit);
}

static void set_price(struct state *s, int32_t part)
{
    double here = send_cost(s, s->send[part]);
    s->sum += here - s->paid[part];
    s->paid[part] = here;
    if (s->head)
        return; /* interfaces ask for no more */
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

static void link_row(struct state *s, int64_t i)
{
    int32_t *head = s->head + s->nets[i].owner;
    s->before[i] = -1;
    s->after[i] = *head;
    if (*head >= 0)
        s->before[*head] = (int32_t)i;
    *head = (int32_t)i;
}

static void unlink_row(struct state *s, int64_t i)
{
    int32_t before = s->before[i], after = s->after[i];
    if (before >= 0)
        s->after[before] = after;
    else
        s->head[s->nets[i].owner] = after;
    if (after >= 0)
        s->before[after] = before;
}

/* Of every other net of the row the owner stays, and sends more or less; of its own net the owner changes. */
void volume_move(struct state *s, int64_t i, int32_t b)
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
    int linked = s->head && s->listed[i];
    if (linked)
        unlink_row(s, i);
    s->nets[i].owner = b;
    if (linked)
        link_row(s, i);
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
    without += volume_receive_cost(s, s->receive[a] - left + kept) - volume_receive_cost(s, s->receive[a]);
    without += volume_load_cost(s, s->load[a] - weight) - volume_load_cost(s, s->load[a]);
    if (over)
        limit = INFINITY; /* out, whatever it costs */
    /* Where it goes, at least sent + kept - 1 rows are sent more; most rows are not worth a closer look. */
    without += s->unit * (sent + kept - 1);
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
        change += volume_load_cost(s, s->load[b] + weight) - volume_load_cost(s, s->load[b]);
        change += send_cost(s, s->send[b] + sent + kept - offer->inside) - send_cost(s, s->send[b]) - s->unit * (sent + kept - 1);
        change += volume_receive_cost(s, s->receive[b] + nets - offer->nets - offer->inside) - volume_receive_cost(s, s->receive[b]);
        if (change < limit) {
            choice = b;
            limit = change;
        }
    }
    return choice;
}

/* -- sweeps -- */

int32_t volume_neighbour(struct state *s, int64_t i)
{
    const struct volume *v = s->v;
    int32_t chosen = -1;
    uint64_t met = 0;
    for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++) {
        const struct net *net = s->nets + v->columns[e];
        s->spent++;
        for (int32_t at = 0; at < net->length && net->length > 1; at++) {
            int32_t part = s->places[net->first + at].part;
            if (part != s->nets[i].owner && volume_next(s) % ++met == 0)
                chosen = part;
        }
    }
    return chosen;
}

void volume_list(struct state *s, int64_t i)
{
    if (s->listed[i])
        return;
    s->boundary[s->boundary_count++] = (int32_t)i;
    s->listed[i] = 1;
    if (s->head)
        link_row(s, i);
}

void volume_gather(struct state *s)
{
    struct volume *v = s->v;
    s->boundary_count = 0;
    memset(s->listed, 0, (size_t)v->nodes);
    if (s->head)
        memset(s->head, -1, (size_t)v->parts * sizeof *s->head);
    for (int64_t i = 0; i < v->nodes; i++) {
        int cut = s->nets[i].length > 1;
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1] && !cut; e++)
            cut = s->nets[v->columns[e]].length > 1;
        if (cut)
            volume_list(s, i);
    }
    s->spent += v->nodes;
}

static void shuffle(struct state *s, int32_t *rows, int64_t count)
{
    for (int64_t k = count - 1; k > 0; k--) {
        int64_t other = (int64_t)(volume_next(s) % (uint64_t)(k + 1));
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
        int32_t b = best(s, i, -heat * log(1 - volume_uniform(s)));
        if (b < 0)
            continue;
        volume_move(s, i, b);
        for (int64_t e = v->pointers[i]; e < v->pointers[i + 1]; e++)
            volume_list(s, v->columns[e]); /* where A is not symmetric there are more; they wait for the next gathering */
    }
}

int64_t volume_most(const int64_t *numbers, int32_t count)
{
    int64_t largest = 0;
    for (int32_t k = 0; k < count; k++)
        if (numbers[k] > largest)
            largest = numbers[k];
    return largest;
}

double volume_send_limit(const struct state *s)
{
    return fmax(s->v->send_bound * (double)s->total / s->v->parts, s->v->send_least);
}

double volume_over(int64_t number, double limit)
{
    return limit > 0 && (double)number > limit ? (double)number / limit - 1 : 0;
}

/* By what share the bounds on sends and receives are missed, together. */
static double missed(const struct state *s)
{
    const struct volume *v = s->v;
    double receives = v->receive_bound * (double)s->total / v->parts;
    return volume_over(volume_most(s->send, v->parts), volume_send_limit(s)) + volume_over(volume_most(s->receive, v->parts), receives);
}

/* What the partition is worth: its volume, and two per cent of it more for every per cent that a bound is missed by; 100 where that is
 * the one on non-zeros. */
static double worth(const struct state *s)
{
    const struct volume *v = s->v;
    return (double)s->total * (1 + 2 * (missed(s) + 50 * volume_over(volume_most(s->load, v->parts), (double)v->capacity)));
}

void volume_keep(struct state *s)
{
    struct volume *v = s->v;
    for (int64_t i = 0; i < v->nodes; i++)
        v->part[i] = s->nets[i].owner;
    memcpy(v->send, s->send, (size_t)v->parts * sizeof *v->send);
    memcpy(v->receive, s->receive, (size_t)v->parts * sizeof *v->receive);
}

static void keep_if_best(struct state *s)
{
    double value = worth(s);
    if (value >= s->lowest)
        return;
    s->lowest = value;
    volume_keep(s);
}

void volume_set_prices(struct state *s, double slope, double unit)
{
    struct volume *v = s->v;
    double average = (double)s->total / v->parts;
    s->unit = unit;
    s->send_limit = floor(volume_send_limit(s));
    s->receive_limit = floor(v->receive_bound * average);
    s->send_slope = slope / (2 * s->send_limit + 2);
    s->receive_slope = slope / (2 * s->receive_limit + 2);
    for (int32_t part = 0; part < v->parts; part++)
        set_price(s, part);
}

static void anneal(struct state *s)
{
    const struct volume *v = s->v;
    int64_t gathering = 0;
    for (double progress = 0; progress < 1; progress = (double)s->spent / (double)v->work) {
        double heat = v->heat * exp(-COOLING * progress);
        if (s->spent >= gathering) {
            volume_gather(s);
            gathering = s->spent + GATHERING * (v->nodes + v->pointers[v->nodes]);
        }
        if (!s->boundary_count)
            return;
        volume_set_prices(s, 20 + 380 * progress * progress, 1);
        s->load_slope = progress < STRICT ? SOFT * pow(STIFF, progress) : 0;
        sweep(s, heat);
        keep_if_best(s);
    }
}

/* -- levelling -- */

/* Move rows where more is sent then, to parts with fewer non-zeros (`even`) or at least within the capacity. */
static void send_more(struct state *s, int64_t send, int64_t receive, int even)
{
    const struct volume *v = s->v;
    volume_gather(s);
    shuffle(s, s->boundary, s->boundary_count);
    for (int64_t k = 0; k < s->boundary_count && s->total < v->total_bound; k++) {
        int64_t i = s->boundary[k], total = s->total;
        int32_t a = s->nets[i].owner, b = volume_neighbour(s, i);
        if (b < 0 || s->load[b] + v->weights[i] > (even ? s->load[a] - 1 : v->capacity))
            continue;
        volume_move(s, i, b);
        if (s->total <= total || volume_most(s->send, v->parts) > send || volume_most(s->receive, v->parts) > receive)
            volume_move(s, i, a);
    }
}

/* Let parts that send little send more, though nobody sends less for it: first where that is of use for the non-zeros. */
static void level(struct state *s)
{
    const struct volume *v = s->v;
    const int64_t send = volume_most(s->send, v->parts), receive = volume_most(s->receive, v->parts);
    for (int even = 1; even >= 0; even--)
        for (int64_t before = -1; s->total < v->total_bound && s->total > before;) {
            before = s->total;
            send_more(s, send, receive, even);
        }
    volume_keep(s);
}

int volume_refine(struct volume *v)
{
    struct state s = {.v = v, .random = v->seed, .lowest = INFINITY};
    size_t nodes = (size_t)v->nodes + 1, parts = (size_t)v->parts + 1;
    size_t linked = v->moves == VOLUME_INTERFACES || v->moves == VOLUME_NEIGHBOURHOODS;
    struct {
        void **array;
        size_t bytes;
    } arrays[] = {
        {(void **)&s.nets, sizeof *s.nets * nodes},
        {(void **)&s.price, sizeof *s.price * nodes},
        {(void **)&s.boundary, sizeof *s.boundary * nodes},
        {(void **)&s.listed, nodes},
        {(void **)&s.head, linked * sizeof *s.head * parts},
        {(void **)&s.after, linked * sizeof *s.after * nodes},
        {(void **)&s.before, linked * sizeof *s.before * nodes},
        {(void **)&s.send, sizeof *s.send * parts},
        {(void **)&s.receive, sizeof *s.receive * parts},
        {(void **)&s.load, sizeof *s.load * parts},
        {(void **)&s.more, sizeof *s.more * parts},
        {(void **)&s.less, sizeof *s.less * parts},
        {(void **)&s.paid, sizeof *s.paid * parts},
        {(void **)&s.offers, sizeof *s.offers * parts},
        {(void **)&s.seen, sizeof *s.seen * (parts + 1)},
    };
    int status = 0;
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        if (arrays[k].bytes && !(*arrays[k].array = calloc(arrays[k].bytes, 1)))
            status = -1;
    if (!status && !(status = make_nets(&s))) {
        count_volumes(&s);
        for (int32_t part = 0; part < v->parts; part++)
            s.average_load += (double)s.load[part] / v->parts;
        s.least = (int64_t)fmin(1.1 * s.average_load, (double)v->capacity);
        if (linked)
            status = volume_interfaces(&s);
        else if (v->moves == VOLUME_LEVEL)
            level(&s);
        else {
            keep_if_best(&s);
            anneal(&s);
        }
    }
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        free(*arrays[k].array);
    free(s.places);
    free(s.table);
    return status;
}
