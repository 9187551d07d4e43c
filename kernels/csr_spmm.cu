// C = A B with A sparse (CSR), B and C dense and row-major.
//
// A warp is cut into groups of G x P lanes, and a group owns one row of A (32 / (G P) rows per warp). Within a group, G
// lanes stand side by side on V neighbouring columns of B each, C times over, so that a row of B is fetched by a few
// wide loads; P such teams take every P-th non-zero of the row, and their sums are folded by shuffles. Wide features
// want G, short rows want many rows per warp, long rows want P. B wider than C G V columns: panels, by blockIdx.y.
//
// Rows far longer than the average would keep one group busy after all others are done. They are left out of the row
// list and cut into segments, whose sums go to a workspace (spmm_segments) and are added up from there (spmm_combine).
// Every sum is made in an order that depends on the matrix and on P alone: no atomics, and the same bits in every run.
//
// The gathers of B are the cost: nnz f elements against nnz indices and m f results. So indices, weights and results
// are streamed past the L2 cache, which is left to B, and U non-zeros per team are in flight at a time.

#include "common.cuh"

// What an entry of A weighs. Where weights follow from the degrees, row and column scaling replace the array of values.
constexpr int UNIT = 0, PER_ENTRY = 1, PER_COLUMN = 2;

// Template parameters: T element of B; Index of columns; W kind of weights; V, C, G, P, U as above.
#define SPMM_TEMPLATE template <class T, class Index, int W, int V, int C, int G, int P, int U>

// What happens to a finished sum x, in this order; null pointers and zeros leave steps out.
template <class S> struct Epilogue {
  int f;  // columns of `out`, and its leading dimension
  S* out;
  const S* row_scale;         // x *= row_scale[row]
  int accumulate;             // x += out[row, column]
  const S* bias;              // x += bias[column]
  int relu;                   // x = max(x, 0)
  const unsigned char* keep;  // x *= keep_scale where the entry's bit is set, else 0: the backward of ReLU and dropout
  S keep_scale;
  unsigned char* positive;  // the entry's bit = x > 0, for the backward pass; f must be a multiple of 8
};

// V columns of one row. All lanes of the warp come here, idle ones with `active` false: lanes that share a byte of
// `positive` put it together by shuffles.
template <class S, int V>
__device__ inline void finish(const Epilogue<S>& e, bool active, int64 row, int column, Pack<S, V> x) {
  unsigned byte = 0;
  active = active && column < e.f;
  if (active) {
    const int64 entry = row * e.f + column;
    S* out = e.out + entry;
    const int columns = e.f - column;  // fewer than V where B is padded and `out` is not
    const bool wide = columns >= V && aligned<V>(out);
    Pack<S, V> before{};
    if (e.accumulate && wide) before = load<V>(out);
    if (e.accumulate && !wide)
      for (int v = 0; v < V; v++)
        if (v < columns) before.at[v] = out[v];
    const S scale = e.row_scale ? e.row_scale[row] : S(1);
#pragma unroll
    for (int v = 0; v < V; v++) {
      if (v >= columns) continue;
      S y = x.at[v] * scale + before.at[v];
      if (e.bias) y += e.bias[column + v];
      if (e.relu) y = y < S(0) ? S(0) : y;  // NaN stays NaN, as in numpy.maximum
      if (e.keep) y *= bit(e.keep, entry + v) ? e.keep_scale : S(0);
      byte |= unsigned(y > S(0)) << (7 - (column + v) % 8);
      x.at[v] = y;
    }
    if (wide) stream_out(out, x);
    else
      for (int v = 0; v < V; v++)
        if (v < columns) out[v] = x.at[v];
  }
  if (e.positive) {
#pragma unroll
    for (int step = 1; step < 8 / V; step *= 2) byte |= __shfl_xor_sync(ALL_LANES, byte, step);
    if (active && column % 8 == 0) e.positive[(row * e.f + column) / 8] = (unsigned char)byte;
  }
}

// What a lane reads of one row (or segment) of A: its team's entries, P apart, and of B its own columns.
template <class T, class Index, int W> struct Entries {
  const Index* columns;
  const Sum<T>* weights;  // of the entries (PER_ENTRY) or of all columns (PER_COLUMN)
  int left;               // distance from the next entry to the end of the row
  const T* B;             // at the lane's first column
  int stride;             // bytes from row to row of B
  int width;              // columns of B from the lane's first
};

// sum += the next U entries of the row; LAST: as many of them as there are.
template <bool LAST, class T, class Index, int W, int V, int C, int G, int P, int U>
__device__ inline void add_entries(Pack<Sum<T>, V> (&sum)[C], const Entries<T, Index, W>& row) {
  Index j[U] = {};
  Sum<T> w[U];
  Pack<T, V> b[U][C];
#pragma unroll
  for (int u = 0; u < U; u++) {
    w[u] = Sum<T>(1);
    if (LAST && u * P >= row.left) continue;
    j[u] = __ldcs(row.columns + u * P);
    if (W == PER_ENTRY) w[u] = __ldcs(row.weights + u * P);
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    if (LAST && u * P >= row.left) continue;
    if (W == PER_COLUMN) w[u] = row.weights[j[u]];
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
      for (int v = 0; v < V; v++) sum[c].at[v] += w[u] * widen(b[u][c].at[v]);
    }
  }
}

