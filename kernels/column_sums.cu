// Sums of the columns of a tall matrix, in double precision. Blocks sum parts of the rows; a second launch sums what
// they made. The order of a sum depends on the shape alone.

#include "common.cuh"

constexpr int IN_FLIGHT = 8;  // rows of a thread

// sums[b, c] = the sum of x[r, c] over the rows b height .. b height + height of the m rows. Grid: parts x panels of G
// columns; G is a power of two, at most WARP. Threads of a block stand in rows of G. pitch: from a row to the next.
template <class X, class Total>
__global__ void __launch_bounds__(THREADS)
    column_sums(int64 m, int f, int G, int64 height, int pitch, const X* __restrict__ x, Total* __restrict__ sums) {
  __shared__ double parts[THREADS];
  const int thread = threadIdx.x, lane = thread % G, column = blockIdx.y * G + lane;
  const int rows = THREADS / G;
  const int64 begin = blockIdx.x * height, end = begin + height < m ? begin + height : m;
  double sum = 0;
  if (column < f)
    for (int64 row = begin + thread / G; row < end; row += IN_FLIGHT * rows) {
      X loaded[IN_FLIGHT];
#pragma unroll
      for (int k = 0; k < IN_FLIGHT; k++)
        loaded[k] = row + k * rows < end ? x[(row + k * rows) * pitch + column] : X{};
#pragma unroll
      for (int k = 0; k < IN_FLIGHT; k++) sum += number(loaded[k]);
    }
  parts[thread] = sum;
  for (int half = THREADS / 2; half >= G; half /= 2) {
    __syncthreads();
    if (thread < half) parts[thread] += parts[thread + half];
  }
  if (thread < G && column < f) sums[int64(blockIdx.x) * f + column] = Total(parts[thread]);
}
