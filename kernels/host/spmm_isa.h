/* All kernels for one instruction set. Included by isa_*.c, which define
 *   ISA                            its name
 *   FLOAT_LANES, DOUBLE_LANES      literals: numbers to a vector
 *   MOST_VECTORS, FULL_VECTORS(X)  accumulators to keep in registers, and X(1) X(2) ... up to that */

#include "spmm.h"

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#define CACHE_LINE 64
#define SHORT_VECTORS(X) X(1) X(2)
#define MOST_BLIND 2  /* vectors of rows that have a kernel without prefetching */
#define LONG_ROW 32   /* non-zeros; measured: chains cost shorter ones more than they save */
#define MOST_CHAINS 4 /* as an addition takes four cycles */

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define CONCAT3_(a, b, c) a##_##b##_##c
#define CONCAT3(a, b, c) CONCAT3_(a, b, c)
#define CONCAT4_(a, b, c, d) a##_##b##_##c##_##d
#define CONCAT4(a, b, c, d) CONCAT4_(a, b, c, d)

/* Names of spmm_rows.h, one of each for every type of number, type of index and length of a vector. */
#define NAMED(x) CONCAT4(x, NUMBER, INDEX, LANES)
#define VECTOR NAMED(vector)
#define LOOSE NAMED(loose)
#define LOOSE_REAL NAMED(loose_real)
#define MULTIPLY NAMED(multiply)
#define PREFETCH NAMED(prefetch)
#define ROWS NAMED(rows)

#define REAL float
#define NUMBER f32
#define LANES_FULL FLOAT_LANES
#define INDEX narrow_int
#include "spmm_lanes.h"
#undef INDEX
#define INDEX wide_int
#include "spmm_lanes.h"
#undef INDEX
#undef REAL
#undef NUMBER
#undef LANES_FULL

#define REAL double
#define NUMBER f64
#define LANES_FULL DOUBLE_LANES
#define INDEX narrow_int
#include "spmm_lanes.h"
#undef INDEX
#define INDEX wide_int
#include "spmm_lanes.h"
#undef INDEX
#undef REAL
#undef NUMBER
#undef LANES_FULL
#undef NAMED
#undef LOOSE

static spmm_rows *find(int wide, int wide_indices, int blind, int64_t width)
{
    static spmm_rows *(*const finders[2][2])(int64_t width, int blind) = {
        {find_f32_narrow_int, find_f32_wide_int}, {find_f64_narrow_int, find_f64_wide_int}};
    return finders[wide][wide_indices](width, blind);
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
const struct spmm_set CONCAT(spmm_, ISA) = {TEXT(ISA), FLOAT_LANES * sizeof(float), MOST_VECTORS, find};
