// Dense products C = A B of float32 on the tensor cores of sm_90a, with the error of float32 or that of TF32,
// where A is tall. C is float32, or rounded to 16 bits where nothing but a sparse product reads it.
//
// B is split once and held in shared memory. Two groups of four warps go over tiles of 64 rows of A, each for
// itself, so that one may store while the other multiplies; a warp has 16 rows with all columns. A comes by
// asynchronous copies of 32 of k, STAGES - 1 ahead, also beyond the end of a tile, and goes from shared
// memory to registers, where it is split while tensor cores multiply what was split before.
//
// Which column is which for a tensor core is chosen so that a thread has neighbours of C (column_of).

#include "common.cuh"
#include "tensor.cuh"
#include "gemm.cuh"

constexpr int PITCH = CHUNK + 8;  // of a chunk, lest two threads read different rows of one bank

// Fragments of 8 columns whose columns are neighbours in C.
template <int F> constexpr int BESIDE = F % 4 ? 2 : 4;

// The column that fragment j has as its column g.
template <int F> __device__ inline int column_of(int j, int g) {
  constexpr int B = BESIDE<F>;
  return j / B * (8 * B) + B * g + j % B;
}

// B from column `first` on, split, as multiply_tf32 reads it: for 8 of k what is high, then what is low.
template <int F, int PARTS>
__device__ inline void hold(float* to, const float* __restrict__ B, int K, int N, int first, int transposed) {
  const int count = (K + CHUNK - 1) / CHUNK * (CHUNK / 4) * F * 8;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += THREADS) {  // 4 of k of a column
    const int g = i % 8, half = i / 8 % 2, j = i / 16 % F, step = i / 16 / F, column = first + column_of<F>(j, g);
    Pack<float, 4> high, low;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const int k = 8 * step + 2 * v + half;
      const int64 at = transposed ? int64(column) * K + k : int64(k) * N + column;
      split_in<PARTS>(k < K && column < N ? B[at] : 0.0f, high.at[v], low.at[v]);
    }
    float* place = to + (PARTS * step * F + j) * 64 + half * 32 + g * 4;
    store(place, high);
    if constexpr (PARTS == 2) store(place + F * 64, low);
  }
}

template <int PARTS, class X> __device__ inline void read_rows(Halves& a, const X* at, int row, int t) {
#pragma unroll
  for (int s = 0; s < 2; s++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float high[2], low[2];
      split_two<PARTS>(at + (row + 8 * h) * PITCH + 8 * s + 2 * t, high, low);
#pragma unroll
      for (int b = 0; b < 2; b++) a.high[s][h + 2 * b] = high[b], a.low[s][h + 2 * b] = low[b];
    }
  if constexpr (PARTS == 1) hold_registers(a.high);  // lest they be made where tensor cores multiply
}

// out[row, column...] = x, or += x with `accumulate`, and what becomes of it; V columns, of f. bits: f is a
// multiple of 8. Of an X of 16 bits it is rounded, and zeros stand behind the row, up to `pitch`, a multiple of
// 8, or of 4 where f is at most 4; it stays in the L2 cache, where it is read next.
template <int V, class X>
__device__ inline void finish(X* out, int f, int pitch, int accumulate, const Epilogue<float>& after, int* beyond,
                              int row, int column, Pack<float, V> x) {
  constexpr bool WHOLE = sizeof(X) == sizeof(float);
  if (column >= (WHOLE ? f : pitch)) return;
  const int64 at = int64(row) * f + column;
  const int columns = f - column < V ? f - column : V;
  [[maybe_unused]] const bool whole = WHOLE && columns == V && aligned<4>(reinterpret_cast<float*>(out) + at);
  if constexpr (WHOLE)
    if (accumulate)
#pragma unroll
      for (int v = 0; v < V; v++)
        if (v < columns) x.at[v] += out[at + v];
  if (after.keeps && (WHOLE || columns > 0)) {
    const unsigned keep = bits_at(after.keeps, at, columns);
#pragma unroll
    for (int v = 0; v < V; v++) x.at[v] *= keep >> (31 - v) & 1 ? after.scale : 0.0f;
  }
  after.apply(x, row, column, columns);
  if constexpr (WHOLE) {
    if (whole)
      stream_out(out + at, x);
    else
#pragma unroll
      for (int v = 0; v < V; v++)
        if (v < columns) out[at + v] = x.at[v];
  } else {
    Pack<unsigned short, V> bits;
#pragma unroll
    for (int v = 0; v < V; v++) bits.at[v] = v < columns ? narrowed<X>(x.at[v], beyond) : 0;
    store(reinterpret_cast<unsigned short*>(out) + int64(row) * pitch + column, bits);
  }
  if (!after.bits) return;
  unsigned positive = 0;
#pragma unroll
  for (int v = 0; v < V; v++) positive = positive << 1 | unsigned(x.at[v] > 0.0f);
  if constexpr (V == 4) {  // the lane beside has the other half of a byte
    const unsigned first = threadIdx.x % WARP / 2 * 2;
    positive = positive << 4 | __shfl_xor_sync(3u << first, positive, 1);
  }
  if (at % 8 == 0) after.bits[at >> 3] = static_cast<unsigned char>(positive);
}

