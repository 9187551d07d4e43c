/* Passes over dense matrices that an epoch makes between its products, each fused into one reading and one
 * writing of memory. Arrays are flat or row-major, of any alignment. The NumPy code of
 * distgnn/local/elementwise.py is the reference. */

#ifndef DISTGNN_ELEMENTWISE_H
#define DISTGNN_ELEMENTWISE_H

#include <stdint.h>

#define GATHER_AHEAD 8 /* rows to prefetch ahead */

/* y = z * (kept ? scale : 0) for z = x + bias, or max(z, 0) with `relu`; bits = numpy.packbits(y > 0), for which
 * y has no gaps between rows. x and y may be one. Without `bias`, `low` or `bits`, which may be null, the pass does
 * without. Entry (i, j) is kept if the hash of rng.py, a function of low[i], odd[i] and columns[j], lies below
 * `threshold` (at most 2^32). */
struct activate {
    int64_t rows, width, ldx, ldy; /* leading dimensions in elements */
    const void *x, *bias;
    void *y;
    const uint32_t *low, *odd, *columns;
    uint64_t threshold;
    double scale;
    int relu;
    uint8_t *bits;
};

/* One step of Adam or AdamW (ICLR 2015, Algorithm 1; ICLR 2019, Algorithm 2): w <- shrink w, g <- g + decay
 * w, then the moments m and v, then w <- w - rate m / (sqrt(v / correction) + epsilon). */
struct adam {
    int64_t count;
    void *w, *m, *v;
    const void *g;
    double shrink, decay, first, second, rate, correction, epsilon;
};

/* Softmax cross-entropy by row and its gradient by the logits x: for each listed row i (rising, in
 * 0..height-1), with E = exp(x - max x), y[i, :] = share * (E / sum E - onehot(label)), sums[i] = sum E and
 * own[i] = x[label] - max x, so that the row's loss is log sums - own. The rows of y that are not listed
 * become zero; x and y may be one. */
struct cross_entropy {
    int64_t height, width, ldx, ldy, count;
    const void *x;
    void *y;
    const int64_t *rows, *labels; /* `count` of them */
    void *sums, *own;
    double share;
};

/* Binary cross-entropy of every entry of the listed rows (as above) and its gradient: with labels of 0 and 1,
 * count x width, y[i, :] = share * (1 / (1 + exp -x) - label) and losses[i] = sum of log(1 + exp x) - label x.
 * The rows of y that are not listed become zero; x and y may be one. */
struct binary_cross_entropy {
    int64_t height, width, ldx, ldy, count;
    const void *x;
    void *y;
    const int64_t *rows;
    const uint8_t *labels;
    double *losses;
    double share;
};

/* The passes of one instruction set over one type of number. */
struct elementwise_set {
    void (*activate)(const struct activate *);
    void (*adam)(const struct adam *);
    void (*pack_positive)(const void *x, int64_t count, uint8_t *bits); /* as numpy.packbits(x > 0) */
    void (*keep_positive)(void *x, int64_t count, const uint8_t *bits, double scale);
    void (*cross_entropy)(const struct cross_entropy *);
    void (*binary_cross_entropy)(const struct binary_cross_entropy *);
    void (*scatter_add)(const void *x, int64_t ldx, const int64_t *rows, int64_t count, int64_t width,
                        void *y, int64_t ldy);
};

/* out[i, :] = x[rows[i], :], rows of `bytes` bytes that lie ldx and ldout bytes apart; numbers of rows are
 * int64 if `wide`, else int32. */
void gather_rows(const void *x, int64_t ldx, const void *rows, int wide, int64_t count, int64_t bytes, void *out,
                 int64_t ldout);

#endif
