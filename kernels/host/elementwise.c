/* What of elementwise.h does not depend on the instruction set. */

#include "elementwise.h"

#include <string.h>

#define ROW(i) (wide ? ((const int64_t *)rows)[i] : ((const int32_t *)rows)[i])

void gather_rows(const void *x, int64_t ldx, const void *rows, int wide, int64_t count, int64_t bytes, void *out,
                 int64_t ldout)
{
    for (int64_t i = 0; i < count; i++) {
        if (i + GATHER_AHEAD < count)
            for (int64_t byte = 0; byte < bytes; byte += 64)
                __builtin_prefetch((const char *)x + ROW(i + GATHER_AHEAD) * ldx + byte);
        memcpy((char *)out + i * ldout, (const char *)x + ROW(i) * ldx, (size_t)bytes);
    }
}
