// Rows picked out of, or added into, a dense row-major matrix, where exchanges send only the rows needed.

#include "common.cuh"

// Where a thread works: G lanes stand side by side on one row, THREADS / G rows per block.
template <int G> struct Place {
  int64 row = (int64(blockIdx.x) * THREADS + threadIdx.x) / G;
  int first = threadIdx.x % G;
};

// to[i, :] = from[rows[i], :]. Elements are moved as words as wide as alignment and row length allow.
template <class Unit, int G>
__global__ void __launch_bounds__(THREADS)
    gather_rows(int64 count, const int64* __restrict__ rows, const Unit* __restrict__ from, int width,
                Unit* __restrict__ to) {
  const Place<G> place;
  if (place.row >= count) return;
  const Unit* source = from + rows[place.row] * width;
  for (int c = place.first; c < width; c += G) to[place.row * width + c] = source[c];
}

// to[rows[i], :] += from[i, :] for distinct rows: no two threads meet, so no atomics.
template <class T, int G>
__global__ void __launch_bounds__(THREADS)
    add_rows(int64 count, const int64* __restrict__ rows, const T* __restrict__ from, int width,
             T* __restrict__ to) {
  const Place<G> place;
  if (place.row >= count) return;
  T* target = to + rows[place.row] * width;
  for (int c = place.first; c < width; c += G) target[c] += from[place.row * width + c];
}
