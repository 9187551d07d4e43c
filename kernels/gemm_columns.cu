// Dense products C = Aᵀ B of float32 on the tensor cores of sm_90a, summed over the many rows of A and B.
//
// The rows are cut in parts, a block each, which go over them in chunks of 32. A chunk of B is split and laid
// as tensor cores read it while the chunk before is multiplied; A goes from shared memory to registers. Two
// teams have 64 rows of C each. Then the parts are added up, in their order.

#include "common.cuh"
#include "tensor.cuh"
#include "gemm.cuh"

constexpr int FEATURES = 2 * ROWS;  // columns of A in a tile
constexpr int A_PITCH = FEATURES + 4;  // lest two threads read different rows of one bank

// A chunk of B, split, as multiply_tf32 reads it: for 8 rows what is high, then what is low.
template <int F, int PRODUCTS> __device__ inline void lay(float* to, const float* B) {
#pragma unroll
  for (int i = threadIdx.x; i < CHUNK / 4 * F * 8; i += THREADS) {  // 4 rows of a column
    const int column = i % (8 * F), half = i / (8 * F) % 2, step = i / (16 * F);
    Pack<float, 4> high, low;
#pragma unroll
    for (int v = 0; v < 4; v++)
      split_for<PRODUCTS>(B[(8 * step + 2 * v + half) * (8 * F + 4) + column], high.at[v], low.at[v]);
    float* place = to + (PARTS<PRODUCTS> * step * F + column / 8) * 64 + half * 32 + column % 8 * 4;
    store(place, high);
    if constexpr (PRODUCTS > 1) store(place + F * 64, low);
  }
}

// A's fragments of 16 rows from `at` on, of two neighbouring columns.
template <int PRODUCTS> __device__ inline void read_columns(Halves& a, const float* at, int column, int t) {
#pragma unroll
  for (int s = 0; s < 2; s++)
#pragma unroll
    for (int b = 0; b < 2; b++) {
      const auto x = load<2>(at + (8 * s + 2 * t + b) * A_PITCH + column);
#pragma unroll
      for (int h = 0; h < 2; h++) split_for<PRODUCTS>(x.at[h], a.high[s][h + 2 * b], a.low[s][h + 2 * b]);
    }
}

// A (K, M), B (K, N); out: a matrix (M, N) for each part of `part` rows, a multiple of CHUNK. Grid: parts x
// tiles of FEATURES by 8 F. a_unit, b_unit: see copy_panel. PRODUCTS: of TF32 for each.
template <int F, int STAGES, int PRODUCTS>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_columns(int M, int N, int K, const float* __restrict__ A, int a_unit, const float* __restrict__ B,
                 int b_unit, int part, float* __restrict__ out) {
  constexpr int B_PITCH = 8 * F + 4, STAGE = CHUNK * (A_PITCH + B_PITCH), HELD = CHUNK * 8 * PARTS<PRODUCTS> * F;
  const int row_tiles = (M + FEATURES - 1) / FEATURES, top = int(blockIdx.y) % row_tiles * FEATURES;
  const int first = int(blockIdx.y) / row_tiles * (8 * F), begins = int(blockIdx.x) * part;
  const int count = K - begins < part ? K - begins : part, chunks = (count + CHUNK - 1) / CHUNK;
  const int team = int(threadIdx.x) / TEAM, lane = int(threadIdx.x) % WARP, t = lane % 4;
  const int column = int(threadIdx.x) / WARP * 16 + lane / 4 * 2;
  const bool busy = top + team * ROWS < M;
  float *held = block_memory(), *stages = held + 2 * HELD;
  int copied = 0;  // chunks whose copy has begun
  const auto copy = [&] {
    if (copied < chunks) {
      float* to = stages + copied % STAGES * STAGE;
      const int row = copied * CHUNK, left = count - row;
      copy_panel<THREADS, CHUNK, FEATURES, A_PITCH>(to, A + int64(begins + row) * M + top, M, left, M - top, a_unit);
      copy_panel<THREADS, CHUNK, 8 * F, B_PITCH>(to + CHUNK * A_PITCH, B + int64(begins + row) * N + first, N, left,
                                                 N - first, b_unit);
    }
    copied++;
    commit_copies();
  };
#pragma unroll 1
  for (int ahead = 1; ahead < STAGES; ahead++) copy();
  wait_for_copies<STAGES - 3>();  // two chunks are there
  __syncthreads();
  lay<F, PRODUCTS>(held, stages + CHUNK * A_PITCH);
  show_tensor_cores();
  __syncthreads();

  float sums[F][4] = {};
  Halves a[2];
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; chunk++) {
    const float* at = stages + chunk % STAGES * STAGE;
    const auto prepare = [&] {
      copy();  // to where the chunk before this one was
      if (chunk + 1 < chunks)
        lay<F, PRODUCTS>(held + (chunk + 1) % 2 * HELD, stages + (chunk + 1) % STAGES * STAGE + CHUNK * A_PITCH);
    };
    if (busy) {
#pragma unroll
      for (int i = 0; i < 2; i++) read_columns<PRODUCTS>(a[i], at + i * GROUP * A_PITCH, column, t);
      multiply<F, PRODUCTS>(sums, a, held + chunk % 2 * HELD, prepare);
    } else {
      prepare();
    }
    show_tensor_cores();
    wait_for_copies<STAGES - 3>();
    __syncthreads();
  }
  out += int64(blockIdx.x) * M * N;
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int j = 0; j < F; j++)
#pragma unroll
      for (int v = 0; v < 2; v++) {
        const int row = top + column + h, to = first + 8 * j + 2 * t + v;
        if (row < M && to < N) out[int64(row) * N + to] = sums[j][2 * h + v];
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
