// C = A B with A sparse (CSR), B and C dense and row-major.
//
// A group of G x P lanes sums a row of A, or K short rows in turn; a warp has as many groups as fit. G lanes
// stand side by side on V columns of B each, so that a row of B is fetched by one wide load; P such teams
// take every P-th non-zero of the row, and their sums are folded by shuffles. Wide features want G, long
// rows P, short ones K. B wider than G V columns: panels, by blockIdx.y. As GPUs start blocks, one panel
// follows the other, so that a narrow panel of B stays in the L2 cache.
//
// A grid has three kinds of tasks, in this order. Rows far longer than others are cut (cut_rows): groups sum
// the pieces, and the one that comes last adds up the sums of its row. Then rows that have a group each. Then
// short rows, K to a group. The order of a sum depends on the matrix, P and the length of pieces alone,
// never on who comes last: the only atomics count.
//
// The gathers of B are the cost: nnz f elements against nnz indices and m f results. So results are
// streamed past the L2 cache, and U non-zeros per team are in flight at a time, at most 64 bytes
// of B per lane. The lanes of a group read as many entries of A side by side as they are, while the rows of
// B of the entries before arrive, and hand them to each other by shuffles (Huang et al., GE-SpMM, SC 2020):
// a lane that read each entry by itself would ask the L1 cache two or three times as often. Behind the end
// of a row a lane gathers row 0 of B, which it does not add: loads that depend on nothing are all under way
// before the first is waited for.

#include "common.cuh"

// Template parameters: T type of numbers; X of those of B, T or one of 16 bits; Index of row pointers and
// columns; V as above; TURNS: whether groups may sum several rows; ENDS: whether results have an epilogue.
template <class X, int V> constexpr int IN_FLIGHT = V * sizeof(X) <= 8 || sizeof(X) <= 4 ? 4 : 2;

constexpr int NEVER = 1 << 30;  // more than the entries of a turn

// Blocks that a multiprocessor must have room for. Five leave 48 registers, with which rows in turn spill on
// Ampere, and others everywhere.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int IN_TURN = 4;
#else
constexpr int IN_TURN = 5;
#endif
template <class X, class Index, int V, bool TURNS>
constexpr int BLOCKS = sizeof(Index) == 8 || sizeof(X) == 8 || V == 8 ? 4 : TURNS ? IN_TURN : 5;

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

// Bits of V columns, the last one's lowest, in the order of numpy.packbits. The others of a byte have lanes
// side by side, which are in one group, as f is a multiple of 8, and so at the same row.
template <int V> __device__ inline void write_bits(unsigned char* bits, int64 at, unsigned positive) {
  constexpr unsigned LANES = 8 / V;
  const unsigned first = threadIdx.x % WARP / LANES * LANES;
  positive <<= 8 - V - at % 8;
#pragma unroll
  for (unsigned flip = 1; flip < LANES; flip *= 2)
    positive |= __shfl_xor_sync(((1u << LANES) - 1) << first, positive, flip);
  if (at % 8 == 0) bits[at >> 3] = positive;
}

// Results of 16 bits, in rows of `pitch`; beyond: raised to the bits of the largest that does not fit.
struct Rounding {
  unsigned short* out;  // null: results are float32
  int pitch;
  int* beyond;
};

// out[row, column...] = x, or += x with `accumulate`; then what becomes of it. Of an X of 16 bits it may be
// rounded to X where results have an epilogue, with zeros behind a row, and stays in the L2 cache.
template <class X, bool ENDS, int V, class T>
__device__ inline void finish(T* out, const Rounding& rounding, int f, int accumulate, const Epilogue<T>& after,
                              int64 row, int column, const Pack<T, V>& sum) {
  constexpr int W = V < 4 ? V : 4;
  constexpr bool MAY_ROUND = ENDS && sizeof(X) == 2;
  if (column >= f) return;
  [[maybe_unused]] Pack<unsigned short, V> bits;
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
    if constexpr (MAY_ROUND)
      if (rounding.out) {
#pragma unroll
        for (int v = 0; v < W; v++) bits.at[w + v] = v < columns ? narrowed<X>(x.at[v], rounding.beyond) : 0;
        continue;
      }
    put(out + w, columns, x);
  }
  if constexpr (MAY_ROUND)
    if (rounding.out) store(rounding.out + row * rounding.pitch + column, bits);
  if (after.bits) write_bits<V>(after.bits, at, positive);
}

// An entry of A, of which a lane holds one.
template <class T, class Index> struct Entry {
  Index column;
  T weight;
};

