/* Float32 numbers rounded to the 16 bits in which they travel between ranks, and back. Arrays are of any
 * alignment. Both types round to nearest, ties to even; infinities and NaN stay what they are. A number that
 * would round to infinity becomes NaN, which no ReLU takes for 0.
 *
 *   bfloat16   the upper half of a float32: 8 bits of precision; to 2^128 - 2^119 - 2^118
 *   float16    of IEEE 754: 11 bits of precision, below 2^-14 in steps of 2^-24; to 65520 */

#ifndef DISTGNN_NARROW_H
#define DISTGNN_NARROW_H

#include <stdint.h>

/* y[i, :] = x[rows[i], :], or x[i, :] without `rows`, rounded; rows of x lie ldx numbers apart. Returns the
 * bits of the size of the largest finite number that became NaN; 0: none did. */
struct narrow {
    int64_t count, width, ldx;
    const void *x;
    const int64_t *rows;
    void *y;
};

/* y = x, or y += x with `accumulate`. */
struct widen {
    int64_t count;
    const void *x;
    void *y;
    int accumulate;
};

/* The passes of one instruction set for one type. */
struct narrow_set {
    uint32_t (*narrow)(const struct narrow *);
    void (*widen)(const struct widen *);
};

#endif
