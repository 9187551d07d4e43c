// ReLU, dropout and the bits that their backward pass needs, in one pass over a matrix; and that pass.
//
// Dropout masks are those of distgnn/rng.py to the bit: functions of a key and of the global row and column.
// A row and a column are hashed once (dropout_keys); an entry costs five 32-bit operations.

#include "common.cuh"

// keys[i] = hash of (row_key, rows[i]), and behind them of (column_key, columns[i]): rng.hashes. given: both keys,
// read from memory in place of the arguments; or null.
__global__ void __launch_bounds__(THREADS)
    dropout_keys(int64 row_count, const int64* __restrict__ rows, int64 column_count,
                 const int64* __restrict__ columns, uint64 row_key, uint64 column_key,
                 const uint64* __restrict__ given, uint64* __restrict__ keys) {
  const int64 i = flat_index();
  if (i >= row_count + column_count) return;
  const bool row = i < row_count;
  const uint64 key = given ? given[row ? 0 : 1] : row ? row_key : column_key;
  keys[i] = splitmix64(splitmix64(uint64(row ? rows[i] : columns[i - row_count])) ^ key);
}

// x = dropout(x) of few columns, as of `dropout_keys` and `activate`, without memory for keys: a thread takes a row.
template <class T>
__global__ void __launch_bounds__(THREADS)
    drop_rows(int64 m, int f, const int64* __restrict__ rows, const int64* __restrict__ columns, uint64 row_key,
              uint64 column_key, const uint64* __restrict__ given, uint64 threshold, T scale, T* __restrict__ x) {
  const int64 row = flat_index();
  if (row >= m) return;
  row_key = given ? given[0] : row_key, column_key = given ? given[1] : column_key;
  const uint64 key = splitmix64(splitmix64(uint64(rows[row])) ^ row_key);
  for (int column = 0; column < f; column++)
    x[row * f + column] *=
        kept(key, splitmix64(splitmix64(uint64(columns[column])) ^ column_key), threshold) ? scale : T(0);
}

constexpr int STEPS = 8;  // of a warp, 32 entries each

// out = dropout(relu(x + bias)) for m x f entries in rows, and bits = whether that is positive, in the order of
// numpy.packbits: entry 0 is the highest bit of byte 0. `out` may be x. Without `bias`, `relu`, `row_keys`, `out`
// or `bits`, which may be null, the pass does without. bits: whole words.
//
// A warp makes 256 neighbouring entries, 32 at a time, so that loads and stores are of whole lines, and a
// thread divides once. All are loaded before one is stored: `out` may be x, for all that the compiler knows. Lane
// l has entry l ^ 7 of the 32: a ballot then has their bits in the order of packbits.
template <class T>
__global__ void __launch_bounds__(THREADS)
    activate(int64 size, int f, const T* x, const T* __restrict__ bias, int relu,
             const uint64* __restrict__ row_keys, const uint64* __restrict__ column_keys, uint64 threshold,
             T scale, T* out, unsigned* bits) {
  const Epilogue<T> becomes{bias, relu, row_keys, column_keys, threshold, scale, nullptr, nullptr};
  const int lane = threadIdx.x % WARP, down = WARP / f, along = WARP % f;
  const int64 base = flat_index() / WARP * (STEPS * WARP);
  if (base >= size) return;  // whole warps leave
  const bool placed = row_keys || bias;
  int64 at = base + (lane ^ 7), row = placed ? at / f : 0;
  int column = placed ? int(at - row * f) : 0;
  unsigned word = 0;
  T loaded[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; k++) loaded[k] = at + k * WARP < size ? x[at + k * WARP] : T(0);
#pragma unroll
  for (int k = 0; k < STEPS; k++, at += WARP) {
    const bool there = at < size;
    const T y = there ? becomes.of(loaded[k], row, column) : T(0);
    if (out && there) out[at] = y;
    if (bits) {
      const unsigned positive = __ballot_sync(ALL_LANES, y > T(0));
      if (lane == k) word = positive;
    }
    row += down;
    column += along;
    if (column >= f) column -= f, row++;
  }
  if (bits && lane < STEPS && base + lane * WARP < size) bits[base / WARP + lane] = word;
}

// gradient *= scale where the entry's bit is set, else 0: the backward of ReLU followed by dropout. Bits are
// in the order of numpy.packbits: entry 0 is the highest bit of byte 0. A warp takes 256 neighbouring entries.
template <class T>
__global__ void __launch_bounds__(THREADS)
    keep_positive(int64 size, const unsigned char* __restrict__ bits, T scale, T* __restrict__ gradient) {
  const int64 first = flat_index() / WARP * (STEPS * WARP) + threadIdx.x % WARP;
  T loaded[STEPS];
  bool positive[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; k++) {
    const int64 i = first + k * WARP;
    if (i < size) loaded[k] = gradient[i], positive[k] = bits[i >> 3] >> (7 - (i & 7)) & 1;
  }
#pragma unroll
  for (int k = 0; k < STEPS; k++)
    if (first + k * WARP < size) gradient[first + k * WARP] = loaded[k] * (positive[k] ? scale : T(0));
}

__device__ inline float power_less_one(float x) { return expm1f(x); }
__device__ inline double power_less_one(double x) { return expm1(x); }

// x = dropout(elu(x)) for m x f numbers in rows, ELU being exp(x) - 1 below 0; without `row_keys`, which may be null,
// elu(x). Or, with `H`, which was made so of what had `share` of itself kept, the way back: x = dropout(x) times the
// slope of ELU, by its values: 1, or exp(x) = share H + 1. A thread takes STEPS numbers, a warp neighbouring ones.
template <class T>
__global__ void __launch_bounds__(THREADS)
    elu(int64 size, int f, const T* __restrict__ H, T share, const uint64* __restrict__ row_keys,
        const uint64* __restrict__ column_keys, uint64 threshold, T scale, T* __restrict__ x) {
  const Epilogue<T> dropped{nullptr, 0, row_keys, column_keys, threshold, scale, nullptr, nullptr};
  int64 at = flat_index() / WARP * (STEPS * WARP) + threadIdx.x % WARP, row = row_keys ? at / f : 0;
  int column = row_keys ? int(at - row * f) : 0;
  const int down = WARP / f, along = WARP % f;
  T loaded[STEPS], made[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; k++) {
    const bool there = at + k * WARP < size;
    loaded[k] = there ? x[at + k * WARP] : T(0);
    made[k] = there && H ? H[at + k * WARP] : T(0);
  }
#pragma unroll
  for (int k = 0; k < STEPS; k++, at += WARP) {
    const T slope = share * made[k] + T(1);  // NaN stays NaN
    T y = loaded[k];
    if (H) y *= slope > T(1) ? T(1) : slope;
    else if (!(y > T(0))) y = power_less_one(y);
    if (at < size) x[at] = dropped.of(y, row, column);
    row += down;
    column += along;
    if (column >= f) column -= f, row++;
  }
}
