// C = A B with A sparse (CSR), B and C dense and row-major.
//
// A group of G x P lanes owns one row of A (32 / (G P) rows per warp). G lanes stand side by side on V
// columns of B each, C times over, so that a row of B is fetched by a few wide loads; P such teams take
// every P-th non-zero of the row, and their sums are folded by shuffles. Wide features want G, short rows
// many rows per warp, long rows P. B wider than C G V columns: panels, by blockIdx.y.
//
// Rows far longer than the average are cut into segments, whose sums go to a workspace (spmm_segments) and
// are added up from there (spmm_combine). The order of a sum depends on the matrix and P alone: no atomics.
//
// The gathers of B are the cost: nnz f elements against nnz indices and m f results. So indices, weights and
// results are streamed past the L2 cache, and U non-zeros per team are in flight at a time.

#include "common.cuh"

// Template parameters: T type of numbers; Index of row pointers and columns; V, C, G, P, U as above.
#define SPMM_TEMPLATE template <class T, class Index, int V, int C, int G, int P, int U>

// out[row, column...] = x, or += x with `accumulate`; V columns of a row that is f wide.
template <class T, int V>
__device__ inline void finish(T* out, int f, int accumulate, int64 row, int column, Pack<T, V> x) {
  const int columns = f - column;  // fewer than V where B is padded and `out` is not
  if (columns <= 0) return;
  out += row * f + column;
  const bool wide = columns >= V && aligned<V>(out);
  Pack<T, V> before{};
  if (accumulate && wide) before = load<V>(out);
  if (accumulate && !wide)
    for (int v = 0; v < V; v++)
      if (v < columns) before.at[v] = out[v];
#pragma unroll
  for (int v = 0; v < V; v++) x.at[v] += before.at[v];
  if (wide) stream_out(out, x);
  else
    for (int v = 0; v < V; v++)
      if (v < columns) out[v] = x.at[v];
}

// What a lane reads of one row (or segment) of A: its team's entries, P apart, and of B its own columns.
template <class T, class Index> struct Entries {
  const Index* columns;
  const T* weights;
  int left;    // distance from the next entry to the end of the row
  const T* B;  // at the lane's first column
  int stride;  // bytes from row to row of B
  int width;   // columns of B from the lane's first
};

// sum += the next U entries of the row; LAST: as many of them as there are.
template <bool LAST, class T, class Index, int V, int C, int G, int P, int U>
__device__ inline void add_entries(Pack<T, V> (&sum)[C], const Entries<T, Index>& row) {
  Index j[U] = {};
  T w[U];
  Pack<T, V> b[U][C];
#pragma unroll
  for (int u = 0; u < U; u++) {
    if (LAST && u * P >= row.left) continue;
    j[u] = __ldcs(row.columns + u * P);
    w[u] = __ldcs(row.weights + u * P);
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    if (LAST && u * P >= row.left) continue;
    const T* at = advance(row.B, j[u], row.stride);
#pragma unroll
    for (int c = 0; c < C; c++)
      if (c * G * V < row.width) b[u][c] = load<V>(at + c * G * V);
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    if (LAST && u * P >= row.left) continue;
#pragma unroll
    for (int c = 0; c < C; c++) {
      if (c * G * V >= row.width) continue;
#pragma unroll
      for (int v = 0; v < V; v++) sum[c].at[v] += w[u] * b[u][c].at[v];
    }
  }
}

// The sum over a whole row, or zero for a lane that has none; after the fold in every team of the group.
SPMM_TEMPLATE __device__ inline void sum_entries(Pack<T, V> (&sum)[C], bool active, Entries<T, Index> row,
                                                 int team) {
#pragma unroll
  for (int c = 0; c < C; c++) sum[c] = {};
  if (active && row.width > 0) {
    row.columns += team;
    row.weights += team;
    row.left -= team;
#pragma unroll 1  // U says how much is in flight
    for (; row.left > (U - 1) * P; row.left -= U * P) {
      add_entries<false, T, Index, V, C, G, P, U>(sum, row);
      row.columns += U * P;
      row.weights += U * P;
    }
    if (U > 1 && row.left > 0) add_entries<true, T, Index, V, C, G, P, U>(sum, row);
  }
#pragma unroll
  for (int step = G; step < G * P; step *= 2)
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
      for (int v = 0; v < V; v++) sum[c].at[v] += __shfl_xor_sync(ALL_LANES, sum[c].at[v], step);
}

