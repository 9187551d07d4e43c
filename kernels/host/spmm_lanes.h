/* All kernels for one type of number: a row of the panel holds full vectors, or is narrower and made of one
 * or two (overlapping) shorter ones. */

#define LANES 1
#include "spmm_rows.h"
#if LANES_FULL > 2
#define LANES 2
#include "spmm_rows.h"
#endif
#if LANES_FULL > 4
#define LANES 4
#include "spmm_rows.h"
#endif
#if LANES_FULL > 8
#define LANES 8
#include "spmm_rows.h"
#endif
#define LANES LANES_FULL
#include "spmm_rows.h"
