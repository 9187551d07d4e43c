/* The kernels of elementwise.h for one instruction set; included by isa_*.c after spmm_isa.h. */

#include "elementwise.h"

/* Both sides of these loops are the same element or do not overlap, which the compiler cannot know. */
#if defined(__clang__)
#define LOOP(...) _Pragma("clang loop vectorize(assume_safety)") __VA_ARGS__
#else
#define LOOP(...) _Pragma("GCC ivdep") __VA_ARGS__
#endif

#define GATHER_AHEAD 8

typedef int8_t bytes8 __attribute__((vector_size(8)));

/* rng.py, keep_blocks: three multiplications and shifts modulo 2^32. */
static INLINE uint32_t keep_hash(uint32_t x)
{
    x ^= x >> 16;
    return x * 0x846CA68Bu;
}
/* 1 / k!, the coefficients of exp. */
#define INVERSE_FACTORIALS                                                                                             \
    {                                                                                                                  \
        1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800,           \
            1. / 39916800, 1. / 479001600, 1. / 6227020800                                                             \
    }

#define KEEP(low, odd, column) keep_hash(((column) ^ (low)) * (odd))

#define REAL float
#define INTEGER int32_t
#define WORD uint32_t
#define NUMBER f32
#define ROOT __builtin_sqrtf
#define MANTISSA 23
#define EXPONENT_BIAS 127
#define EXP_DEGREE 7
#define EXP_LEAST -87 /* below, exp is less than a normal number */
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#include "elementwise_number.h"
#undef REAL
#undef INTEGER
#undef WORD
#undef NUMBER
#undef ROOT
#undef MANTISSA
#undef EXPONENT_BIAS
#undef EXP_DEGREE
#undef EXP_LEAST
#undef LN2_HIGH
#undef LN2_LOW

#define REAL double
#define INTEGER int64_t
#define WORD uint64_t
#define NUMBER f64
#define ROOT __builtin_sqrt
#define MANTISSA 52
#define EXPONENT_BIAS 1023
#define EXP_DEGREE 13
#define EXP_LEAST -708
#define LN2_HIGH 6.93145751953125e-1
#define LN2_LOW 1.42860682030941723212e-6
#include "elementwise_number.h"

const struct elementwise_set CONCAT(elementwise_, ISA) = {
    {dropout_f32_8, dropout_f64_8},
    {adam_f32_8, adam_f64_8},
    {pack_positive_f32_8, pack_positive_f64_8},
    {keep_positive_f32_8, keep_positive_f64_8},
    {cross_entropy_f32_8, cross_entropy_f64_8},
    {scatter_add_f32_8, scatter_add_f64_8},
};