// A (M, K), B (K, N), C (M, N) in `out`, or added to it. unit: see copy_panel. transposed: B lies column by
// column. Grid: so many blocks as there may be for row tiles, x tiles of 8 F columns. The last parameters are
// what becomes of C. X: float, or the type of 16 bits to which C is rounded in rows of `pitch` numbers; beyond:
// raised to the bits of the largest that does not fit. Y: float, or the type of 16 bits of A, whose rows are
// `stride` numbers, a multiple of 8, with zeros behind K.
template <int F, int STAGES, int A_PARTS, int B_PARTS, class X, class Y>
__global__ void __launch_bounds__(THREADS, F <= 8 ? 2 : 1)
    gemm(int M, int N, int K, const Y* __restrict__ A, int stride, int unit, const float* __restrict__ B, int transposed,
         X* out, int pitch, int accumulate, int* beyond, const float* __restrict__ bias, int relu,
         const uint64* __restrict__ row_keys, const uint64* __restrict__ column_keys, uint64 threshold, float scale,
         unsigned char* bits, const unsigned char* keeps) {
  constexpr int HELD = CHUNK * (8 * B_PARTS * F);  // of a chunk of B
  const Epilogue<float> after{bias, relu, row_keys, column_keys, threshold, scale, bits, keeps};
  const int chunks = (K + CHUNK - 1) / CHUNK, tiles = (M + ROWS - 1) / ROWS, first = int(blockIdx.y) * (8 * F);
  const int team = int(threadIdx.x) / TEAM, lane = int(threadIdx.x) % WARP, t = lane % 4;
  const int row = int(threadIdx.x) % TEAM / WARP * 16 + lane / 4;
  float* held = block_memory();
  Y* stages = reinterpret_cast<Y*>(held + chunks * HELD) + team * (STAGES * ROWS * PITCH);
  int copied_tile = int(blockIdx.x) * TEAMS + team, copied_chunk = 0, copied_slot = 0;  // what is copied next
  const auto copy = [&] {
    if (copied_tile < tiles) {
      const int top = copied_tile * ROWS, k = copied_chunk * CHUNK, length = row_of<Y>(K, stride);
      copy_numbers<TEAM, ROWS, CHUNK, PITCH>(stages + copied_slot * (ROWS * PITCH), A + int64(top) * length + k, length,
                                             M - top, length - k, unit);
      copied_slot = copied_slot + 1 == STAGES ? 0 : copied_slot + 1;
      if (++copied_chunk == chunks) copied_chunk = 0, copied_tile += int(gridDim.x) * TEAMS;
    }
    commit_copies();
  };
#pragma unroll 1
  for (int ahead = 1; ahead < STAGES; ahead++) copy();
  hold<F, B_PARTS>(held, B, K, N, first, transposed);
  show_tensor_cores();
  __syncthreads();

  int tile = int(blockIdx.x) * TEAMS + team, chunk = 0, slot = 0;  // what is multiplied next
  const Y* at = stages;
  const auto next_chunk = [&] {  // all have read what was there before
    wait_for_copies<STAGES - 2>();
    wait_for_team<TEAM>(team);
    copy();
    at = stages + slot * (ROWS * PITCH);
    slot = slot + 1 == STAGES ? 0 : slot + 1;
  };
  float sums[F][4] = {};
  Halves a[2], next[2];
  next_chunk();
#pragma unroll
  for (int i = 0; i < 2; i++) read_rows<A_PARTS>(next[i], at + i * GROUP, row, t);
#pragma unroll 1
  while (tile < tiles) {
#pragma unroll
    for (int i = 0; i < 2; i++) a[i] = next[i];
    multiply<F, A_PARTS, B_PARTS>(sums, a, held + chunk * HELD, [&] {
      next_chunk();
#pragma unroll
      for (int i = 0; i < 2; i++) read_rows<A_PARTS>(next[i], at + i * GROUP, row, t);  // beyond the end: of no use
    });
    if (++chunk < chunks) continue;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < F; j += BESIDE<F>) {
        constexpr int V = 2 * BESIDE<F>;
        Pack<float, V> x;
#pragma unroll
        for (int v = 0; v < V; v++) {
          float& sum = sums[j + v % BESIDE<F>][2 * h + v / BESIDE<F>];
          x.at[v] = sum, sum = 0.0f;
        }
        const int r = tile * ROWS + row + 8 * h;
        if (r < M) finish(out, N, pitch, accumulate, after, beyond, r, first + 8 * j + V * t, x);
      }
    chunk = 0;
    tile += int(gridDim.x) * TEAMS;
  }
}
