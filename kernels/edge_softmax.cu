// The softmax over rows of graph attention and its adjoint, of numbers of the stored entries of a CSR pattern,
// nnz x heads, in the order of the entries.
//
// A warp takes a task. Its lanes go through the numbers in memory's order, as many of them as fill whole
// entries, so that a lane has one head. What its registers hold is read once; of a longer row all is made, or
// read, twice. Where rows are cut, the first launch ends all others and gives the sums of those rows, and a
// second one ends their pieces.

#include "common.cuh"
#include "edges.cuh"

constexpr int SCORES = 1, POWERS = 2, SHARES = 4;  // phases of a softmax
constexpr int SUMS = 1, GRADIENT = 2;              // and of its adjoint

// Numbers of a row that a lane holds.
template <class T, class Index> constexpr int HELD = sizeof(T) == 8 ? 2 : sizeof(Index) == 8 ? 4 : 8;

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }

template <class T> __device__ inline T lowest() { return -T(__uint_as_float(0x7F800000u)); }

template <class T> __device__ inline T larger(T a, T b) { return b > a || b != b ? b : a; }

// The sum, or with `most` the largest, of the lanes that have this lane's head.
template <class T> __device__ inline T fold(T x, int heads, bool most) {
  const int copies = heads <= WARP ? WARP / heads : 1, lane = threadIdx.x % WARP;
  if ((heads & (heads - 1)) == 0) {
    for (int step = heads; step < WARP; step *= 2) {
      const T other = __shfl_xor_sync(ALL_LANES, x, step);
      x = most ? larger(x, other) : x + other;
    }
    return x;
  }
  T all = x;
  for (int n = 0; n < copies; n++) {
    const T other = __shfl_sync(ALL_LANES, x, copies > 1 ? lane % heads + n * heads : lane);
    all = n == 0 ? other : most ? larger(all, other) : all + other;
  }
  return all;
}

// The largest of numbers, and the sum of the powers of what they lack to it.
template <class T> struct Powers {
  T highest = lowest<T>(), sum = 0;

  __device__ static inline T of(T x, T highest) {
    return exponential(x - (highest == lowest<T>() ? T(0) : highest));
  }

  // Adds numbers of which a lane has some, as far as they are there.
  template <int N> __device__ inline void add(const T (&x)[N], int there) {
    T top = highest;
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i < there) top = larger(top, x[i]);
    sum *= of(highest, top);
    highest = top;
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i < there) sum += of(x[i], highest);
  }

  __device__ inline void join(T other_highest, T other_sum) {
    const T top = larger(highest, other_highest);
    sum = sum * of(highest, top) + other_sum * of(other_highest, top);
    highest = top;
  }

  // Those of all lanes that have this lane's head.
  __device__ inline void fold_lanes(int heads) {
    const T top = fold(highest, heads, true);
    sum = fold(sum * of(highest, top), heads, false);
    highest = top;
  }
};

// Bits in the order of numpy.packbits: the first of each byte is its highest.
__device__ inline unsigned packed(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  return (x >> 4 & 0x0F0F0F0Fu) | (x & 0x0F0F0F0Fu) << 4;
}

// Sets bits bit .. bit + 31 where `positive` has them: a word or two, by as many lanes.
__device__ inline void set_bits(unsigned* signs, int64 bit, unsigned positive) {
  const int lane = threadIdx.x % WARP, shift = int(bit % 32);
  const unsigned own = lane == 0 ? positive << shift : shift ? positive >> (32 - shift) : 0u;
  if (lane < 2 && own) atomicOr(signs + bit / 32 + lane, packed(own));
}

// Numbers of a row by a warp, for a chunk of heads: turn r of this lane is number first + r step of the task's.
struct Turn : Walk<1> {
  int offset, count, own;  // from lane to number; turns of all lanes, and of this one
  __device__ Turn(const Piece& task, int heads, int chunk) : Walk<1>(heads, chunk) {
    const int apart = step / heads, place = first / heads;
    offset = heads > WARP ? chunk : 0;
    count = (task.length + apart - 1) / apart;
    own = active ? (task.length - place + apart - 1) / apart : 0;
  }
  __device__ inline int64 number(int turn) const { return first + int64(turn) * step; }
  // A lane that stands for all of its head.
  __device__ inline bool speaks(int heads) const { return active && first < heads; }
};

