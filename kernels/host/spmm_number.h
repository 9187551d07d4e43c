/* All kernels for one type of number. Included by spmm_isa.h, which defines REAL, ELEMENT (what B holds), NUMBER (a word to tell them
 * apart), LANES_FULL (a literal) and, for bfloat16, HALF. */

typedef ELEMENT CONCAT(stored_, NUMBER) __attribute__((aligned(1), may_alias));
#define STORED CONCAT(stored_, NUMBER)

#define INDEX narrow_int
#include "spmm_lanes.h"
#undef INDEX

#define INDEX wide_int
#include "spmm_lanes.h"
#undef INDEX

#undef STORED
#undef REAL
#undef ELEMENT
#undef NUMBER
#undef LANES_FULL
#undef HALF
