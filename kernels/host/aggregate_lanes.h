/* All kernels of aggregate_rows.h for one type of number; as spmm_lanes.h, after which it is included. */

typedef TYPED(word) TYPED(loose_word) __attribute__((aligned(1), may_alias));
#define MOST_BEST 4   /* vectors of a panel: with their codes, half of AVX2's registers */
#define BEST_AHEAD 16 /* non-zeros to prefetch ahead */

#define LANES 1
#include "aggregate_rows.h"
#if LANES_FULL > 2
#define LANES 2
#include "aggregate_rows.h"
#endif
#if LANES_FULL > 4
#define LANES 4
#include "aggregate_rows.h"
#endif
#if LANES_FULL > 8
#define LANES 8
#include "aggregate_rows.h"
#endif
#define LANES LANES_FULL
#include "aggregate_rows.h"
