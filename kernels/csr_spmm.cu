// C = A B with A sparse (CSR), B and C dense and row-major.
//
// A group of G x P lanes sums a row of A, or K rows one after the other; a warp has as many groups as fit.
// G lanes stand side by side on V columns of B each, so that a row of B is fetched by one wide load; P such
// teams take every P-th non-zero of the row, and their sums are folded by shuffles. Wide features want G, long
// rows P, short ones K. B wider than G V columns: panels, by blockIdx.y. As GPUs start blocks, one panel
// follows the other, so that a narrow panel of B stays in the L2 cache.
//
// A grid has three kinds of tasks, in this order. Rows far longer than others are cut (cut_rows): groups sum
// the pieces, and the one that comes last adds up the sums of its row. Then rows by themselves, of a list or
// all. Then short rows, in bundles. The order of a sum depends on the matrix, P and the length of pieces alone,
// never on who comes last: the only atomics count.
//
// The gathers of B are the cost: nnz f elements against nnz indices and m f results. So indices, weights and
// results are streamed past the L2 cache, and U non-zeros per team are in flight at a time, at most 64 bytes
// of B per lane, while the next U indices and weights arrive. Where U more are there, nothing is asked but whether
// it goes on so; where one team reads them, it does so by 16 bytes from the first entry on where that may be.

#include "common.cuh"

// Template parameters: T type of numbers; X of those of B, T or one of 16 bits; Index of row pointers and
// columns; V as above.
template <class X, int V> constexpr int IN_FLIGHT = V * sizeof(X) <= 8 || sizeof(X) <= 4 ? 4 : 2;

constexpr int LONG = 32;  // entries of a row from which loads of 16 bytes pay the turn that leads up to them
constexpr int NEVER = 1 << 30;  // more than the entries of a bundle

// Blocks that a multiprocessor must have room for. 0: the compiler is free, takes 64 registers at most all the same
// (test_cuda_compile.py), and orders loops better.
template <class X, class Index, int V, bool BUNDLES>
constexpr int BLOCKS = BUNDLES || (sizeof(Index) == 8 && (V == 8 || sizeof(X) == 8)) ? 4 : 0;

// The type of weights, sums and results.
template <class X> struct Summed {
  using type = X;
};
template <> struct Summed<Bfloat16> {
  using type = float;
};
template <> struct Summed<Float16> {
  using type = float;
};
template <class X> using Sum = typename Summed<X>::type;

