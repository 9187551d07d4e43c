/* The kernels for AVX2 with FMA, compiled for it whatever the compiler's target is. */
#if defined(__x86_64__)

#include "elementwise.h" /* system headers before the target changes */
#include "target.h"
TARGET_BEGIN("avx2,fma")

#define ISA avx2
#define FLOAT_LANES 8
#define DOUBLE_LANES 4
#ifndef MOST_VECTORS /* tests make fewer */
#define MOST_VECTORS 12 /* of 16 registers */
#define FULL_VECTORS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#endif
#include "isa.h"

TARGET_END
#endif
