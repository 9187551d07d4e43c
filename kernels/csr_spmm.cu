// C = A B with A sparse (CSR), B and C dense and row-major.
//
// A group of G x P lanes sums a row of A, or K rows one after the other (32 / (G P) groups per warp). G lanes
// stand side by side on V columns of B each, C times over, so that a row of B is fetched by a few wide loads;
// P such teams take every P-th non-zero of the row, and their sums are folded by shuffles. Wide features want
// G, long rows P, short ones K. B wider than C G V columns: panels, by blockIdx.y. As GPUs start blocks, one
// panel follows the other, so that a narrow panel of B stays in the L2 cache.
//
// Rows far longer than others are cut (cut_rows). Blocks in front of all others sum the pieces, and the group
// that comes last adds up the sums of its row. The order of a sum depends on the matrix, P and the length of
// pieces alone, never on who comes last: the only atomics count.
//
// The gathers of B are the cost: nnz f elements against nnz indices and m f results. So indices, weights and
// results are streamed past the L2 cache, and U non-zeros per team are in flight at a time.

#include "common.cuh"

// Template parameters: T type of numbers; Index of row pointers and columns; V, C, G, P, U, K as above.
#define SPMM_TEMPLATE template <class T, class Index, int V, int C, int G, int P, int U, int K>

// Entries begin .. begin + length of a row that is cut: one of its `count` pieces, which begin with `first`.
struct alignas(16) Piece {
  int64 begin;
  int length, row, first, count;
};

// Cuts rows longer than `longest` into pieces of nearly equal length: at most `longest`, but no more pieces
// than twice the entries of one, since one group adds up their sums. total: 0 before, the number of pieces
// after. Grid: ceil(m / THREADS).
template <class Index>
__global__ void __launch_bounds__(THREADS)
    cut_rows(int m, const Index* __restrict__ indptr, int longest, int* total, Piece* __restrict__ pieces) {
  const int64 row = flat_index();
  if (row >= m) return;
  const int64 begin = indptr[row], length = indptr[row + 1] - begin;
  if (length <= longest) return;
  const int64 needed = (length + longest - 1) / longest, most = int64(sqrt(double(2 * length)));
  const int count = int(needed < most ? needed : most), first = atomicAdd(total, count);
  for (int i = 0; i < count; i++) {
    const int64 from = length * i / count, to = length * (i + 1) / count;
    pieces[first + i] = {begin + from, int(to - from), int(row), first, count};
  }
}

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

