// Scores of logits: how many rows are predicted right.

#include "common.cuh"

// Whether x is a finite number.
__device__ inline bool is_finite(float x) { return x >= -3.402823466e+38f && x <= 3.402823466e+38f; }
__device__ inline bool is_finite(double x) {
  return x >= -1.7976931348623157e+308 && x <= 1.7976931348623157e+308;
}

// A warp per row rows[i] of logits (m, f): one more in hits[parts[i]] where the largest entry, the first of equal
// ones, is in column labels[i]; in hits[0] where an entry is not finite. parts: 1 to 3.
template <class T>
__global__ void __launch_bounds__(THREADS)
    count_hits(int64 count, const int64* __restrict__ rows, const int64* __restrict__ labels,
               const int64* __restrict__ parts, const T* __restrict__ logits, int f, int64* hits) {
  __shared__ unsigned here[4];
  if (threadIdx.x < 4) here[threadIdx.x] = 0;
  __syncthreads();
  const int64 i = flat_index() / WARP;
  const int lane = threadIdx.x % WARP;
  if (i < count) {  // whole warps
    const T* row = logits + rows[i] * f;
    T best = T(0);
    int column = f, wrong = 0;  // column f: none
    for (int c = lane; c < f; c += WARP) {
      const T x = row[c];
      if (!is_finite(x)) wrong = 1;
      if (column == f || x > best) best = x, column = c;
    }
#pragma unroll
    for (int away = WARP / 2; away; away /= 2) {
      const T x = __shfl_xor_sync(ALL_LANES, best, away);
      const int c = __shfl_xor_sync(ALL_LANES, column, away);
      wrong |= __shfl_xor_sync(ALL_LANES, wrong, away);
      if (c < f && (column == f || x > best || (x == best && c < column))) best = x, column = c;
    }
    if (lane == 0 && wrong) atomicAdd(here, 1u);
    if (lane == 0 && !wrong && column == labels[i]) atomicAdd(here + parts[i], 1u);
  }
  __syncthreads();
  if (threadIdx.x < 4 && here[threadIdx.x])
    atomicAdd(reinterpret_cast<uint64*>(hits) + threadIdx.x, uint64(here[threadIdx.x]));
}
