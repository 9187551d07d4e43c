// Masked binary cross-entropy of every logit and its gradient. One warp per row, which reads its logits once;
// rows may be cut over ranks anywhere.

#include "common.cuh"

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm_of_1_and(float x) { return log1pf(x); }
__device__ inline double logarithm_of_1_and(double x) { return log1p(x); }

// position[r] is the place of row r among the training rows, or -1. labels, 0 or 1, and losses, the sums of
// log(1 + exp x) - label x over the row, are indexed by place. gradient[r, :] = (1 / (1 + exp -x) - label)
// scale for all m rows, zero where position[r] is -1; it may be `logits`.
template <class T>
__global__ void __launch_bounds__(THREADS)
    binary_cross_entropy(int64 m, const int* __restrict__ position, const unsigned char* __restrict__ labels,
                         const T* logits, int f, T scale, T* gradient, T* __restrict__ losses) {
  const int64 r = flat_index() / WARP;
  if (r >= m) return;  // whole warps leave
  const int64 i = position[r];
  T sum = 0;
  for (int c = threadIdx.x % WARP; c < f; c += WARP) {
    if (i < 0) {
      gradient[r * f + c] = 0;
      continue;
    }
    const T x = logits[r * f + c], label = T(labels[i * f + c]), small = exponential(x < 0 ? x : -x);
    sum += (x < 0 ? T(0) : x) - x * label + logarithm_of_1_and(small);
    gradient[r * f + c] = ((x < 0 ? small : T(1)) / (small + T(1)) - label) * scale;
  }
  if (i < 0) return;
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
  if (threadIdx.x % WARP == 0) losses[i] = sum;
}
