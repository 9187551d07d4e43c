// Masked softmax cross-entropy and its gradient. G lanes of a warp per row, a power of two, which read its logits
// three times, from DRAM once. Rows that are cut over ranks take array operations (distgnn/nn/loss.py).

#include "common.cuh"

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }

// The largest logit of no logits: finite, so that the exponential of a difference is 0 and never NaN.
template <class T> __device__ inline T lowest() {
  return T(sizeof(T) == 4 ? -3.4028234e38 : -1.7976931348623157e308);
}

template <class T> __device__ inline T row_highest(const T* row, int f, int G) {
  T highest = lowest<T>();
  for (int c = threadIdx.x % G; c < f; c += G) highest = highest < row[c] ? row[c] : highest;
  for (int step = G / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(ALL_LANES, highest, step);
    highest = highest < other ? other : highest;
  }
  return highest;
}

template <class T> __device__ inline T row_sum(const T* row, int f, int G, T highest) {
  T sum = 0;
#pragma unroll 1  // unrolled, the exponential in double precision spills registers
  for (int c = threadIdx.x % G; c < f; c += G) sum += exponential(row[c] - highest);
  for (int step = G / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
  return sum;
}

// gradient = (softmax - onehot) scale; returns the logit of the label, less the highest, on the lane that has
// it, else 0. `gradient` may be `row`: a lane writes only entries that it has read.
template <class T>
__device__ inline T row_gradient(const T* row, T* gradient, int f, int G, int64 own, T highest, T sum,
                                 T scale) {
  T logit = 0;
#pragma unroll 1  // for the same reason
  for (int c = threadIdx.x % G; c < f; c += G) {
    const T x = row[c] - highest;
    if (c == own) logit = x;
    gradient[c] = (exponential(x) / sum - T(c == own)) * scale;
  }
  return logit;
}

// position[r] is the place of row r among the training rows, or -1; labels and losses are indexed by place.
// gradient[r, :] for all m rows, zero where position[r] is -1.
template <class T>
__global__ void __launch_bounds__(THREADS)
    softmax_cross_entropy(int64 m, const int* __restrict__ position, const int64* __restrict__ labels,
                          const T* logits, int f, int G, T scale, T* gradient, T* __restrict__ losses) {
  const int64 r = flat_index() / G;
  const int lane = threadIdx.x % G, i = r < m ? position[r] : -1, width = i < 0 ? 0 : f;
  const T* row = logits + r * f;
  T* out = gradient + r * f;
  if (r < m && i < 0)
    for (int c = lane; c < f; c += G) out[c] = 0;
  const T highest = row_highest(row, width, G), sum = row_sum(row, width, G, highest);  // by all lanes of a warp
  if (i < 0) return;
  const T logit = row_gradient(row, out, f, G, labels[i], highest, sum, scale);
  if (lane == labels[i] % G) losses[i] = logarithm(sum) - logit;
}