// What a lane reads of one row of A, or of a piece: its team's entries, P apart, and of B its own columns.
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
template <class T, class Index, int V, int C, int G, int P, int U>
__device__ inline void sum_entries(Pack<T, V> (&sum)[C], bool active, Entries<T, Index> row, int team) {
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

// Rows `row` .. `last`, none of them long, by one team. Their entries follow each other in A, so U of them are
// in flight at a time whatever rows they are of, and the next U indices beside the gathers of these.
template <class T, class Index, int V, int C, int G, int U>
__device__ inline void sum_rows(int row, int last, const Index* indptr, const Index* indices,
                                const T* weights, const T* B, int stride, int f, int column, T* out,
                                int accumulate) {
  const Index start = indptr[row];
  const int stop = int(indptr[last] - start);
  int end = int(indptr[row + 1] - start), begin = 0;
  indices += start;
  weights += start;
  Index j[U] = {};
  T w[U] = {};
#pragma unroll
  for (int u = 0; u < U; u++)
    if (u < stop) j[u] = __ldcs(indices + u), w[u] = __ldcs(weights + u);
  Pack<T, V> sum[C] = {};
  const auto next_row = [&] {
#pragma unroll
    for (int c = 0; c < C; c++) {
      if (!accumulate || end > begin) finish(out, f, accumulate, row, column + c * G * V, sum[c]);
      sum[c] = {};
    }
    begin = end;
    if (++row < last) end = int(indptr[row + 1] - start);
  };
#pragma unroll 1
  for (int at = 0; at < stop; at += U) {
    Pack<T, V> b[U][C];
    T weight[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (at + u >= stop) continue;
#pragma unroll
      for (int c = 0; c < C; c++)
        if (column + c * G * V < f) b[u][c] = load<V>(advance(B, j[u], stride) + c * G * V);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
      weight[u] = w[u];
      if (at + U + u < stop) j[u] = __ldcs(indices + at + U + u), w[u] = __ldcs(weights + at + U + u);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (at + u >= stop) continue;
      while (at + u == end) next_row();
#pragma unroll
      for (int c = 0; c < C; c++)
#pragma unroll
        for (int v = 0; v < V; v++)
          if (column + c * G * V < f) sum[c].at[v] += weight[u] * b[u][c].at[v];
    }
  }
  while (row < last) next_row();
}

// The sum of a piece goes to the workspace. Who counts its row's last piece adds them up, in their order, and
// sets the counter back to 0.
template <class T, int V, int C, int G, int P>
__device__ inline void combine(int number, const Piece* pieces, T* workspace, int ldw, int* arrived, int f,
                               int column, const Pack<T, V> (&sum)[C], T* out, int accumulate) {
  const int lane = threadIdx.x % WARP;
  const bool active = number >= 0;
#pragma unroll
  for (int c = 0; c < C; c++)
    if (active && lane / G % P == 0 && column + c * G * V < f)
      store(workspace + int64(number) * ldw + column + c * G * V, sum[c]);
  __threadfence();
  __syncwarp();
  Piece piece{};
  if (active) piece = pieces[number];
  int before = 0;
  if (active && lane % (G * P) == 0) before = atomicAdd(arrived + piece.first, 1);
  before = __shfl_sync(ALL_LANES, before, lane / (G * P) * (G * P));
  if (!active || lane / G % P > 0 || before < piece.count - 1) return;
  __threadfence();
  if (lane % G == 0) arrived[piece.first] = 0;
  const T* from = workspace + int64(piece.first) * ldw + column;
#pragma unroll
  for (int c = 0; c < C; c++) {
    if (column + c * G * V >= f) continue;
    Pack<T, V> all{};
#pragma unroll 4
    for (int i = 0; i < piece.count; i++) {
      const Pack<T, V> one = load_shared<V>(from + int64(i) * ldw + c * G * V);
#pragma unroll
      for (int v = 0; v < V; v++) all.at[v] += one.at[v];
    }
    finish(out, f, accumulate, piece.row, column + c * G * V, all);
  }
}

// Grid: ceil(most G P / THREADS) blocks for the pieces, of which there are *total, at most `most`, and
// ceil(ceil(count / K) G P / THREADS) for the rows; x panels.
// Rows: 0 .. count, or with a list (K = 1) those of `rows`, entries begins[i] .. begins[i] + lengths[i];
// without, `begins` are the row pointers. Rows longer than `longest` are left to the pieces; most = 0: there
// are none. workspace: (most, ldw), ldw at least f and a multiple of V. arrived: (panels, most), zeros before
// and after.
SPMM_TEMPLATE __global__ void __launch_bounds__(THREADS)
    spmm(int most, const int* total, const Piece* __restrict__ pieces, T* workspace, int ldw, int* arrived,
         int longest, int count, const int* __restrict__ rows, const Index* __restrict__ begins,
         const int* __restrict__ lengths, const Index* __restrict__ indices, const T* __restrict__ weights,
         const T* __restrict__ B, int ldb, int f, T* out, int accumulate) {
  constexpr int GROUPS = THREADS / (G * P);  // per block
  static_assert(K == 1 || P == 1, "rows in a bundle are summed by one team");
  const int lane = threadIdx.x % WARP, team = lane / G % P, stride = ldb * int(sizeof(T));
  const int column = (blockIdx.y * C * G + lane % G) * V;
  const int cut_blocks = (most + GROUPS - 1) / GROUPS;
  const bool cut = int(blockIdx.x) < cut_blocks;
  const int task = (int(blockIdx.x) - (cut ? 0 : cut_blocks)) * GROUPS + int(threadIdx.x) / (G * P);
  if (K > 1 && !cut) {
    if (column >= f || task >= (count + K - 1) / K) return;
    const int last = count - task * K < K ? count : task * K + K;
    for (int row = task * K, to; row < last; row = to + 1) {  // a long one is skipped
      to = most ? row : last;
      while (to < last && begins[to + 1] - begins[to] <= longest) to++;
      if (row < to)
        sum_rows<T, Index, V, C, G, U>(row, to, begins, indices, weights, B + column, stride, f, column, out,
                                       accumulate);
    }
    return;
  }
  int number = task < (cut ? *total : count) ? task : -1;  // of the piece or row, -1 without one
  Index begin = 0;
  int length = 0;
  if (number >= 0 && cut) begin = Index(pieces[task].begin), length = pieces[task].length;
  if (number >= 0 && !cut) {
    begin = begins[task];
    length = rows ? lengths[task] : int(begins[task + 1] - begin);
    number = rows ? rows[task] : task;
    if ((most && length > longest) || (accumulate && length == 0)) number = -1;
  }
  Pack<T, V> sum[C];
  sum_entries<T, Index, V, C, G, P, U>(
      sum, number >= 0, {indices + begin, weights + begin, length, B + column, stride, f - column}, team);
  if (cut)
    return combine<T, V, C, G, P>(number, pieces, workspace, ldw, arrived + int64(blockIdx.y) * most, f,
                                  column, sum, out, accumulate);
  if (number < 0 || team > 0) return;
#pragma unroll
  for (int c = 0; c < C; c++) finish(out, f, accumulate, number, column + c * G * V, sum[c]);
}
