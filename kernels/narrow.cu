// Float32 numbers rounded to the 16 bits in which they travel between ranks, and back (see host/narrow.h).

#include "common.cuh"

// to[i] = from[i], rounded.
template <class Kind>
__global__ void __launch_bounds__(THREADS)
    narrow(int64 size, const float* __restrict__ from, unsigned short* __restrict__ to,
           int* __restrict__ beyond) {
  const int64 i = flat_index();
  if (i < size) to[i] = narrowed<Kind>(from[i], beyond);
}

// to[i, :] = from[i, :], rounded, of f columns, and zeros behind them up to `pitch`, a multiple of 4. A thread
// makes 4 of the `size` numbers.
template <class Kind>
__global__ void __launch_bounds__(THREADS)
    narrow_padded(int64 size, const float* __restrict__ from, int f, int pitch,
                  unsigned short* __restrict__ to, int* __restrict__ beyond) {
  const int64 i = 4 * flat_index();
  if (i >= size) return;
  const int64 row = f == pitch ? 0 : i / pitch, column = i - row * pitch;
  const int64 columns = f == pitch ? 4 : f - column;
  const float* source = from + row * f + column;
  Pack<float, 4> x{};
  if (columns >= 4 && aligned<4>(source)) x = load_read_only<4>(source);
  else
    for (int v = 0; v < 4; v++)
      if (v < columns) x.at[v] = source[v];
  Pack<unsigned short, 4> bits;
#pragma unroll
  for (int v = 0; v < 4; v++)
    bits.at[v] = narrowed<Kind>(x.at[v], beyond);
  store(to + i, bits);
}

// to[i, :] = from[rows[i], :], rounded; G lanes stand side by side on one row.
template <class Kind, int G>
__global__ void __launch_bounds__(THREADS)
    narrow_rows(int64 count, const int64* __restrict__ rows, const float* __restrict__ from, int width,
                unsigned short* __restrict__ to, int* __restrict__ beyond) {
  const int64 row = flat_index() / G;
  if (row >= count) return;
  const float* source = from + rows[row] * width;
  for (int c = threadIdx.x % G; c < width; c += G)
    to[row * width + c] = narrowed<Kind>(source[c], beyond);
}

// to[i] = from[i], or to[i] += from[i] with `accumulate`.
template <class Kind>
__global__ void __launch_bounds__(THREADS)
    widen(int64 size, const unsigned short* __restrict__ from, int accumulate, float* __restrict__ to) {
  const int64 i = flat_index();
  if (i >= size) return;
  const float x = Kind::widen(from[i]);
  to[i] = accumulate ? to[i] + x : x;
}
