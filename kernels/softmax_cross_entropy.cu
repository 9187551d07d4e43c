// Masked softmax cross-entropy and its gradient. One warp per row, which reads its logits three times, from
// DRAM once. Rows that are cut over ranks take array operations (distgnn/nn/loss.py).

#include "common.cuh"

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }

// The largest logit of no logits: finite, so that the exponential of a difference is 0 and never NaN.
template <class T> __device__ inline T lowest() {
  return T(sizeof(T) == 4 ? -3.4028234e38 : -1.7976931348623157e308);
}

template <class T> __device__ inline T row_highest(const T* row, int f) {
  T highest = lowest<T>();
  for (int c = threadIdx.x % WARP; c < f; c += WARP) highest = highest < row[c] ? row[c] : highest;
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(ALL_LANES, highest, step);
    highest = highest < other ? other : highest;
  }
  return highest;
}

template <class T> __device__ inline T row_sum(const T* row, int f, T highest) {
  T sum = 0;
#pragma unroll 1  // unrolled, the exponential in double precision spills registers
  for (int c = threadIdx.x % WARP; c < f; c += WARP) sum += exponential(row[c] - highest);
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
  return sum;
}

// gradient = (softmax - onehot) scale; returns the logit of the label, less the highest, on the lane that has
// it, else 0. `gradient` may be `row`: a lane writes only entries that it has read.
template <class T>
__device__ inline T row_gradient(const T* row, T* gradient, int f, int64 own, T highest, T sum, T scale) {
  T logit = 0;
  for (int c = threadIdx.x % WARP; c < f; c += WARP) {
    const T x = row[c] - highest;
    if (c == own) logit = x;
    gradient[c] = (exponential(x) / sum - T(c == own)) * scale;
  }
  return logit;
}

template <class T> __device__ inline void clear_row(T* gradient, int f) {
  for (int c = threadIdx.x % WARP; c < f; c += WARP) gradient[c] = 0;
}

// position[r] is the place of row r among the training rows, or -1; labels and losses are indexed by place.
// gradient[r, :] for all m rows, zero where position[r] is -1.
template <class T>
__global__ void __launch_bounds__(THREADS)
    softmax_cross_entropy(int64 m, const int* __restrict__ position, const int64* __restrict__ labels,
                          const T* logits, int f, T scale, T* gradient, T* __restrict__ losses) {
  const int64 r = flat_index() / WARP;
  if (r >= m) return;  // whole warps leave
  const int i = position[r];
  if (i < 0) return clear_row(gradient + r * f, f);
  const T* row = logits + r * f;
  const T highest = row_highest(row, f), sum = row_sum(row, f, highest);
  const T logit = row_gradient(row, gradient + r * f, f, labels[i], highest, sum, scale);
  if (threadIdx.x % WARP == labels[i] % WARP) losses[i] = logarithm(sum) - logit;
}