// P = softmax of the scores in each row: with ENDS of leaky ReLU(u[i] + v[j]), else of `given`, which may be P.
// signs: null, or the bits of numpy.packbits in 32-bit words, zeros at first; number n of P has bit first + n,
// set for a score above 0. Of rows that are cut, their largest scores and sums of powers go to `highest` and
// `sums` (m, heads), by way of `parts` (2, pieces, heads); those are known with `ending`, which is for pieces
// alone.
template <class T, class Index, bool ENDS>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, Index>)
    edge_softmax(int64 tasks, const Piece* __restrict__ table, int* arrived, const Index* __restrict__ indices,
                 int heads, const T* __restrict__ u, const T* __restrict__ v, T slope, const T* given, T* P,
                 unsigned* signs, int64 first, T* highest, T* sums, T* parts, int most, int ending) {
  constexpr int N = HELD<T, Index>;
  const int64 number = flat_index() / WARP;
  if (number >= tasks) return;  // whole warps leave
  const Piece task = table[number];
  if (!task.count || !task.length) return;
  const bool whole = task.count == 1;
  indices += task.begin;
  P += task.begin * heads;
  given += task.begin * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP) {
    const Turn turn(task, heads, chunk);
    const int apart = turn.step / heads, place = turn.first / heads;
    const int64 at = int64(task.row) * heads + turn.head;
    const T left = ENDS ? u[at] : T(0);
    const auto scores = [&](int from, T(&x)[N]) {
      if constexpr (ENDS) {
        Index j[N];
#pragma unroll
        for (int i = 0; i < N; i++)
          if (from + i < turn.own) j[i] = indices[place + (from + i) * apart];
#pragma unroll
        for (int i = 0; i < N; i++)
          x[i] = from + i < turn.own ? left + v[int64(j[i]) * heads + turn.head] : T(0);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = x[i] > 0 ? x[i] : slope * x[i];
      } else {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = from + i < turn.own ? given[turn.number(from + i)] : T(0);
      }
    };
    const auto end = [&](int from, const T(&x)[N], T top, T share) {
#pragma unroll
      for (int i = 0; i < N; i++) {
        if (from + i >= turn.count) break;  // the same for all lanes
        const bool there = from + i < turn.own;
        if (there) P[turn.number(from + i)] = exponential(x[i] - top) * share;
        if (signs) {
          const int64 bit = first + task.begin * heads + turn.offset + int64(from + i) * turn.step;
          set_bits(signs, bit, __ballot_sync(ALL_LANES, there && x[i] > 0));
        }
      }
    };
    const bool held = whole && turn.count <= N;
    T x[N];
    Powers<T> all;
    if (ending) {
      all.highest = highest[at], all.sum = sums[at];
    } else {
#pragma unroll 1
      for (int from = 0; from < turn.count; from += N) {
        scores(from, x);
        all.add(x, turn.own - from);
      }
      all.fold_lanes(heads);
    }
    if (whole || ending) {
      const T share = 1 / all.sum;
#pragma unroll 1
      for (int from = 0; from < turn.count; from += N) {
        if (!held) scores(from, x);
        end(from, x, all.highest, share);
      }
    } else if (turn.speaks(heads)) {
      T* const part = parts + number * heads + turn.head;
      part[0] = all.highest;
      part[int64(most) * heads] = all.sum;
    }
  }
  if (whole || ending || !comes_last<WARP>(task, arrived)) return;
  parts += int64(task.first) * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP) {
    const Turn turn({0, task.count, 0, 0, 0}, heads, chunk);
    Powers<T> all;
    for (int i = 0; i < turn.own; i++) {
      const T* one = parts + turn.number(i);
      all.join(shared_number(one), shared_number(one + int64(most) * heads));
    }
    all.fold_lanes(heads);
    const int64 at = int64(task.row) * heads + turn.head;
    if (turn.speaks(heads)) highest[at] = all.highest, sums[at] = all.sum;
  }
}

// The sum, or with `largest` the largest, of what a lane finds in each row goes to `out` (m, heads) with what
// is there, by way of `parts` (pieces, heads) where the row is cut. `of(turn, at)`: what a lane finds, and
// does, in a chunk of heads.
template <class T, class Of>
__device__ inline void by_row(const Piece& task, int64 number, int heads, bool largest, T* out, T* parts,
                              int* arrived, const Of& of) {
  const auto give = [&](int64 at, T all) { out[at] = largest ? larger(out[at], all) : out[at] + all; };
  for (int chunk = 0; chunk < heads; chunk += WARP) {
    const Turn turn(task, heads, chunk);
    const int64 at = int64(task.row) * heads + turn.head;
    const T all = fold(of(turn, at), heads, largest);
    if (!out || !turn.speaks(heads)) continue;
    if (task.count == 1)
      give(at, all);
    else
      parts[number * heads + turn.head] = all;
  }
  if (!out || task.count == 1 || !comes_last<WARP>(task, arrived)) return;
  parts += int64(task.first) * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP) {
    const Turn turn({0, task.count, 0, 0, 0}, heads, chunk);
    T all = largest ? lowest<T>() : T(0);
    for (int i = 0; i < turn.own; i++) {
      const T part = shared_number(parts + turn.number(i));
      all = largest ? larger(all, part) : all + part;
    }
    all = fold(all, heads, largest);
    if (turn.speaks(heads)) give(int64(task.row) * heads + turn.head, all);
  }
}

