/* Compares the cuts of kernels/host/volume_interfaces.c with smallest cuts found by another method, in windows of random graphs.
 * Compiled with volume.c, whose call this file takes in place of that one's. */

#define volume_interfaces move_interfaces
#include "volume_interfaces.c"
#undef volume_interfaces

#include <stdio.h>

enum { NODES = 36, FROM = NODES, TO, ALL };

static long cuts, flows;
static int wrong;

static void expect(int holds, const char *what)
{
    if (!holds && wrong++ < 20)
        printf("%s, after %ld cuts\n", what, cuts);
}

static uint64_t draw(uint64_t below)
{
    static struct state random = {.random = 1};
    return volume_next(&random) % below;
}

/* The sides of a smallest cut by Edmonds and Karp's method; `met` are those that the source still reaches. Its capacity. */
static int smallest_cut(int room[ALL][ALL], int met[ALL])
{
    for (int units = 0;; units++) {
        int queue[ALL], before[ALL], filled = 0;
        memset(met, 0, ALL * sizeof *met);
        met[queue[filled++] = FROM] = 1;
        for (int at = 0; at < filled; at++)
            for (int y = 0; y < ALL; y++)
                if (!met[y] && room[queue[at]][y] > 0)
                    met[y] = 1, before[y] = queue[at], queue[filled++] = y;
        if (!met[TO])
            return units;
        for (int y = TO; y != FROM; y = before[y])
            room[before[y]][y]--, room[y][before[y]]++;
    }
}

static void check_cut(struct search *w, struct interface at)
{
    const struct state *s = w->s;
    const struct volume *v = s->v;
    int side[NODES], room[ALL][ALL] = {{0}}, met[ALL], in_a[NODES];
    int64_t to_a, moved;
    for (int64_t i = 0; i < v->nodes; i++)
        side[i] = s->nets[i].owner == at.a ? SOURCE : s->nets[i].owner == at.b ? SINK : OUTSIDE;
    for (int64_t k = 0; k < at.count; k++)
        side[w->members[k]] = k < at.low ? SINK : k < at.high ? FREE : SOURCE;
    for (int64_t i = 0; i < v->nodes; i++)
        for (int64_t e = v->pointers[i]; side[i] == FREE && e < v->pointers[i + 1]; e++) {
            int32_t to = v->columns[e];
            room[i][to] += side[to] == FREE && w->mate[e] >= 0 && to != i;
            room[i][TO] += side[to] == SINK;
            room[FROM][i] += side[to] == SOURCE;
        }
    flows += smallest_cut(room, met) > 0;
    moved = cut(w, at, &to_a);
    for (int64_t i = 0; i < v->nodes; i++)
        in_a[i] = s->nets[i].owner == at.a;
    for (int64_t k = 0; k < moved; k++) {
        expect(s->nets[w->changed[k]].owner == (k < to_a ? at.b : at.a), "moves a row of another part");
        in_a[w->changed[k]] = k < to_a;
    }
    for (int64_t i = 0; i < v->nodes; i++)
        expect(in_a[i] == (side[i] == FREE ? met[i] : side[i] == SOURCE), "another cut");
    cuts++;
}

int volume_interfaces(struct state *s)
{
    int32_t rows[5][NODES], pool[NODES], mate[NODES * NODES];
    struct mark marks[NODES] = {{0}};
    char taken[NODES] = {0}, inside[NODES];
    signed char flow[NODES * NODES] = {0};
    struct search w = {.s = s, .members = rows[0], .entries = rows[1], .reached = rows[2], .path = rows[3], .changed = rows[4],
                       .pool = pool, .mate = mate, .marks = marks, .taken = taken, .inside = inside, .flow = flow};
    memset(inside, 1, sizeof inside);
    find_mates(&w);
    set_prices(s, 0);
    volume_gather(s);
    fill_pool(&w);
    for (int tries = 0; tries < 40 && w.pool_count; tries++) {
        struct interface at;
        if (draw_interface(&w, &at))
            check_cut(&w, at);
        try_interface(&w, 1e9);
    }
    return 0;
}

/* Rows of a map of squares with some sides missing, or of any graph, perhaps with arcs one way only. */
static void check_graph(int mesh, int directed)
{
    int64_t nodes = 1 + (int64_t)draw(NODES), pointers[NODES + 1] = {0}, weights[NODES], send[NODES], receive[NODES];
    int32_t columns[NODES * NODES], part[NODES], parts = 1 + (int32_t)draw(mesh ? 4 : NODES);
    char entry[NODES][NODES] = {{0}};
    for (int i = 0; i < nodes; i++)
        for (int j = 0; j < nodes; j++)
            if (mesh ? abs(i / 6 - j / 6) + abs(i % 6 - j % 6) == 1 && draw(8) : !draw(8)) {
                entry[i][j] = 1;
                entry[j][i] |= !directed;
            }
    for (int i = 0; i < nodes; i++) {
        pointers[i + 1] = pointers[i];
        for (int j = 0; j < nodes; j++)
            if (entry[i][j])
                columns[pointers[i + 1]++] = j;
        weights[i] = pointers[i + 1] - pointers[i];
        part[i] = mesh ? (int32_t)(i * parts / nodes) : (int32_t)draw((uint64_t)parts);
    }
    struct volume v = {.nodes = nodes, .parts = parts, .pointers = pointers, .columns = columns, .weights = weights, .part = part,
                       .send = send, .receive = receive, .capacity = nodes * nodes, .send_least = 3, .receive_bound = 1.4,
                       .moves = VOLUME_INTERFACES, .heat = 4, .work = 1, .seed = draw(1 << 30)};
    expect(volume_refine(&v) == 0, "memory");
}

int main(void)
{
    for (int k = 0; k < 800; k++)
        check_graph(k & 1, k & 2);
    expect(cuts > 10000 && 3 * flows > cuts, "too few cuts");
    printf("%ld cuts, %ld of more than 0\n", cuts, flows);
    return wrong != 0;
}
