/* The partition in hand and what it costs, shared by volume.c and volume_interfaces.c. */

#ifndef DISTGNN_VOLUME_STATE_H
#define DISTGNN_VOLUME_STATE_H

#include "volume.h"

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
    int64_t total;        /* rows sent by all parts */
    double *more, *less;  /* parts: what sending a row more costs, what sending one less saves; where rows move */
    double *paid, sum;    /* parts: what a part's sends cost; of all parts */
    double *price;        /* nodes: of the nets of the row in hand */
    struct offer *offers; /* parts: of the row in hand */
    int32_t *seen, seen_count;
    int32_t *boundary; /* rows that share a net with another part, and some that did */
    int64_t boundary_count;
    char *listed;                  /* nodes: is it in there? */
    int32_t *head, *after, *before; /* parts, nodes, nodes: the boundary's rows of every part, linked, where interfaces move; or null */
    double unit;                   /* what a row of total volume costs */
    double load_slope;             /* or 0: then the capacity is strict */
    double even;                   /* what non-zeros away from the average cost */
    double average_load;
    int64_t least;                 /* non-zeros: nothing leaves a part with less than half of that, until the capacity is strict */
    double lowest;                 /* what the best partition met is worth */
    double send_limit, receive_limit, send_slope, receive_slope;
    int64_t spent;
    uint64_t random;
};

#pragma GCC visibility push(hidden) /* so that calls can be inlined in a shared library */

/* Random numbers: 64 bits, and in [0, 1). */
uint64_t volume_next(struct state *s);
double volume_uniform(struct state *s);

/* What a part pays for the rows that it sends and receives and for its non-zeros. */
double volume_excess(double x, double limit, double slope);
double volume_receive_cost(const struct state *s, int64_t x);
double volume_load_cost(const struct state *s, int64_t x);

/* Follow the bounds, which move with the average, and make what is above them cost `slope` per row, at twice the bound; a row of
 * total volume costs `unit`. */
void volume_set_prices(struct state *s, double slope, double unit);

/* The largest send volume wanted; by how much of a limit a number is above it; the largest of some numbers. */
double volume_send_limit(const struct state *s);
double volume_over(int64_t number, double limit);
int64_t volume_most(const int64_t *numbers, int32_t count);

/* Move row i to part b: nets, volumes, loads and prices. */
void volume_move(struct state *s, int64_t i, int32_t b);

/* Another part in the nets of row i, drawn as often as it is there; -1 if there is none. */
int32_t volume_neighbour(struct state *s, int64_t i);

/* The boundary: put row i on it, unless it is there; and look for all of it. */
void volume_list(struct state *s, int64_t i);
void volume_gather(struct state *s);

/* Make the partition in hand the one to return. */
void volume_keep(struct state *s);

/* Move interfaces, in volume_interfaces.c; 0, or -1 where there is not the memory. */
int volume_interfaces(struct state *s);

#pragma GCC visibility pop

#endif
