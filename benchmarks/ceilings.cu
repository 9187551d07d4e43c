// What the memory of this GPU can do at most, for the benchmarks to compare with.

#include "common.cuh"

// Reads `size` units of 16 bytes `rounds` times, with four loads in flight per thread. An array of gigabytes
// measures the memory, one that fits the L2 cache the cache. The sum is kept so that no load is left out.
__global__ void __launch_bounds__(THREADS)
    read_repeatedly(const uint4* __restrict__ from, int64 size, int rounds, unsigned* __restrict__ sums) {
  const int64 threads = int64(gridDim.x) * THREADS, me = flat_index();
  unsigned sum = 0;
  for (int round = 0; round < rounds; round++) {
    const int64 shift =
        int64(round) * 7919 * THREADS % size;  // other units for this thread: its L1 cache is no help
#pragma unroll 4
    for (int64 i = me; i < size; i += threads) {
      const uint4 x = from[i + shift < size ? i + shift : i + shift - size];
      sum += x.x ^ x.y ^ x.z ^ x.w;
    }
  }
  sums[me] = sum;
}
