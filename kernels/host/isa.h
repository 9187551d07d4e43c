/* All kernels for one instruction set. Included by isa_*.c, which define
 *   ISA                            its name
 *   FLOAT_LANES, DOUBLE_LANES      literals: numbers to a vector
 *   MOST_VECTORS, FULL_VECTORS(X)  accumulators to keep in registers, and X(1) X(2) ... up to that */

#include "aggregate.h"
#include "edges.h"
#include "elementwise.h"
#include "narrow.h"
#include "spmm.h"

#include <math.h>

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#define CACHE_LINE 64
#define MOST_BLIND 2  /* vectors of rows that have a kernel without prefetching */
#define LONG_ROW 32   /* non-zeros; measured: chains cost shorter ones more than they save */
#define MOST_CHAINS 4 /* as an addition takes four cycles */

/* Both sides of these loops are the same element or do not overlap, which the compiler cannot know. */
#if defined(__clang__)
#define LOOP(...) _Pragma("clang loop vectorize(assume_safety)") __VA_ARGS__
#else
#define LOOP(...) _Pragma("GCC ivdep") __VA_ARGS__
#endif

/* Lanes of two vectors, by their numbers. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (TYPED(integers)){__VA_ARGS__})
#endif

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define CONCAT3_(a, b, c) a##_##b##_##c
#define CONCAT3(a, b, c) CONCAT3_(a, b, c)

#define TYPED(x) CONCAT(x##_, NUMBER)       /* a name for each type of number */
#define NAMED(x) CONCAT3(x, NUMBER, LANES) /* and for each length of a vector */
#define HALF_OF_2 1
#define HALF_OF_4 2
#define HALF_OF_8 4
#define HALF_OF_16 8
#define REAL TYPED(real)
#define LOOSE TYPED(loose) /* of any alignment */

typedef float real_f32, loose_f32 __attribute__((aligned(1), may_alias));
typedef double real_f64, loose_f64 __attribute__((aligned(1), may_alias));
typedef int32_t integer_f32; /* of its size, as word_* */
typedef int64_t integer_f64;
typedef uint32_t word_f32;
typedef uint64_t word_f64;

typedef int8_t bytes8 __attribute__((vector_size(8)));
typedef double doubles8 __attribute__((vector_size(64)));

/* rng.py, keep_blocks: three multiplications and shifts modulo 2^32. */
static INLINE uint32_t keep_hash(uint32_t x)
{
    x ^= x >> 16;
    return x * 0x846CA68Bu;
}
#define KEEP(low, odd, column) keep_hash(((column) ^ (low)) * (odd))

#define NUMBER f32
#define LANES_FULL FLOAT_LANES
#include "elementwise_number.h"
#include "edge_passes.h"
#include "additive_passes.h"
#include "spmm_lanes.h"
#include "aggregate_lanes.h"
#undef NUMBER
#undef LANES_FULL

#define NUMBER f64
#define LANES_FULL DOUBLE_LANES
#include "elementwise_number.h"
#include "edge_passes.h"
#include "additive_passes.h"
#include "spmm_lanes.h"
#include "aggregate_lanes.h"

#include "narrow_passes.h"

#define PASSES(number)                                                                                      \
    {activate_##number,      adam_##number,                 pack_positive_##number, keep_positive_##number,  \
     cross_entropy_##number, binary_cross_entropy_##number, scatter_add_##number}
static const struct elementwise_set passes[2] = {PASSES(f32), PASSES(f64)};

#define EDGES(number) \
    {edge_dots_##number,         edge_products_##number, edge_softmax_##number, \
     edge_softmax_back_##number, edge_scores_##number,   edge_slopes_##number}
static const struct edge_set edges[2] = {EDGES(f32), EDGES(f64)};

static spmm_rows *find(int wide, int wide_indices, int blind, int64_t width)
{
    return wide ? CONCAT3(find, f64, DOUBLE_LANES)(wide_indices, blind, width)
                : CONCAT3(find, f32, FLOAT_LANES)(wide_indices, blind, width);
}

static aggregate_rows *find_best(int wide, int wide_indices, int64_t width)
{
    return wide ? CONCAT3(find_best, f64, DOUBLE_LANES)(wide_indices, width)
                : CONCAT3(find_best, f32, FLOAT_LANES)(wide_indices, width);
}
static const struct aggregate_set aggregates = {FLOAT_LANES * sizeof(float), MOST_BEST, find_best};

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
const struct spmm_set CONCAT(spmm_, ISA) = {
    TEXT(ISA), FLOAT_LANES * sizeof(float), MOST_VECTORS, find, passes, narrowing,
    &aggregates, edges};
