// Products of a matrix with a vector for each of its heads, as attention has them, and their adjoints. X is m x f, its
// columns `first` .. `first` + f of all; head h has the columns h w .. (h + 1) w. Of heads there are those from `head`
// on, `heads` of them. The order of a sum depends on shapes alone.

#include "common.cuh"

constexpr int IN_FLIGHT = 8, TURN = 4;  // rows of a thread; of sums, that have two or three numbers of each

// n / d, in 32 bits where that is enough.
__device__ inline int64 quotient(int64 n, int d) { return n >> 32 ? n / d : int64(unsigned(n) / unsigned(d)); }

// U[i, h] = the sum of X[i, c] a[c] over the columns of head h that are there, or adds it; and V of b, unless V is
// null. G lanes make a number; G is a power of two, at most WARP.
template <class T>
__global__ void __launch_bounds__(THREADS)
    head_sums(int64 m, int f, int first, int w, int head, int heads, int G, const T* __restrict__ X,
              const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ U, T* __restrict__ V, int add) {
  if (flat_index() / WARP * WARP >= m * heads * G) return;  // whole warps leave
  const int64 number = quotient(flat_index(), G), row = quotient(number, heads);
  const bool there = row < m;
  const int lane = threadIdx.x % G, own = head + int(number - row * heads);
  const int begin = own * w > first ? own * w - first : 0, end = own * w + w < first + f ? own * w + w - first : f;
  T u = 0, v = 0;
  if (there)
    for (int c = begin + lane; c < end; c += G) {
      const T x = X[row * f + c];
      u += x * a[c];
      if (V) v += x * b[c];
    }
  for (int step = G / 2; step > 0; step /= 2) {
    u += __shfl_xor_sync(ALL_LANES, u, step);
    v += __shfl_xor_sync(ALL_LANES, v, step);
  }
  if (!there || lane) return;
  U[number] = add ? U[number] + u : u;
  if (V) V[number] = add ? V[number] + v : v;
}

// X[i, c] += dU[i, h] a[c] + dV[i, h] b[c], h the head of column c, of heads that are there; b may be null. Grid: rows
// x panels of G columns; threads of a block stand in rows of G, a power of two.
template <class T>
__global__ void __launch_bounds__(THREADS)
    add_heads(int64 m, int f, int first, int w, int head, int heads, int G, const T* __restrict__ dU,
              const T* __restrict__ dV, const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ X) {
  const int column = blockIdx.y * G + threadIdx.x % G, rows = THREADS / G;
  const int own = (first + column) / w - head;
  if (column >= f || own < 0 || own >= heads) return;
  const T left = a[column], right = b ? b[column] : T(0);
  const int64 begin = int64(blockIdx.x) * rows * IN_FLIGHT + threadIdx.x / G;
  T x[IN_FLIGHT];
#pragma unroll
  for (int k = 0; k < IN_FLIGHT; k++) {
    const int64 row = begin + k * rows;
    if (row >= m) break;
    x[k] = X[row * f + column] + dU[row * heads + own] * left;
    if (b) x[k] += dV[row * heads + own] * right;
  }
#pragma unroll
  for (int k = 0; k < IN_FLIGHT; k++)
    if (begin + k * rows < m) X[(begin + k * rows) * f + column] = x[k];
}

// sums[p, c] = the sum of X[i, c] D[i, h] over the rows of part p, in double precision; h the head of column c, of
// heads that are there, else 0. sums[p, f + c] likewise of E, unless E is null. With `scale`, numbers D[i, c], of as
// many heads as columns, become D[i, c] scale[c] in `scaled`, which is D then, else null. Grid: parts of `height` rows
// x panels of G columns, as of add_heads.
template <class T, class Total>
__global__ void __launch_bounds__(THREADS)
    head_dots(int64 m, int f, int first, int w, int head, int heads, int G, int64 height, const T* __restrict__ X,
              const T* D, const T* __restrict__ E, const T* __restrict__ scale, T* scaled, Total* __restrict__ sums) {
  __shared__ double parts[2][THREADS];
  const int thread = threadIdx.x, column = blockIdx.y * G + thread % G, rows = THREADS / G;
  const int own = (first + column) / w - head;
  const bool there = column < f && own >= 0 && own < heads;
  const int64 begin = blockIdx.x * height, end = begin + height < m ? begin + height : m;
  const T factor = there && scale ? scale[column] : T(1);
  double sum = 0, other = 0;
  if (there)
#pragma unroll 1
    for (int64 row = begin + thread / G; row < end; row += TURN * rows) {
      T x[TURN], d[TURN], e[TURN];
#pragma unroll
      for (int k = 0; k < TURN; k++) {
        const int64 at = row + k * rows;
        x[k] = at < end ? X[at * f + column] : T(0);
        d[k] = at < end ? D[at * heads + own] : T(0);
        e[k] = E && at < end ? E[at * heads + own] : T(0);
      }
#pragma unroll
      for (int k = 0; k < TURN; k++) {
        sum += double(x[k]) * double(d[k]);
        other += double(x[k]) * double(e[k]);
        if (scaled && row + k * rows < end) scaled[(row + k * rows) * heads + own] = d[k] * factor;
      }
    }
  parts[0][thread] = sum, parts[1][thread] = other;
  for (int half = THREADS / 2; half >= G; half /= 2) {
    __syncthreads();
    if (thread < half)
      for (auto& part : parts) part[thread] += part[thread + half];
  }
  if (thread >= G || column >= f) return;
  Total* const out = sums + int64(blockIdx.x) * (E ? 2 : 1) * f + column;
  out[0] = Total(parts[0][thread]);
  if (E) out[f] = Total(parts[1][thread]);
}
