/* All kernels for one instruction set. Included by isa_*.c, which define
 *   ISA                     its name
 *   FLOAT_LANES, DOUBLE_LANES  literals: numbers to a vector
 *   MOST_VECTORS, FULL_VECTORS(X)  accumulators to keep in registers, and X(1) X(2) ... up to that */

#include "spmm.h"

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#define CACHE_LINE 64
#define SHORT_VECTORS(X) X(1) X(2)
#define BLIND(X) X(1) X(2)
#define LONG_ROW 32   /* non-zeros; measured: chains cost shorter ones more than they save */
#define MOST_CHAINS 4 /* as an addition takes four cycles */

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define CONCAT3_(a, b, c) a##_##b##_##c
#define CONCAT3(a, b, c) CONCAT3_(a, b, c)
#define CONCAT4_(a, b, c, d) a##_##b##_##c##_##d
#define CONCAT4(a, b, c, d) CONCAT4_(a, b, c, d)

#define REAL float
#define ELEMENT float
#define NUMBER f32
#define LANES_FULL FLOAT_LANES
#include "spmm_number.h"

#define REAL double
#define ELEMENT double
#define NUMBER f64
#define LANES_FULL DOUBLE_LANES
#include "spmm_number.h"

#define REAL float
#define ELEMENT uint16_t
#define NUMBER bf16
#define LANES_FULL FLOAT_LANES
#define HALF
#include "spmm_number.h"

static spmm_rows *find(enum number number, int wide_indices, int scaled, int blind, int64_t width)
{
    typedef spmm_rows *finder(int64_t width, int scaled, int blind);
    static finder *const finders[NUMBERS][2] = {
        [FLOAT32] = {find_f32_narrow_int, find_f32_wide_int},
        [FLOAT64] = {find_f64_narrow_int, find_f64_wide_int},
        [BFLOAT16] = {find_bf16_narrow_int, find_bf16_wide_int},
    };
    return finders[number][wide_indices](width, scaled, blind);
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
const struct spmm_set CONCAT(spmm_, ISA) = {TEXT(ISA), FLOAT_LANES * sizeof(float), MOST_VECTORS, find};
