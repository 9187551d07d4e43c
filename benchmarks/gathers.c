/* Reads rows of cache lines in the order of an index array, one number of each line: the least that a gather
 * can do. Rows that come `ahead` places later are prefetched; there must be so many indices more. */

#include <stdint.h>

#define LINE 16 /* floats */

float gather(const float *B, const int32_t *indices, int64_t count, int64_t lines, int64_t ahead)
{
    float sums[4] = {0};
    for (int64_t p = 0; p < count; p += 4)
        for (int k = 0; k < 4; k++) {
            const float *row = B + indices[p + k] * lines * LINE;
            if (ahead) {
                const float *later = B + indices[p + k + ahead] * lines * LINE;
                for (int64_t line = 0; line < lines; line++)
                    __builtin_prefetch(later + line * LINE);
            }
            for (int64_t line = 0; line < lines; line++)
                sums[k] += row[line * LINE];
        }
    return sums[0] + sums[1] + sums[2] + sums[3];
}
