/* The kernels for what every machine of this architecture can do: SSE2, NEON. */

#define ISA generic
#define FLOAT_LANES 4
#define DOUBLE_LANES 2
#ifndef MOST_VECTORS /* tests make fewer */
#define MOST_VECTORS 12 /* of 16 or 32 registers */
#define FULL_VECTORS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#endif
#include "isa.h"