// The shape of a group: G lanes side by side, in P teams.
struct Shape {
  int G, P;
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

// V columns of a row that is f wide; fewer where B is padded and `at` is not.
template <int V, class T> __device__ inline Pack<T, V> get(const T* at, int columns) {
  if (columns >= V && aligned<V>(at)) return load<V>(at);
  Pack<T, V> x{};
#pragma unroll
  for (int v = 0; v < V; v++)
    if (v < columns) x.at[v] = at[v];
  return x;
}

template <int V, class T> __device__ inline void put(T* at, int columns, const Pack<T, V>& x) {
  if (columns >= V && aligned<V>(at)) return stream_out(at, x);
#pragma unroll
  for (int v = 0; v < V; v++)
    if (v < columns) at[v] = x.at[v];
}

// Bits of V columns, the last one's lowest, in the order of numpy.packbits. The others of a byte have lanes side
// by side, which are in one group, as f is a multiple of 8, and so at the same row.
template <int V> __device__ inline void write_bits(unsigned char* bits, int64 at, unsigned positive) {
  constexpr unsigned LANES = 8 / V;
  const unsigned first = threadIdx.x % WARP / LANES * LANES;
  positive <<= 8 - V - at % 8;
#pragma unroll
  for (unsigned flip = 1; flip < LANES; flip *= 2)
    positive |= __shfl_xor_sync(((1u << LANES) - 1) << first, positive, flip);
  if (at % 8 == 0) bits[at >> 3] = positive;
}

// out[row, column...] = x, or += x with `accumulate`; then what becomes of it.
template <class T, int V>
__device__ inline void finish(T* out, int f, int accumulate, const Epilogue<T>& after, int64 row, int column,
                              const Pack<T, V>& sum) {
  constexpr int W = V < 4 ? V : 4;
  if (column >= f) return;
  const int64 at = row * f + column;
  out += at;
  const unsigned kept = after.keeps ? bits_at(after.keeps, at, f - column < V ? f - column : V) : 0;
  unsigned positive = 0;
#pragma unroll
  for (int w = 0; w < V; w += W) {
    const int columns = f - column - w;
    Pack<T, W> x = reinterpret_cast<const Pack<T, W>&>(sum.at[w]), before{};
    if (accumulate) before = get<W>(out + w, columns);
#pragma unroll
    for (int v = 0; v < W; v++) {
      x.at[v] += before.at[v];
      if (v < columns) x.at[v] = after.of(x.at[v], row, column + w + v);
      if (after.keeps) x.at[v] *= kept << (w + v) >> 31 ? after.scale : T(0);
      positive = positive << 1 | unsigned(x.at[v] > T(0));
    }
    put(out + w, columns, x);
  }
  if (after.bits) write_bits<V>(after.bits, at, positive);
}

// What a lane reads of A: consecutive entries, those of its team P apart; and of B its own columns.
template <class X, class Index> struct Entries {
  const Index* columns;
  const Sum<X>* weights;  // both of what is read next
  int length;             // of what is not added yet
  const X* B;             // at the lane's first column
  int stride;             // bytes from row to row of B
  __device__ inline void step(int by) { columns += by, weights += by; }
};

// Column and weight of U entries, P apart, where there are such.
template <class X, class T, class Index, int U>
__device__ inline void read(Index (&j)[U], T (&w)[U], Entries<X, Index>& row, int P) {
#pragma unroll
  for (int u = 0; u < U; u++)
    if (u * P < row.length) j[u] = __ldcs(row.columns + u * P), w[u] = __ldcs(row.weights + u * P);
  row.step(U * P);
}

// How entries lie that are all there: P apart; side by side; so, and where both arrays may be read U at a time.
constexpr int APART = 0, ADJACENT = 1, WIDE = 2;

// Column and weight of U entries, all of which are there.
template <int LIE, class X, class T, class Index, int U>
__device__ inline void read_all(Index (&j)[U], T (&w)[U], Entries<X, Index>& row, int P) {
  if constexpr (LIE == WIDE) {
    const Pack<Index, U> all = stream_in<U>(row.columns);
    const Pack<T, U> of_all = stream_in<U>(row.weights);
#pragma unroll
    for (int u = 0; u < U; u++) j[u] = all.at[u], w[u] = of_all.at[u];
    row.step(U);
  } else {
#pragma unroll
    for (int u = 0; u < U; u++, row.step(LIE == APART ? P : 1))
      j[u] = __ldcs(row.columns), w[u] = __ldcs(row.weights);
  }
}

// The rows of B of U entries. PART: of those among them that `left` entries have.
template <bool PART, class X, class Index, int V, int U>
__device__ inline void gather(Pack<X, V> (&b)[U], const Index (&j)[U], const Entries<X, Index>& row, int left,
                              int P) {
#pragma unroll
  for (int u = 0; u < U; u++)
    if (!PART || u * P < left) b[u] = load_read_only<V>(advance(row.B, j[u], row.stride));
}

// What is gathered stays packed until it is added.
template <class T, int V> __device__ inline Pack<T, V> widened(const Pack<T, V>& b) { return b; }

template <class Half, int V> __device__ inline Pack<float, V> widened_words(const Pack<Half, V>& b) {
  Pack<float, V> wide;
#pragma unroll
  for (int v = 0; v < V; v += 2)
    Half::widen(reinterpret_cast<const unsigned*>(&b)[v / 2], wide.at[v], wide.at[v + 1]);
  return wide;
}

template <int V> __device__ inline Pack<float, V> widened(const Pack<Bfloat16, V>& b) {
  return widened_words(b);
}

template <int V> __device__ inline Pack<float, V> widened(const Pack<Float16, V>& b) {
  return widened_words(b);
}

template <class T, int V> __device__ inline void add(Pack<T, V>& sum, T w, const Pack<T, V>& b) {
#pragma unroll
  for (int v = 0; v < V; v++) sum.at[v] += w * b.at[v];
}

// Adds a row's entries, U at a time, as long as U more are there behind them: at least once, and at the end U are in
// hand, read and not added.
template <int LIE, class X, class T, class Index, int V, int U>
__device__ inline void add_whole(Pack<T, V>& sum, Pack<X, V> (&b)[U], Index (&j)[U], T (&w)[U],
                                 Entries<X, Index>& row, int given) {
  const int P = LIE == APART ? given : 1, behind = (2 * U - 1) * P;
  read_all<LIE>(j, w, row, P);
#pragma unroll 1  // U says how much is in flight
  do {
    T weight[U];
    gather<false>(b, j, row, 0, P);
#pragma unroll
    for (int u = 0; u < U; u++) weight[u] = w[u];
    read_all<LIE>(j, w, row, P);
    row.length -= U * P;
#pragma unroll
    for (int u = 0; u < U; u++) add(sum, weight[u], widened(b[u]));
  } while (row.length > behind);
}

// How many entries come before the first from which on both arrays may be read U at a time; 0 if there is none.
template <int U, class X, class Index> __device__ inline int unaligned(const Entries<X, Index>& row) {
  const auto ahead = [](size_t at, size_t size) { return int(-at / size) & (U - 1); };
  const int head = ahead(reinterpret_cast<size_t>(row.columns), sizeof(Index));
  return head == ahead(reinterpret_cast<size_t>(row.weights), sizeof(Sum<X>)) ? head : 0;
}

// The sum over a whole row, or zero for a lane that has none; after the fold in the first team of the group.
template <int V, class X, class Index>
__device__ inline Pack<Sum<X>, V> sum_entries(Entries<X, Index> row, int team, int G, int P) {
  using T = Sum<X>;
  constexpr int U = IN_FLIGHT<X, V>;
  Pack<T, V> sum{};
  Pack<X, V> b[U];
  Index j[U] = {};
  T w[U] = {};
  int whole = row.length;  // of these, entries from which on add_whole may go; those before are asked for one by one
  row.length = P == 1 && whole >= LONG ? unaligned<U>(row) : whole >= 2 * U * P ? 0 : whole;
  whole -= row.length;
  row.length -= team;
  row.step(team);
  read(j, w, row, P);
#pragma unroll 1
  for (;; whole = 0) {
#pragma unroll 1
    while (row.length > 0) {
      const int left = row.length;
      T weight[U];
      gather<true>(b, j, row, left, P);
#pragma unroll
      for (int u = 0; u < U; u++) weight[u] = w[u];
      row.length -= U * P;
      read(j, w, row, P);
#pragma unroll
      for (int u = 0; u < U; u++)
        if (u * P < left) add(sum, weight[u], widened(b[u]));
    }
    if (!whole) break;
    row.step((P == 1 ? row.length : 0) - U * P);  // back to the first that is not added
    row.length = whole - team;
    if (P > 1)
      add_whole<APART>(sum, b, j, w, row, P);
    else if (aligned<U>(row.columns) && aligned<U>(row.weights))
      add_whole<WIDE>(sum, b, j, w, row, 1);
    else
      add_whole<ADJACENT>(sum, b, j, w, row, 1);
  }
#pragma unroll 1
  for (int step = G; step < G * P; step *= 2)  // the first team reads within its group
#pragma unroll
    for (int v = 0; v < V; v++) sum.at[v] += __shfl_down_sync(ALL_LANES, sum.at[v], step);
  return sum;
}

// Rows `row` .. `last`, none of them long, by one team. Their entries follow each other in A, so U of them are
// in flight at a time whatever rows they are of, and the next U indices beside the gathers of these. Of rows
// without entries no index is looked at.
template <int V, class X, class Index>
__device__ inline void sum_rows(int row, int last, const Index* indptr, Entries<X, Index> entries, int f,
                                int column, Sum<X>* out, int accumulate) {
  using T = Sum<X>;
  constexpr int U = V < 8 ? IN_FLIGHT<X, V> : sizeof(Index) == 4 ? 3 : 2;  // no more fit 64 registers
  Index end = indptr[row];
  int length = int(indptr[row + 1] - end), more = length;  // of this row; of those from this turn's first on
  entries.columns += end;
  entries.weights += end;
  entries.length = int(indptr[last] - end);
  end += length;
  Pack<T, V> sum{};
  Pack<X, V> b[U] = {};
  Index j[U] = {};
  T w[U] = {};
  read(j, w, entries, 1);
  const auto next_row = [&] {
    if (!accumulate || length) finish(out, f, accumulate, Epilogue<T>{}, row, column, sum);
    sum = {};
    length = NEVER;  // behind the last row, where what is added is of none
    if (++row < last) length = int(indptr[row + 1] - end), end += length;
    more += length;
  };
#pragma unroll 1
  for (; entries.length > 0; more -= U) {
    const bool whole = entries.length >= 2 * U;
    T weight[U];
    if (whole)
      gather<false>(b, j, entries, 0, 1);
    else
      gather<true>(b, j, entries, entries.length, 1);
    entries.length -= U;
#pragma unroll
    for (int u = 0; u < U; u++) weight[u] = w[u];
    if (whole)
      read_all<ADJACENT>(j, w, entries, 1);
    else
      read(j, w, entries, 1);
#pragma unroll
    for (int u = 0; u < U; u++) {
      while (more == u) next_row();
      add(sum, weight[u], widened(b[u]));
    }
  }
  while (row < last) next_row();
}

// The rows of a bundle: task K .. task K + K, of m; those of more than `bundled` entries are left out. What becomes
// of them is done at the end, to what the lane itself wrote: beside the sums there are no registers left for it.
template <int V, class X, class Index>
__device__ inline void sum_bundle(int task, int K, int m, int bundled, const Index* indptr,
                                  const Entries<X, Index>& entries, int f, int column, Sum<X>* out,
                                  int accumulate, const Epilogue<Sum<X>>& after) {
  const int last = m - task * K < K ? m : task * K + K;
  for (int row = task * K, to; row < last; row = to + 1) {
    for (to = row; to < last && indptr[to + 1] - indptr[to] <= bundled;) to++;
    if (row < to) sum_rows<V>(row, to, indptr, entries, f, column, out, accumulate);
  }
  if (!after.any()) return;
#pragma unroll 1
  for (int row = task * K; row < last; row++)
    if (indptr[row + 1] - indptr[row] <= bundled)
      finish(out, f, true, after, row, column, Pack<Sum<X>, V>{});
}

// The sum of a piece goes to the workspace. Who counts its row's last piece adds them up, in their order, and
// sets the counter back to 0. lane: of the group.
template <class T, int V>
__device__ inline void combine(int number, int lane, int G, const Piece* pieces, T* workspace, int ldw,
                               int* arrived, int f, int column, const Pack<T, V>& sum, T* out, int accumulate,
                               const Epilogue<T>& after) {
  const bool active = number >= 0;
  if (active && lane < G && column < f) store(workspace + int64(number) * ldw + column, sum);
  __threadfence();
  __syncwarp();
  Piece piece{};
  if (active) piece = pieces[number];
  int before = 0;
  if (active && lane == 0) before = atomicAdd(arrived + piece.first, 1);
  before = __shfl_sync(ALL_LANES, before, int(threadIdx.x) % WARP - lane);
  if (!active || lane >= G || before < piece.count - 1) return;
  __threadfence();
  if (lane == 0) arrived[piece.first] = 0;
  if (column >= f) return;
  Pack<T, V> all{};
#pragma unroll 4
  for (int i = 0; i < piece.count; i++) {
    const Pack<T, V> one = load_shared<V>(workspace + int64(piece.first + i) * ldw + column);
#pragma unroll
    for (int v = 0; v < V; v++) all.at[v] += one.at[v];
  }
  finish(out, f, accumulate, after, piece.row, column, all);
}

// Grid: blocks for the pieces, of which there are *total, at most `most`; blocks for `count` rows; blocks for
// the bundles of K of the m rows, with BUNDLES; x panels. A block has THREADS / WARP * (WARP / (G P)) groups.
// teams: P, which is 1 with BUNDLES.
// Rows: 0 .. count, or with a list those of `rows`, entries begins[i] .. begins[i] + lengths[i]. Rows longer
// than `longest` are left to the pieces. Bundles take rows of at most `bundled` entries, by one team. most = 0:
// there are no pieces. workspace: (most, ldw), ldw at least f and a multiple of V. arrived: (panels, most),
// zeros before and after. The last parameters are what becomes of the result; bits: of f columns, a multiple of 8,
// and with G V one, too.
template <class X, class Index, int V, bool BUNDLES>
__global__ void __launch_bounds__(THREADS, BLOCKS<X, Index, V, BUNDLES>)
    spmm(int G, int teams, int most, const int* total, const Piece* __restrict__ pieces, Sum<X>* workspace,
         int ldw, int* arrived, int longest, int count, const int* __restrict__ rows,
         const Index* __restrict__ begins, const int* __restrict__ lengths, int m, int K, int bundled,
         const Index* __restrict__ indptr, const Index* __restrict__ indices,
         const Sum<X>* __restrict__ weights, const X* __restrict__ B, int ldb, int f, Sum<X>* out,
         int accumulate, const Sum<X>* __restrict__ bias, int relu, const uint64* __restrict__ row_keys,
         const uint64* __restrict__ column_keys, uint64 threshold, Sum<X> scale, unsigned char* bits,
         const unsigned char* __restrict__ keeps) {
  const Epilogue<Sum<X>> after{bias, relu, row_keys, column_keys, threshold, scale, bits, keeps};
  const int P = BUNDLES ? 1 : teams;
  const int in_warp = int(threadIdx.x) % WARP, group = in_warp / (G * P), lane = in_warp - group * (G * P);
  const int groups = WARP / (G * P), per_block = THREADS / WARP * groups;
  const int team = lane / G, column = (int(blockIdx.y) * G + lane - team * G) * V;
  const int cut_blocks = (most + per_block - 1) / per_block, row_blocks = (count + per_block - 1) / per_block;
  const bool cut = int(blockIdx.x) < cut_blocks, bundle = int(blockIdx.x) >= cut_blocks + row_blocks;
  const int first_block = cut ? 0 : bundle ? cut_blocks + row_blocks : cut_blocks;
  const int task = (int(blockIdx.x) - first_block) * per_block + int(threadIdx.x) / WARP * groups + group;
  Entries<X, Index> entries{indices, weights, 0, B + column, ldb * int(sizeof(X))};
  if (BUNDLES && bundle) {
    if (group < groups && team == 0 && column < f && task < (m + K - 1) / K)
      sum_bundle<V>(task, K, m, bundled, indptr, entries, f, column, out, accumulate, after);
    return;
  }
  int number = group < groups && task < (cut ? *total : count) ? task : -1;  // of the piece or row, or -1
  Index begin = 0;
  if (number >= 0 && cut) begin = Index(pieces[task].begin), entries.length = pieces[task].length;
  if (number >= 0 && !cut) {
    begin = rows ? begins[task] : indptr[task];
    entries.length = rows ? lengths[task] : int(indptr[task + 1] - begin);
    number = rows ? rows[task] : task;
    if ((most && entries.length > longest) || (accumulate && !after.any() && entries.length == 0))
      number = -1;
  }
  if (number < 0 || column >= f) entries.length = 0;
  entries.columns += begin;
  entries.weights += begin;
  const Pack<Sum<X>, V> sum = sum_entries<V>(entries, team, G, P);
  if (cut)
    combine(number, lane, G, pieces, workspace, ldw, arrived + int64(blockIdx.y) * most, f, column, sum, out,
            accumulate, after);
  else if (number >= 0 && team == 0) finish(out, f, accumulate, after, number, column, sum);
}
