// Rows picked out of, or added into, a dense row-major matrix: the packing of exchanges that send only the rows needed.

#include "common.cuh"

// The piece of a row that a thread works on: G lanes stand side by side on one row, THREADS / G rows per block.
template <int G> struct Place {
  int64 row = (int64(blockIdx.x) * THREADS + threadIdx.x) / G;
  int first = threadIdx.x % G;
};

// to[i, :] = from[rows[i], :]. Elements are moved as words of any type as wide as alignment and row length allow.
template <class Unit, class Index, int G>
__global__ void __launch_bounds__(THREADS)
    gather_rows(int64 count, const Index* __restrict__ rows, const Unit* __restrict__ from, int width,
                Unit* __restrict__ to) {
  const Place<G> place;
  if (place.row >= count) return;
  const Unit* source = from + int64(rows[place.row]) * width;
  for (int c = place.first; c < width; c += G) to[place.row * width + c] = source[c];
}

// to[rows[i], :] += from[i, :] for distinct rows: no two threads meet, so no atomics. Repeated rows go through SpMM,
// whose matrix lists for every row what is added to it, in order.
template <class T, class Index, int G>
__global__ void __launch_bounds__(THREADS)
    add_rows(int64 count, const Index* __restrict__ rows, const T* __restrict__ from, int width, T* __restrict__ to) {
  const Place<G> place;
  if (place.row >= count) return;
  T* target = to + int64(rows[place.row]) * width;
  for (int c = place.first; c < width; c += G) target[c] += from[place.row * width + c];
}

// bfloat16 of float32, rounded to nearest, ties to even; NaN stays NaN.
__global__ void __launch_bounds__(THREADS)
    to_bfloat16(int64 size, const float* __restrict__ from, bfloat16* __restrict__ to) {
  const int64 i = flat_index();
  if (i >= size) return;
  const unsigned x = __float_as_uint(from[i]);
  const bool nan = (x & 0x7fffffffu) > 0x7f800000u;
  to[i].bits = (unsigned short)(nan ? (x >> 16) | 0x40 : (x + 0x7fff + (x >> 16 & 1)) >> 16);
}