// One phase of a softmax over rows that several blocks share. SCORES: x is leaky ReLU of u[i] + v[j] (x stays
// without u), whose largest are taken with those in `out`. POWERS: exp(x - highest), added to `out`. SHARES:
// over `highest`, the sums.
template <class T, class Index>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, Index>)
    edge_softmax_phase(int64 tasks, const Piece* __restrict__ table, int* arrived,
                       const Index* __restrict__ indices, int heads, const T* __restrict__ u,
                       const T* __restrict__ v, T slope, T* x, unsigned* signs, int64 first,
                       const T* __restrict__ highest, T* out, T* parts, int phase) {
  const int64 number = flat_index() / WARP;
  if (number >= tasks) return;
  const Piece task = table[number];
  if (!task.count || !task.length) return;
  indices += task.begin;
  x += task.begin * heads;
  by_row(task, number, heads, phase == SCORES, out, parts, arrived, [&](const Turn& turn, int64 at) {
    T all = phase == SCORES ? lowest<T>() : T(0);
    const T given = phase == SCORES ? T(0) : phase == SHARES ? 1 / highest[at] : highest[at];
    int64 e = turn.first / heads;
#pragma unroll 1  // unrolled, numbers in double precision spill
    for (int i = 0; i < turn.count; i++, e += turn.step / heads) {  // the same for all lanes
      const bool there = i < turn.own;
      const int64 n = turn.number(i);
      T score = there && (phase != SCORES || !u) ? x[n] : T(0);
      if (there && phase == SCORES) {
        if (u) score = u[at] + v[int64(indices[e]) * heads + turn.head];
        if (u) score = score > 0 ? score : slope * score, x[n] = score;
        all = larger(all, score);
      } else if (there) {
        score = phase == POWERS ? exponential(score - given) : score * given;
        all += x[n] = score;
      }
      if (phase == SCORES && signs) {
        const int64 bit = first + task.begin * heads + turn.offset + int64(i) * turn.step;
        set_bits(signs, bit, __ballot_sync(ALL_LANES, there && score > 0));
      }
    }
    return all;
  });
}

template <class T>
__device__ inline T times_slope(T x, const unsigned* signs, int64 bit, T slope) {
  return !signs || signs[bit / 32] >> (bit / 8 % 4 * 8 + 7 - bit % 8) & 1 ? x : slope * x;
}

// SUMS: the sums of P x in each row, added to `sums`. GRADIENT: x = P (x - sums), times `slope` where `signs`
// (null: none) has a 0; its sums are added to `totals` (null: not). Both: of rows that are not cut, whose sums
// nobody reads; of others SUMS, zeros at first. parts: (pieces, heads).
template <class T>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, int>)
    edge_softmax_back(int64 tasks, const Piece* __restrict__ table, int* arrived, int heads,
                      const T* __restrict__ P, T slope, const unsigned* __restrict__ signs, int64 first, T* x,
                      T* sums, T* totals, T* parts, int phases) {
  constexpr int N = HELD<T, int>;
  const int64 number = flat_index() / WARP;
  if (number >= tasks) return;
  const Piece task = table[number];
  if (!task.count || !task.length) return;
  const bool both = phases == (SUMS | GRADIENT) && task.count == 1;
  first += task.begin * heads;
  x += task.begin * heads;
  P += task.begin * heads;
  T p[N], d[N];
  const auto loaded = [&](const Turn& turn, int from) {
    T sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
      const bool there = from + i < turn.own;
      p[i] = there ? P[turn.number(from + i)] : T(0);
      d[i] = there ? x[turn.number(from + i)] : T(0);
    }
#pragma unroll
    for (int i = 0; i < N; i++) sum += p[i] * d[i];
    return sum;
  };
  const auto ended = [&](const Turn& turn, int from, T mean) {
    T sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
      const int64 n = turn.number(from + i);
      if (from + i >= turn.own) continue;
      d[i] = times_slope(p[i] * (d[i] - mean), signs, first + n, slope);
      x[n] = d[i];
      sum += d[i];
    }
    return sum;
  };
  const auto sum_of = [&](const Turn& turn) {
    T sum = 0;
#pragma unroll 1
    for (int from = 0; from < turn.count; from += N) sum += loaded(turn, from);
    return sum;
  };
  const auto gradient = [&](const Turn& turn, int64 at) {
    const T mean = both ? fold(sum_of(turn), heads, false) : sums[at];
    const bool held = both && turn.count <= N;
    T sum = 0;
#pragma unroll 1
    for (int from = 0; from < turn.count; from += N) {
      if (!held) loaded(turn, from);
      sum += ended(turn, from, mean);
    }
    return sum;
  };
  if (both || phases == GRADIENT)
    by_row(task, number, heads, false, totals, parts, arrived, gradient);
  else
    by_row(task, number, heads, false, sums, parts, arrived,
           [&](const Turn& turn, int64) { return sum_of(turn); });
}
