/* All kernels for one type of number and one of index: a row of the panel holds either full vectors, or is narrower than one full
 * vector and is made of one or two (overlapping) shorter ones. Defines the function CONCAT3(find_, NUMBER, INDEX). */

#define NAMED(x) CONCAT4(x, NUMBER, INDEX, LANES)
#define FIND CONCAT3(find, NUMBER, INDEX)

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

#define TABLE(name, lanes) CONCAT4(name, NUMBER, INDEX, lanes)
#define PICK(name, lanes) TABLE(name, lanes)[(width + lanes - 1) / lanes - 1][scaled]
#define HAS_BLIND(lanes) ((size_t)width <= lanes * sizeof TABLE(blind_kernels, lanes) / sizeof TABLE(blind_kernels, lanes)[0])
#define ENTRY(lanes) (blind && HAS_BLIND(lanes) ? PICK(blind_kernels, lanes) : PICK(kernels, lanes))
static spmm_rows *FIND(int64_t width, int scaled, int blind)
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
#undef HAS_BLIND
#undef PICK
#undef TABLE
#undef FIND
#undef NAMED
