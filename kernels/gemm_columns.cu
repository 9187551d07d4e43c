// Dense products C = Aᵀ B of float32 on the tensor cores of sm_90a, summed over the many rows of A and B.
//
// The rows are cut in parts, a block each, which go over them in chunks of 32. A chunk of B is split and laid
// as tensor cores read it while the chunk before is multiplied; A goes from shared memory to registers. Two
// teams have 64 rows of C each. Then the parts are added up, in their order.

#include "common.cuh"
#include "tensor.cuh"
#include "gemm.cuh"

constexpr int FEATURES = 2 * ROWS;  // columns of A in a tile
// Numbers of a row of so many in shared memory, lest two threads read different rows of one bank.
template <class X, int COLUMNS> constexpr int PITCH = COLUMNS + 16 / int(sizeof(X));

// A chunk of B, split, as multiply_tf32 reads it: for 8 rows what is high, then what is low.
template <int F, int PARTS, class X> __device__ inline void lay(float* to, const X* B) {
#pragma unroll
  for (int i = threadIdx.x; i < CHUNK / 4 * F * 8; i += THREADS) {  // 4 rows of a column
    const int column = i % (8 * F), half = i / (8 * F) % 2, step = i / (16 * F);
    Pack<float, 4> high, low;
#pragma unroll
    for (int v = 0; v < 4; v++)
      split_in<PARTS>(number(B[(8 * step + 2 * v + half) * PITCH<X, 8 * F> + column]), high.at[v], low.at[v]);
    float* place = to + (PARTS * step * F + column / 8) * 64 + half * 32 + column % 8 * 4;
    store(place, high);
    if constexpr (PARTS == 2) store(place + F * 64, low);
  }
}

// A's fragments of 16 rows from `at` on, of two neighbouring columns.
template <int PARTS, class X> __device__ inline void read_columns(Halves& a, const X* at, int column, int t) {
#pragma unroll
  for (int s = 0; s < 2; s++)
#pragma unroll
    for (int b = 0; b < 2; b++) {
      float high[2], low[2];
      split_two<PARTS>(at + (8 * s + 2 * t + b) * PITCH<X, FEATURES> + column, high, low);
#pragma unroll
      for (int h = 0; h < 2; h++) a.high[s][h + 2 * b] = high[h], a.low[s][h + 2 * b] = low[h];
    }
}

// A (K, M), B (K, N); out: a matrix (M, N) for each part of `part` rows, a multiple of CHUNK. Grid: parts x
// tiles of FEATURES by 8 F. a_unit, b_unit: see copy_panel. X, Y: float, or the type of 16 bits of A and B, whose
// rows are a_stride and b_stride numbers, multiples of 8 (of 4 up to there), with zeros behind M and N.
template <int F, int STAGES, int A_PARTS, int B_PARTS, class X, class Y>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_columns(int M, int N, int K, const X* __restrict__ A, int a_stride, int a_unit, const Y* __restrict__ B,
                 int b_stride, int b_unit, int part, float* __restrict__ out) {
  constexpr int A_PITCH = PITCH<X, FEATURES>, B_PITCH = PITCH<Y, 8 * F>, HELD = CHUNK * 8 * B_PARTS * F;
  constexpr int OF_A = CHUNK * A_PITCH * int(sizeof(X)) / 4, STAGE = OF_A + CHUNK * B_PITCH * int(sizeof(Y)) / 4;
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
      const int row = copied * CHUNK, left = count - row, a = row_of<X>(M, a_stride), b = row_of<Y>(N, b_stride);
      copy_numbers<THREADS, CHUNK, FEATURES, A_PITCH>(reinterpret_cast<X*>(to), A + int64(begins + row) * a + top, a,
                                                      left, a - top, a_unit);
      copy_numbers<THREADS, CHUNK, 8 * F, B_PITCH>(reinterpret_cast<Y*>(to + OF_A), B + int64(begins + row) * b + first,
                                                   b, left, b - first, b_unit);
    }
    copied++;
    commit_copies();
  };
#pragma unroll 1
  for (int ahead = 1; ahead < STAGES; ahead++) copy();
  wait_for_copies<STAGES - 3>();  // two chunks are there
  __syncthreads();
  lay<F, B_PARTS>(held, reinterpret_cast<const Y*>(stages + OF_A));
  show_tensor_cores();
  __syncthreads();

  float sums[F][4] = {};
  Halves a[2];
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; chunk++) {
    const X* at = reinterpret_cast<const X*>(stages + chunk % STAGES * STAGE);
    const auto prepare = [&] {
      copy();  // to where the chunk before this one was
      if (chunk + 1 < chunks)
        lay<F, B_PARTS>(held + (chunk + 1) % 2 * HELD,
                        reinterpret_cast<const Y*>(stages + (chunk + 1) % STAGES * STAGE + OF_A));
    };
    if (busy) {
#pragma unroll
      for (int i = 0; i < 2; i++) read_columns<A_PARTS>(a[i], at + i * GROUP * A_PITCH, column, t);
      multiply<F, A_PARTS, B_PARTS>(sums, a, held + chunk % 2 * HELD, prepare);
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