template <class T, class Index>
__device__ inline Entry<T, Index> read(const Index* columns, const T* weights, Index at, bool there) {
  return there ? Entry<T, Index>{__ldg(columns + at), __ldg(weights + at)} : Entry<T, Index>{};
}

// That of another lane. All lanes of the warp are here.
template <class T, class Index>
__device__ inline Entry<T, Index> held_by(int lane, const Entry<T, Index>& own) {
#ifdef __CUDA_ARCH__
  return {__shfl_sync(ALL_LANES, own.column, lane), __shfl_sync(ALL_LANES, own.weight, lane)};
#else
  return __shfl_sync(ALL_LANES, own, lane);
#endif
}

// What a group sums: entries begin .. begin + length of A. length -1: nothing, and no result is written.
template <class Index> struct Task {
  Index begin;
  int length;
};

// A group as one of its lanes sees it.
struct Group {
  int G, P;
  int turn;    // entries that are gathered at a time: U per team, or as many as lanes hold
  int held;    // entries that the lanes hold, one each: whole turns
  int lane;    // among the G P lanes
  int source;  // lane of the warp that holds the first entry of this lane's team
  int first;   // that entry's place in the turn; NEVER where the lane has no column of B
};

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

// The sum of a task; after the fold in the first team of the group. All lanes of the warp are here, and go
// on as long as one of them has entries. own: what the lane holds of the first `held` entries.
template <int V, class X, class Index>
__device__ inline Pack<Sum<X>, V> sum_entries(const Group& group, const Task<Index>& task,
                                              Entry<Sum<X>, Index> own, const Index* columns,
                                              const Sum<X>* weights, const X* B, int stride) {
  using T = Sum<X>;
  constexpr int U = IN_FLIGHT<X, V>;
  const int P = group.P;
  Pack<T, V> sum{};
  Index at = task.begin + group.lane;
  int left = task.length;
  bool more = __any_sync(ALL_LANES, left > 0);
#pragma unroll 1
  while (more) {
    at += group.held;
    const bool there = group.lane < group.held && group.held + group.lane < left;
    const Entry<T, Index> next = read(columns, weights, at, there);
#pragma unroll 1
    for (int turn = 0; more && turn < group.held; turn += group.turn) {
      const int here = left < group.turn ? left : group.turn;
      Pack<X, V> b[U];
      Entry<T, Index> entry[U];
#pragma unroll
      for (int u = 0; u < U; u++) entry[u] = held_by(group.source + turn + u * P, own);
#pragma unroll
      for (int u = 0; u < U; u++) b[u] = load_read_only<V>(advance(B, entry[u].column, stride));
      left -= group.turn;
      more = __any_sync(ALL_LANES, left > 0);
#pragma unroll
      for (int u = 0; u < U; u++)
        if (group.first + u * P < here) add(sum, entry[u].weight, widened(b[u]));
    }
    own = next;
  }
#pragma unroll 1
  for (int step = group.G; step < group.G * P; step *= 2)  // the first team reads within its group
#pragma unroll
    for (int v = 0; v < V; v++) sum.at[v] += __shfl_down_sync(ALL_LANES, sum.at[v], step);
  return sum;
}

