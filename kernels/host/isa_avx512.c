/* The kernels for AVX-512, compiled for it whatever the compiler's target is. */
#if defined(__x86_64__)

#include "elementwise.h" /* system headers before the target changes */
#include "target.h"
TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")

#define ISA avx512
#define FLOAT_LANES 16
#define DOUBLE_LANES 8
#ifndef MOST_VECTORS /* tests make fewer */
#define MOST_VECTORS 16 /* of 32 registers; 20 (width 602 in two panels of 19) was slower than three of 13 */
#define FULL_VECTORS(X) \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
#endif
#include "isa.h"

TARGET_END
#endif
