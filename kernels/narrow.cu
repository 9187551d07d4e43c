// Float32 numbers rounded to the 16 bits in which they travel between ranks, and back (see host/narrow.h).

#include "common.cuh"

// The upper half of a float32.
struct Bfloat16 {
  static __device__ inline unsigned narrow(unsigned x) {
    const bool is_nan = (x & 0x7FFFFFFFu) > 0x7F800000u;
    return (is_nan ? x | 0x00400000u : x + 0x7FFFu + (x >> 16 & 1u)) >> 16;
  }
  static __device__ inline float widen(unsigned h) { return __uint_as_float(h << 16); }
};

// Of IEEE 754. Below 2^-14 its numbers are steps of 2^-24, the last bit of a float32 between 1/2 and 1.
struct Float16 {
  static __device__ inline unsigned narrow(unsigned x) {
    const unsigned size = x & 0x7FFFFFFFu, sign = (x & 0x80000000u) >> 16;
    if (size > 0x7F800000u) return sign | 0x7E00u | (size >> 13 & 0x3FFu);
    if (size >= 143u << 23) return sign | 0x7C00u;
    if (size < 113u << 23) return sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3F000000u);
    return sign | (size - (112u << 23) + 0xFFFu + (size >> 13 & 1u)) >> 13;
  }
  static __device__ inline float widen(unsigned h) {
    const unsigned sign = (h & 0x8000u) << 16, size = h & 0x7FFFu;
    const unsigned special = size >= 0x7C00u ? 0x7F800000u : 0u;
    // As a number of steps: CuPy compiles with -ftz=true, by which a product with a float32 below 2^-126 is 0.
    const unsigned small = __float_as_uint(static_cast<float>(size) * 0x1p-24f);
    return __uint_as_float(sign | special | (size < 0x0400u ? small : (size << 13) + (112u << 23)));
  }
};

// to[i] = from[i], rounded.
template <class Kind>
__global__ void __launch_bounds__(THREADS)
    narrow(int64 size, const float* __restrict__ from, unsigned short* __restrict__ to) {
  const int64 i = flat_index();
  if (i < size) to[i] = static_cast<unsigned short>(Kind::narrow(__float_as_uint(from[i])));
}

// to[i, :] = from[rows[i], :], rounded; G lanes stand side by side on one row.
template <class Kind, int G>
__global__ void __launch_bounds__(THREADS)
    narrow_rows(int64 count, const int64* __restrict__ rows, const float* __restrict__ from, int width,
                unsigned short* __restrict__ to) {
  const int64 row = flat_index() / G;
  if (row >= count) return;
  const float* source = from + rows[row] * width;
  for (int c = threadIdx.x % G; c < width; c += G)
    to[row * width + c] = static_cast<unsigned short>(Kind::narrow(__float_as_uint(source[c])));
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
