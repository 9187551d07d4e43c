// ReLU and dropout in one pass over a matrix, and their backward pass.
//
// Dropout masks are those of distgnn/rng.py to the bit: functions of a key and of the global row and column.
// A row and a column are hashed once (dropout_keys); an entry costs five 32-bit operations.

#include "common.cuh"

// keys[i] = hash of (key, ids[i]): rng.hashes.
__global__ void __launch_bounds__(THREADS)
    dropout_keys(int64 count, const int64* __restrict__ ids, uint64 key, uint64* __restrict__ keys) {
  const int64 i = flat_index();
  if (i < count) keys[i] = splitmix64(splitmix64(uint64(ids[i])) ^ key);
}

// Whether an entry is kept: rng.keep_blocks. `threshold` is the probability times 2^32, at most 2^32.
__device__ inline bool kept(uint64 row_key, uint64 column_key, uint64 threshold) {
  unsigned x = (unsigned(column_key >> 32) ^ unsigned(row_key)) * (unsigned(row_key >> 32) | 1u);
  x = (x ^ (x >> 16)) * 0x846CA68Bu;
  return x < threshold;
}

// out = dropout(x), or of its positive part with `relu`, for m x f entries in rows; out may be x. A thread
// makes eight entries, so that it divides once.
template <class T>
__global__ void __launch_bounds__(THREADS)
    dropout(int64 size, int f, const T* x, int relu, const uint64* __restrict__ row_keys,
            const uint64* __restrict__ column_keys, uint64 threshold, T scale, T* out) {
  const int64 first = flat_index() * 8;
  if (first >= size) return;
  int64 row = first / f;
  int column = int(first - row * f);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    if (first + k >= size) break;
    T y = x[first + k];
    if (relu) y = y < T(0) ? T(0) : y;  // NaN stays NaN, as in numpy.maximum
    out[first + k] = y * (kept(row_keys[row], column_keys[column], threshold) ? scale : T(0));
    if (++column == f) column = 0, row++;
  }
}

// gradient *= scale where the entry's bit is set, else 0: the backward of ReLU followed by dropout. Bits are
// in the order of numpy.packbits: entry 0 is the highest bit of byte 0.
template <class T>
__global__ void __launch_bounds__(THREADS)
    keep_positive(int64 size, const unsigned char* __restrict__ bits, T scale, T* gradient) {
  const int64 i = flat_index();
  if (i < size) gradient[i] *= bits[i >> 3] >> (7 - (i & 7)) & 1 ? scale : T(0);
}