// Rows `rows[0..count)`, or 0..count without a list. Grid: ceil(count G P / THREADS) x panels.
SPMM_TEMPLATE __global__ void __launch_bounds__(THREADS)
    spmm(int count, const int* __restrict__ rows, const Index* __restrict__ indptr,
         const Index* __restrict__ indices, const T* __restrict__ weights, const T* __restrict__ B, int ldb,
         int f, T* out, int accumulate) {
  const int lane = threadIdx.x % WARP, team = lane / G % P;
  const int column = (blockIdx.y * C * G + lane % G) * V;
  const int64 task = flat_index() / (G * P);
  const bool active = task < count;
  int64 row = 0;
  Index begin = 0;
  int length = 0;
  if (active) {
    row = rows ? rows[task] : task;
    begin = indptr[row];
    length = int(indptr[row + 1] - begin);
  }
  Pack<T, V> sum[C];
  sum_entries<T, Index, V, C, G, P, U>(
      sum, active, {indices + begin, weights + begin, length, B + column, ldb * int(sizeof(T)), f - column},
      team);
  if (!active || team > 0) return;
#pragma unroll
  for (int c = 0; c < C; c++) finish(out, f, accumulate, row, column + c * G * V, sum[c]);
}

// Segments of long rows: that of entries begin[s] .. begin[s] + length[s] has its sum in workspace[s, :], ldw
// wide, f rounded up to V. Grid: ceil(count G P / THREADS) x panels.
SPMM_TEMPLATE __global__ void __launch_bounds__(THREADS)
    spmm_segments(int count, const int64* __restrict__ begin, const int* __restrict__ length,
                  const Index* __restrict__ indices, const T* __restrict__ weights, const T* __restrict__ B,
                  int ldb, int f, T* __restrict__ workspace, int ldw) {
  const int lane = threadIdx.x % WARP, team = lane / G % P;
  const int column = (blockIdx.y * C * G + lane % G) * V;
  const int64 segment = flat_index() / (G * P);
  const bool active = segment < count;
  if (active) indices += begin[segment], weights += begin[segment];
  Pack<T, V> sum[C];
  sum_entries<T, Index, V, C, G, P, U>(
      sum, active,
      {indices, weights, active ? length[segment] : 0, B + column, ldb * int(sizeof(T)), f - column}, team);
#pragma unroll
  for (int c = 0; c < C; c++)
    if (active && team == 0 && column + c * G * V < f)
      store(workspace + segment * ldw + column + c * G * V, sum[c]);
}

// Long row rows[blockIdx.x] = the sum of its segments first[blockIdx.x] .. first[blockIdx.x + 1]. TEAMS teams
// of G lanes take every TEAMS-th segment, so many whatever G is, for the same order of summation; other
// threads have nothing to do. Grid: long rows x panels of G V columns.
template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS)
    spmm_combine(const int* __restrict__ rows, const int* __restrict__ first, const T* __restrict__ workspace,
                 int ldw, int f, T* out, int accumulate) {
  constexpr int TEAMS = THREADS / WARP;
  __shared__ Pack<T, V> sums[THREADS];
  const int team = threadIdx.x / G;
  const int column = (blockIdx.y * G + threadIdx.x % G) * V;
  Pack<T, V> sum{};
  if (column < f && team < TEAMS)
    for (int s = first[blockIdx.x] + team; s < first[blockIdx.x + 1]; s += TEAMS) {
      const Pack<T, V> part = load<V>(workspace + int64(s) * ldw + column);
#pragma unroll
      for (int v = 0; v < V; v++) sum.at[v] += part.at[v];
    }
  sums[threadIdx.x] = sum;
  for (int half = TEAMS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (team >= half) continue;
#pragma unroll
    for (int v = 0; v < V; v++) sum.at[v] += sums[threadIdx.x + half * G].at[v];
    sums[threadIdx.x] = sum;
  }
  if (team == 0) finish(out, f, accumulate, rows[blockIdx.x], column, sum);
}
