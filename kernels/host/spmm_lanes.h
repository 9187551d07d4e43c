/* All kernels for one type of number and one of index: a row of the panel holds full vectors, or is narrower
 * and made of one or two (overlapping) shorter ones. Defines CONCAT3(find, NUMBER, INDEX). */

#define LANES LANES_FULL
#define VECTORS FULL_VECTORS
#include "spmm_rows.h"
#undef VECTORS
#undef LANES

#define VECTORS SHORT_VECTORS
#if LANES_FULL > 8
#define LANES 8
#include "spmm_rows.h"
#undef LANES
#endif
#if LANES_FULL > 4
#define LANES 4
#include "spmm_rows.h"
#undef LANES
#endif
#if LANES_FULL > 2
#define LANES 2
#include "spmm_rows.h"
#undef LANES
#endif
#define LANES 1
#include "spmm_rows.h"
#undef LANES
#undef VECTORS

#define ENTRY(lanes) CONCAT4(kernels, NUMBER, INDEX, lanes)[(width + lanes - 1) / lanes - 1][blind]
static spmm_rows *CONCAT3(find, NUMBER, INDEX)(int64_t width, int blind)
{
    if (width >= LANES_FULL)
        return ENTRY(LANES_FULL);
#if LANES_FULL > 8
    if (width >= 8)
        return ENTRY(8);
#endif
#if LANES_FULL > 4
    if (width >= 4)
        return ENTRY(4);
#endif
#if LANES_FULL > 2
    if (width >= 2)
        return ENTRY(2);
#endif
    return ENTRY(1);
}
#undef ENTRY