// Counts on by one, after all that this warp stored before. __threadfence() would empty the L1 cache as well.
__device__ inline int count_released(int* counter) {
#ifdef __CUDA_ARCH__
  int before;
  asm volatile("atom.add.release.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
#else
  return atomicAdd(counter, 1);
#endif
}

// The sum of a piece goes to the workspace, where the lane has a column. Who counts its row's last piece
// adds them up, in their order, sets the counter back to 0 and returns the row; others return -1.
template <class T, int V>
__device__ inline int combine(int number, const Group& group, const Piece* pieces, T* workspace, int ldw,
                              int* arrived, int column, Pack<T, V>& sum) {
  const bool active = number >= 0, writes = group.lane < group.G && group.first != NEVER;
  if (active && writes) store(workspace + int64(number) * ldw + column, sum);
  __syncwarp();
  int before = 0, first = 0, count = 0;
  if (active) first = pieces[number].first, count = pieces[number].count;
  if (active && group.lane == 0) before = count_released(arrived + first);
  before = __shfl_sync(ALL_LANES, before, int(threadIdx.x) % WARP - group.lane);
  if (!active || before < count - 1) return -1;
  __threadfence();
  if (group.lane == 0) arrived[first] = 0;
  if (!writes) return -1;
  sum = {};
#pragma unroll 4
  for (int i = 0; i < count; i++) {
    const Pack<T, V> one = load_shared<V>(workspace + int64(first + i) * ldw + column);
#pragma unroll
    for (int v = 0; v < V; v++) sum.at[v] += one.at[v];
  }
  return pieces[number].row;
}

// Grid: blocks for the pieces, of which there are *total, at most `most`; from block `alone_from` on for the
// first `alone` of the m rows; from block `bundles_from` on for the others, of which a group sums K, with
// TURNS; x panels. A block has THREADS / WARP * groups groups. teams: P, which is 1 with TURNS. over_G:
// 2^16 / G, rounded up. turn, held: see Group. Rows: 0 .. m, or those of a list; entries begins[i] ..
// ends[i + shift]. Rows longer than `longest` are left to the pieces. workspace: (most, ldw), ldw at least f
// and a multiple of V. arrived: (panels, most), zeros before and after. empty: whether rows without entries
// are written. The last parameters are what becomes of the result, with ENDS; bits: of f columns, a multiple
// of 8, and with G V one, too. rounded, pitch, beyond: see Rounding; V is 8 then, or 4 of at most 4 columns.
template <class X, class Index, int V, bool TURNS, bool ENDS>
__global__ void __launch_bounds__(THREADS, BLOCKS<X, Index, V, TURNS>)
    spmm(int G, int teams, int over_G, int groups, int turn, int held, int alone_from, int bundles_from,
         int most, const int* total, const Piece* __restrict__ pieces, Sum<X>* workspace, int ldw,
         int* arrived, int longest, int m, int alone, int K, const int* __restrict__ rows,
         const Index* __restrict__ begins, const Index* __restrict__ ends, int shift,
         const Index* __restrict__ indices, const Sum<X>* __restrict__ weights, const X* __restrict__ B,
         int ldb, int f, Sum<X>* out, unsigned short* rounded, int pitch, int* beyond, int accumulate, int empty,
         const Sum<X>* __restrict__ bias, int relu,
         const uint64* __restrict__ row_keys, const uint64* __restrict__ column_keys, uint64 threshold,
         Sum<X> scale, unsigned char* bits, const unsigned char* __restrict__ keeps) {
  using T = Sum<X>;
  Epilogue<T> after{};
  if constexpr (ENDS) after = {bias, relu, row_keys, column_keys, threshold, scale, bits, keeps};
  const int P = TURNS ? 1 : teams;
  const int in_warp = int(threadIdx.x) % WARP, side = in_warp * over_G >> 16;  // of the teams of the warp
  const int number = side >> (__ffs(P) - 1), team = side & (P - 1), lane = in_warp - number * (G * P);
  const int column = (int(blockIdx.y) * G + in_warp - side * G) * V;
  const Group group{G, P, turn, held, lane, in_warp - lane + team, column < f ? team : NEVER};
  const bool cut = int(blockIdx.x) < alone_from, bundle = int(blockIdx.x) >= bundles_from;
  const int block = int(blockIdx.x) - (cut ? 0 : bundle ? bundles_from : alone_from);
  const int place = (block * (THREADS / WARP) + int(threadIdx.x) / WARP) * groups + number;
  const int turns = TURNS && bundle ? K : 1;
  int at = bundle ? alone + place * K : place, end = cut ? *total : bundle ? m : alone;
  if (end > at + turns) end = at + turns;
  if (number >= groups) end = 0;
  const auto task_at = [&](int at) {
    if (at >= end) return Task<Index>{0, -1};
    if (cut) return Task<Index>{Index(pieces[at].begin), pieces[at].length};
    const Index begin = begins[at];
    const int length = int(ends[at + shift] - begin);
    return Task<Index>{begin, length > longest || (length == 0 && !empty) ? -1 : length};
  };
  const auto own_of = [&](const Task<Index>& task) {
    return read(indices, weights, Index(task.begin + lane), lane < held && lane < task.length);
  };
  Task<Index> task = task_at(at), next = TURNS ? task_at(at + 1) : Task<Index>{0, -1};
  Entry<T, Index> own = own_of(task);
#pragma unroll 1
  do {
    Entry<T, Index> own_next{};
    Task<Index> later{};
    if constexpr (TURNS) own_next = own_of(next), later = task_at(at + 2);
    int row = task.length < 0 ? -1 : rows && !cut ? rows[at] : at;
    Pack<T, V> sum = sum_entries<V>(group, task, own, indices, weights, B + (column < f ? column : 0),
                                    ldb * int(sizeof(X)));
    int* const counters = arrived + int64(blockIdx.y) * most;
    if (cut) row = combine(row, group, pieces, workspace, ldw, counters, column, sum);
    if (row >= 0 && team == 0)
      finish<X, ENDS>(out, {rounded, pitch, beyond}, f, accumulate, after, row, column, sum);
    task = next, next = later, own = own_next;
  } while (TURNS && __any_sync(ALL_LANES, ++at < end));
}
