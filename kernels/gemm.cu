// Dense products C = A B of float32 on tensor cores, with the error of float32, where C or the sum is tall.
//
// A number is the sum of two of TF32 (split), and a product of two numbers the sum of three products: low high' + high
// low' + high high'. Tensor cores round their sums toward zero, each time the same way, so that they add up 16
// products of each kind, small ones first, and the result goes to a running sum by an addition that rounds to
// nearest (Ootomo and Yokota, 2022, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
// theoretical peak performance"). The order of a sum depends on the shape alone. An infinite number makes NaN of a
// result that float32 has as infinite.
//
// A block has a tile of C: its 8 warps stand in WARPS_ACROSS columns, and each has 16 MF rows and 8 NF columns. It goes
// over k in chunks of 32, which come by asynchronous copies, STAGES - 1 chunks ahead, also beyond the end of a tile.
//
// Which column or row of a fragment, as the tensor core knows it, is which of the tile, is chosen so that a thread
// reads neighbours from shared memory and has neighbours of C. In 8 steps of k thread t of a row has steps 2 t and 2 t +
// 1. Pitches of shared memory are such that no two threads read different rows of one bank at once.

#include "common.cuh"
#include "tensor.cuh"

// How the operands lie in memory, C being row by row.
constexpr int HELD = 0;        // A row by row, and tall; B, row by row or column by column, is held split
constexpr int STREAMED = 1;    // A row by row, and tall; B row by row
constexpr int TRANSPOSED = 2;  // A row by row, and tall; B column by column
constexpr int COLUMNS = 3;     // A column by column, B row by row, and k large: parts of the sum by blockIdx.x

constexpr int CHUNK = 32;  // of k in shared memory at a time
constexpr int GROUP = 16;  // of k that tensor cores add up by themselves

template <int WAY, int WARPS_ACROSS, int MF, int NF> struct Tile {
  static constexpr int DOWN = 16 * MF, ACROSS = 8 * NF;  // of a warp
  static constexpr int ROWS = THREADS / WARP / WARPS_ACROSS * DOWN, WIDTH = WARPS_ACROSS * ACROSS;
  static constexpr int BESIDE = NF % 4 ? 2 : 4;  // fragments of B whose columns are neighbours
  static constexpr int A_PITCH = WAY == COLUMNS ? ROWS + 4 : CHUNK + 8;
  static constexpr int B_PITCH = WAY == TRANSPOSED ? CHUNK + 4 : WIDTH + 4;
  static constexpr int A_SIZE = (WAY == COLUMNS ? CHUNK : ROWS) * A_PITCH;
  static constexpr int B_SIZE = WAY == HELD ? 0 : (WAY == TRANSPOSED ? WIDTH : CHUNK) * B_PITCH;
};

// The place of a thread in its block: warp, row and column of the fragments that it has.
template <class T, int WARPS_ACROSS> struct Seat {
  int lane = int(threadIdx.x) % WARP, g = lane / 4, t = lane % 4;
  int down = int(threadIdx.x) / WARP / WARPS_ACROSS * T::DOWN;
  int across = int(threadIdx.x) / WARP % WARPS_ACROSS * T::ACROSS;
};

// Begins to copy a panel to shared memory, UNIT numbers at a time; zeros where there is none.
template <int OUTER, int INNER, int PITCH, int UNIT>
__device__ inline void copy_units(float* to, const float* from, int stride, int outer, int inner) {
  constexpr int UNITS = INNER / UNIT;
#pragma unroll 1  // else addresses of all turns take registers
  for (int i = threadIdx.x; i < OUTER * UNITS; i += THREADS) {
    const int row = i / UNITS, column = i % UNITS * UNIT;
    const bool there = row < outer && column < inner;
    copy_later<UNIT>(to + row * PITCH + column, there ? from + int64(row) * stride + column : from, there);
  }
}

// The same of OUTER x INNER numbers at `at`, `stride` from row to row, of which outer x inner are there. unit: the
// numbers that may be copied together, 4, 2 or 1.
template <int OUTER, int INNER, int PITCH>
__device__ inline void copy_panel(float* to, const float* at, int stride, int outer, int inner, int unit) {
  if (unit == 4)
    copy_units<OUTER, INNER, PITCH, 4>(to, at, stride, outer, inner);
  else if (unit == 2)
    copy_units<OUTER, INNER, PITCH, 2>(to, at, stride, outer, inner);
  else
    copy_units<OUTER, INNER, PITCH, 1>(to, at, stride, outer, inner);
}

// The column of a warp's part of a tile that fragment j has as its column g.
template <class T> __device__ inline int column_of(int j, int g) {
  return j / T::BESIDE * (8 * T::BESIDE) + T::BESIDE * g + j % T::BESIDE;
}