// The sum over a whole row, or zero for a lane that has none; after the fold in every team of the group.
SPMM_TEMPLATE __device__ inline void sum_entries(Pack<Sum<T>, V> (&sum)[C], bool active, Entries<T, Index, W> row,
                                                 int team) {
#pragma unroll
  for (int c = 0; c < C; c++) sum[c] = {};
  if (active && row.width > 0) {
    row.columns += team;
    if (W == PER_ENTRY) row.weights += team;
    row.left -= team;
#pragma unroll 1  // U says how much is in flight
    for (; row.left > (U - 1) * P; row.left -= U * P) {
      add_entries<false, T, Index, W, V, C, G, P, U>(sum, row);
      row.columns += U * P;
      if (W == PER_ENTRY) row.weights += U * P;
    }
    if (U > 1 && row.left > 0) add_entries<true, T, Index, W, V, C, G, P, U>(sum, row);
  }
#pragma unroll
  for (int step = G; step < G * P; step *= 2)
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
      for (int v = 0; v < V; v++) sum[c].at[v] += __shfl_xor_sync(ALL_LANES, sum[c].at[v], step);
}

// Rows `rows[0..count)`, or 0..count without a list. Grid: ceil(count G P / THREADS) x panels of C G V columns.
template <class T, class Offset, class Index, int W, int V, int C, int G, int P, int U>
__global__ void __launch_bounds__(THREADS)
    spmm(int count, const int* __restrict__ rows, const Offset* __restrict__ indptr, const Index* __restrict__ indices,
         const Sum<T>* __restrict__ weights, const T* __restrict__ B, int ldb, int f, Sum<T>* out, int accumulate,
         const Sum<T>* __restrict__ row_scale, const Sum<T>* __restrict__ bias, int relu,
         const unsigned char* __restrict__ keep, Sum<T> keep_scale, unsigned char* __restrict__ positive) {
  const int lane = threadIdx.x % WARP, team = lane / G % P;
  const int column = (blockIdx.y * C * G + lane % G) * V;
  const int64 task = flat_index() / (G * P);
  const bool active = task < count;
  int64 row = 0;
  Offset begin = 0;
  int length = 0;
  if (active) {
    row = rows ? rows[task] : task;
    begin = indptr[row];
    length = int(indptr[row + 1] - begin);
  }
  if (W == PER_ENTRY) weights += begin;
  Pack<Sum<T>, V> sum[C];
  sum_entries<T, Index, W, V, C, G, P, U>(
      sum, active, {indices + begin, weights, length, B + column, ldb * int(sizeof(T)), f - column}, team);
  const Epilogue<Sum<T>> epilogue{f, out, row_scale, accumulate, bias, relu, keep, keep_scale, positive};
#pragma unroll
  for (int c = 0; c < C; c++) finish(epilogue, active && team == 0, row, column + c * G * V, sum[c]);
}

// Segments of long rows: segment s is entries begin[s] .. begin[s] + length[s]; its sum goes to workspace[s, :].
// The workspace is ldw wide, f rounded up to V. Grid: ceil(count G P / THREADS) x panels.
SPMM_TEMPLATE __global__ void __launch_bounds__(THREADS)
    spmm_segments(int count, const int64* __restrict__ begin, const int* __restrict__ length,
                  const Index* __restrict__ indices, const Sum<T>* __restrict__ weights, const T* __restrict__ B,
                  int ldb, int f, Sum<T>* __restrict__ workspace, int ldw) {
  const int lane = threadIdx.x % WARP, team = lane / G % P;
  const int column = (blockIdx.y * C * G + lane % G) * V;
  const int64 segment = flat_index() / (G * P);
  const bool active = segment < count;
  if (active) indices += begin[segment];
  if (active && W == PER_ENTRY) weights += begin[segment];
  Pack<Sum<T>, V> sum[C];
  sum_entries<T, Index, W, V, C, G, P, U>(
      sum, active, {indices, weights, active ? length[segment] : 0, B + column, ldb * int(sizeof(T)), f - column},
      team);
#pragma unroll
  for (int c = 0; c < C; c++)
    if (active && team == 0 && column + c * G * V < f) store(workspace + segment * ldw + column + c * G * V, sum[c]);
}

// Long row rows[blockIdx.x] = the sum of its segments first[blockIdx.x] .. first[blockIdx.x + 1]. G lanes stand on V
// columns each, and TEAMS teams of them take every TEAMS-th segment: so many whatever G is, for the same order of
// summation. Threads beyond have nothing to do. Grid: long rows x panels of G V columns.
template <class S, int V, int G>
__global__ void __launch_bounds__(THREADS)
    spmm_combine(const int* __restrict__ rows, const int* __restrict__ first, const S* __restrict__ workspace, int ldw,
                 int f, S* out, int accumulate, const S* __restrict__ row_scale, const S* __restrict__ bias, int relu,
                 const unsigned char* __restrict__ keep, S keep_scale, unsigned char* __restrict__ positive) {
  constexpr int TEAMS = THREADS / WARP;
  __shared__ Pack<S, V> sums[THREADS];
  const int team = threadIdx.x / G;
  const int column = (blockIdx.y * G + threadIdx.x % G) * V;
  Pack<S, V> sum{};
  if (column < f && team < TEAMS)
    for (int s = first[blockIdx.x] + team; s < first[blockIdx.x + 1]; s += TEAMS) {
      const Pack<S, V> part = load<V>(workspace + int64(s) * ldw + column);
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
  const Epilogue<S> epilogue{f, out, row_scale, accumulate, bias, relu, keep, keep_scale, positive};
  finish(epilogue, team == 0, rows[blockIdx.x], column, sum);
}
