/* Float32 numbers rounded to the 16 bits in which they travel between ranks, and back. Arrays are of any
 * alignment. Both types round to nearest, ties to even; infinities and NaN stay what they are.
 *
 *   bfloat16   the upper half of a float32: its range, 8 bits of precision
 *   float16    of IEEE 754: 11 bits of precision; from 65520 on infinite, below 2^-24 in steps of 2^-24 */

#ifndef DISTGNN_NARROW_H
#define DISTGNN_NARROW_H

#include <stdint.h>

/* y[i, :] = x[rows[i], :], or x[i, :] without `rows`, rounded; rows of x lie ldx numbers apart. */
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
    void (*narrow)(const struct narrow *);
    void (*widen)(const struct widen *);
};

#endif