// B from column `first` on, split, as fragments: for 16 of k and 8 columns 4 numbers of each thread, high, then low.
template <class T, int NF>
__device__ inline void hold(float* to, const float* __restrict__ B, int K, int N, int first, int transposed) {
  constexpr int FRAGMENTS = T::WIDTH / 8;
  const int count = (K + GROUP - 1) / GROUP * FRAGMENTS * WARP;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const int lane = i % WARP, j = i / WARP % FRAGMENTS;
    const int column = first + j / NF * T::ACROSS + column_of<T>(j % NF, lane / 4);
    Pack<float, 4> high, low;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const int k = i / WARP / FRAGMENTS * GROUP + v / 2 * 8 + lane % 4 * 2 + v % 2;
      const int64 at = transposed ? int64(column) * K + k : int64(k) * N + column;
      split(k < K && column < N ? B[at] : 0.0f, high.at[v], low.at[v]);
    }
    store(to + i / WARP * (8 * WARP) + lane * 4, high);
    store(to + i / WARP * (8 * WARP) + lane * 4 + 4 * WARP, low);
  }
}

// The fragments of an operand for 16 of k, in two steps of 8: F of R numbers.
template <int F, int R> struct Halves {
  float high[2][F][R], low[2][F][R];
};

// A's, from `at` in shared memory, where the chunk's k has the offset k.
template <class T, int WAY, int MF>
__device__ inline void read_rows(Halves<MF, 4>& a, const float* at, int k, int down, int g, int t) {
#pragma unroll
  for (int s = 0; s < 2; s++)
    if constexpr (WAY == COLUMNS) {
#pragma unroll
      for (int b = 0; b < 2; b++) {
        const auto x = load<2 * MF>(at + (k + 8 * s + 2 * t + b) * T::A_PITCH + down + 2 * MF * g);
#pragma unroll
        for (int r = 0; r < 2 * MF; r++)
          split(x.at[r], a.high[s][r / 2][r % 2 + 2 * b], a.low[s][r / 2][r % 2 + 2 * b]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2 * MF; r++) {
        const auto x = load<2>(at + (down + 8 * r + g) * T::A_PITCH + k + 8 * s + 2 * t);
#pragma unroll
        for (int b = 0; b < 2; b++)
          split(x.at[b], a.high[s][r / 2][r % 2 + 2 * b], a.low[s][r / 2][r % 2 + 2 * b]);
      }
    }
}

// B's for `BESIDE` fragments from column `across` of the tile on.
template <class T, int WAY>
__device__ inline void read_columns(Halves<T::BESIDE, 2>& b, const float* at, int k, int across, int g, int t) {
  constexpr int F = T::BESIDE;
#pragma unroll
  for (int s = 0; s < 2; s++)
    if constexpr (WAY == TRANSPOSED) {
#pragma unroll
      for (int j = 0; j < F; j++) {
        const auto x = load<2>(at + (across + F * g + j) * T::B_PITCH + k + 8 * s + 2 * t);
#pragma unroll
        for (int r = 0; r < 2; r++) split(x.at[r], b.high[s][j][r], b.low[s][j][r]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const auto x = load<F>(at + (k + 8 * s + 2 * t + r) * T::B_PITCH + across + F * g);
#pragma unroll
        for (int j = 0; j < F; j++) split(x.at[j], b.high[s][j][r], b.low[s][j][r]);
      }
    }
}

// The same of fragments that are held.
template <int F> __device__ inline void read_held(Halves<F, 2>& b, const float* at, int lane) {
#pragma unroll
  for (int j = 0; j < F; j++) {
    const auto high = load<4>(at + j * (8 * WARP) + lane * 4);
    const auto low = load<4>(at + j * (8 * WARP) + lane * 4 + 4 * WARP);
#pragma unroll
    for (int v = 0; v < 4; v++) b.high[v / 2][j][v % 2] = high.at[v], b.low[v / 2][j][v % 2] = low.at[v];
  }
}

// sums[i][j] += the product of fragments i and j, for F of the NF fragments of columns.
template <int MF, int F>
__device__ inline void multiply(float (*sums)[4], int stride, const Halves<MF, 4>& a, const Halves<F, 2>& b) {
  float fresh[MF][F][4] = {};
#pragma unroll
  for (int s = 0; s < 2; s++)
#pragma unroll
    for (int term = 0; term < 2; term++)
#pragma unroll
      for (int i = 0; i < MF; i++)
#pragma unroll
        for (int j = 0; j < F; j++)
          if (term)
            multiply_tf32(fresh[i][j], a.high[s][i], b.low[s][j]);
          else
            multiply_tf32(fresh[i][j], a.low[s][i], b.high[s][j]);
#pragma unroll
  for (int s = 0; s < 2; s++)
#pragma unroll
    for (int i = 0; i < MF; i++)
#pragma unroll
      for (int j = 0; j < F; j++) multiply_tf32(fresh[i][j], a.high[s][i], b.high[s][j]);
#pragma unroll
  for (int i = 0; i < MF; i++)
#pragma unroll
    for (int j = 0; j < F; j++)
#pragma unroll
      for (int v = 0; v < 4; v++) sums[i * stride + j][v] += fresh[i][j][v];
}

// out[row, column...] = x, or += x with `accumulate`, and what becomes of it; V columns, of f. bits: f is a multiple of 8.
template <int V>
__device__ inline void finish(float* out, int f, int accumulate, const Epilogue<float>& after, int row, int column,
                              Pack<float, V> x) {
  if (column >= f) return;
  const int64 at = int64(row) * f + column;
  const int columns = f - column < V ? f - column : V;
  const bool whole = columns == V && aligned<4>(out + at);
  if (whole && !accumulate && !after.any()) return stream_out(out + at, x);
  unsigned positive = 0;
#pragma unroll
  for (int v = 0; v < V; v++)
    if (v < columns && accumulate) x.at[v] += out[at + v];
  if (after.keeps) {
    const unsigned keep = bits_at(after.keeps, at, columns);
#pragma unroll
    for (int v = 0; v < V; v++) x.at[v] *= keep >> (31 - v) & 1 ? after.scale : 0.0f;
  }
#pragma unroll
  for (int v = 0; v < V; v++) {
    if (v < columns) x.at[v] = after.of(x.at[v], row, column + v);
    positive = positive << 1 | unsigned(x.at[v] > 0.0f);
    if (v < columns && !whole) out[at + v] = x.at[v];
  }
  if (whole) stream_out(out + at, x);
  if (!after.bits) return;
  if constexpr (V == 4) {  // the lane beside has the other half of a byte
    const unsigned first = threadIdx.x % WARP / 2 * 2;
    positive = positive << 4 | __shfl_xor_sync(3u << first, positive, 1);
  }
  if (at % 8 == 0) after.bits[at >> 3] = static_cast<unsigned char>(positive);
}

// A (M, K), B (K, N), C (M, N) in `out`, or added to it. a_unit, b_unit: see copy_panel. transposed: B lies column by
// column; for HELD, the other ways say it. Grid: so many blocks as there may be for row tiles, x column tiles; with
// COLUMNS parts x tiles, a part being `part` of k, a multiple of CHUNK; then `out` has a matrix for each part. The last
// parameters are what becomes of C.
template <int WAY, int WARPS_ACROSS, int MF, int NF, int STAGES>
__global__ void __launch_bounds__(THREADS, MF == 1 ? 2 : 1)
    gemm(int M, int N, int K, const float* __restrict__ A, int a_unit, const float* __restrict__ B,
         int b_unit, int transposed, int part, float* out, int accumulate, const float* __restrict__ bias,
         int relu, const uint64* __restrict__ row_keys, const uint64* __restrict__ column_keys,
         uint64 threshold, float scale, unsigned char* bits, const unsigned char* keeps) {
  using T = Tile<WAY, WARPS_ACROSS, MF, NF>;
  Epilogue<float> after{};
  if (WAY != COLUMNS) after = {bias, relu, row_keys, column_keys, threshold, scale, bits, keeps};
  const Seat<T, WARPS_ACROSS> seat;
  const int row_tiles = (M + T::ROWS - 1) / T::ROWS;
  const int first = (WAY == COLUMNS ? int(blockIdx.y) / row_tiles : int(blockIdx.y)) * T::WIDTH;
  const int k_begin = WAY == COLUMNS ? int(blockIdx.x) * part : 0;
  const int k_end = WAY == COLUMNS && part < K - k_begin ? k_begin + part : K;
  float *held = block_memory(), *stages = held;
  if (WAY == HELD) stages += (K + GROUP - 1) / GROUP * GROUP * T::WIDTH * 2;
  if (WAY == COLUMNS) out += int64(blockIdx.x) * M * N;

  int tile = WAY == COLUMNS ? int(blockIdx.y) % row_tiles : int(blockIdx.x), k = k_begin;  // multiplied next
  const int step = WAY == COLUMNS ? row_tiles : int(gridDim.x);  // from tile to tile of this block
  int copied_tile = tile, copied_k = k;                          // copied next
  int slot = 0, copied_slot = 0;
  const auto copy = [&] {
    if (copied_tile < row_tiles) {
      float *a = stages + copied_slot * (T::A_SIZE + T::B_SIZE), *b = a + T::A_SIZE;
      const int row = copied_tile * T::ROWS, in_k = k_end - copied_k;
      if constexpr (WAY == COLUMNS)
        copy_panel<CHUNK, T::ROWS, T::A_PITCH>(a, A + int64(copied_k) * M + row, M, in_k, M - row, a_unit);
      else
        copy_panel<T::ROWS, CHUNK, T::A_PITCH>(a, A + int64(row) * K + copied_k, K, M - row, in_k, a_unit);
      if constexpr (WAY == TRANSPOSED)
        copy_panel<T::WIDTH, CHUNK, T::B_PITCH>(b, B + int64(first) * K + copied_k, K, N - first, in_k, b_unit);
      else if constexpr (WAY != HELD)
        copy_panel<CHUNK, T::WIDTH, T::B_PITCH>(b, B + int64(copied_k) * N + first, N, in_k, N - first, b_unit);
      copied_slot = copied_slot + 1 == STAGES ? 0 : copied_slot + 1;
      copied_k += CHUNK;
      if (copied_k >= k_end) copied_k = k_begin, copied_tile += step;
    }
    commit_copies();
  };
#pragma unroll 1
  for (int ahead = 1; ahead < STAGES; ahead++) copy();
  if constexpr (WAY == HELD) hold<T, NF>(held, B, K, N, first, transposed);

  float sums[MF * NF][4] = {};
#pragma unroll 1
  while (tile < row_tiles) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    copy();  // to where what was multiplied last has been
    const bool idle = first + seat.across >= N || tile * T::ROWS + seat.down >= M;
    const float *a = stages + slot * (T::A_SIZE + T::B_SIZE), *b = a + T::A_SIZE;
#pragma unroll 1
    for (int in = 0; in < CHUNK; in += GROUP) {
      if (idle || k + in >= k_end) continue;
      Halves<MF, 4> rows;
      read_rows<T, WAY, MF>(rows, a, in, seat.down, seat.g, seat.t);
#pragma unroll
      for (int j = 0; j < NF; j += T::BESIDE) {
        Halves<T::BESIDE, 2> columns;
        if constexpr (WAY == HELD)
          read_held<T::BESIDE>(columns,
                               held + ((k + in) / GROUP * (T::WIDTH / 8) + seat.across / 8 + j) * (8 * WARP),
                               seat.lane);
        else
          read_columns<T, WAY>(columns, b, in, seat.across + 8 * j, seat.g, seat.t);
        multiply<MF>(sums + j, NF, rows, columns);
      }
    }
    slot = slot + 1 == STAGES ? 0 : slot + 1;
    k += CHUNK;
    if (k < k_end) continue;
#pragma unroll
    for (int r = 0; r < 2 * MF; r++) {
      const int row = tile * T::ROWS + seat.down + (WAY == COLUMNS ? 2 * MF * seat.g + r : 8 * r + seat.g);
#pragma unroll
      for (int j = 0; j < NF; j += T::BESIDE) {
        Pack<float, 2 * T::BESIDE> x;
#pragma unroll
        for (int v = 0; v < 2 * T::BESIDE; v++) {
          float& sum = sums[r / 2 * NF + j + v % T::BESIDE][r % 2 * 2 + v / T::BESIDE];
          x.at[v] = sum, sum = 0.0f;
        }
        const int column = first + seat.across + 8 * j + 2 * T::BESIDE * seat.t;
        if (row < M) finish(out, N, accumulate, after, row, column, x);
      }
    }
    k = k_begin;
    tile += step;
  }
}

// out[i] = the sum of from[p size + i] over p, or += it with `accumulate`. Grid: ceil(size / WARP).
__global__ void __launch_bounds__(THREADS)
    sum_parts(int64 size, int parts, const float* __restrict__ from, int accumulate, float* __restrict__ out) {
  constexpr int WARPS = THREADS / WARP;
  __shared__ float sums[WARPS][WARP];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int64 i = int64(blockIdx.x) * WARP + lane;
  const int end = int(int64(parts) * (warp + 1) / WARPS);
  float sum = 0.0f;
  if (i < size) {
#pragma unroll 8
    for (int p = int(int64(parts) * warp / WARPS); p < end; p++) sum += __ldcs(from + p * size + i);
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp || i >= size) return;
#pragma unroll
  for (int w = 1; w < WARPS; w++) sum += sums[w][lane];
  out[i] = accumulate ? out[i] + sum : sum;
}
