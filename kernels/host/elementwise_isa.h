/* The kernels of elementwise.h for one instruction set; included by isa_*.c after spmm_isa.h. */

#include "elementwise.h"

/* Both sides of these loops are the same element or do not overlap, which the compiler cannot know. */
#if defined(__clang__)
#define LOOP(...) _Pragma("clang loop vectorize(assume_safety)") __VA_ARGS__
#else
#define LOOP(...) _Pragma("GCC ivdep") __VA_ARGS__
#endif

typedef int8_t bytes8 __attribute__((vector_size(8)));

/* rng.py, keep_blocks: three multiplications and shifts modulo 2^32. */
static INLINE uint32_t keep_hash(uint32_t x)
{
    x ^= x >> 16;
    return x * 0x846CA68Bu;
}
#define KEEP(low, odd, column) keep_hash(((column) ^ (low)) * (odd))

#define NAMED(x) CONCAT3(x, NUMBER, 8)
#define LOOSE NAMED(loose)

#define REAL float
#define INTEGER int32_t
#define WORD uint32_t
#define NUMBER f32
#include "elementwise_number.h"
#undef REAL
#undef INTEGER
#undef WORD
#undef NUMBER

#define REAL double
#define INTEGER int64_t
#define WORD uint64_t
#define NUMBER f64
#include "elementwise_number.h"

const struct elementwise_set CONCAT(elementwise_, ISA) = {
    {dropout_f32_8, dropout_f64_8},
    {adam_f32_8, adam_f64_8},
    {pack_positive_f32_8, pack_positive_f64_8},
    {keep_positive_f32_8, keep_positive_f64_8},
    {cross_entropy_f32_8, cross_entropy_f64_8},
    {scatter_add_f32_8, scatter_add_f64_8},
};
