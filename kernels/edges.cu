// Passes over the stored entries of a CSR pattern, each of which has a number per head: nnz x heads, in the
// order of the entries. Products and dot products by head, and the softmax over rows of graph attention with its
// adjoint. A head has the columns bounds[k] to bounds[k + 1] of the dense matrices beside it, or `even` of them.
//
// A warp per row, or per piece of a row of more than `longest` entries (0: no row is cut), of which there are
// *total; edge_fold joins what the pieces of a row give. A warp's groups of G lanes go through the numbers in
// memory's order, as many of them as fill whole entries, so that a group has one head. Sums are folded in an
// order that the row alone decides. The only atomics set bits.

#include "common.cuh"
#include "edges.cuh"

constexpr int SCORES = 1, POWERS = 2, SHARES = 4;  // phases of a softmax
constexpr int SUMS = 1, GRADIENT = 2;              // and of its adjoint

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }

constexpr int ADD = 0, SET = 1, MOST = 2;

template <class T> __device__ inline T larger(T a, T b) { return b > a || b != b ? b : a; }

// out[row, column] += (ADD), = (SET) the sum, or is with it the largest (MOST), of the parts of the row's pieces, in
// their order. Grid: most x width threads.
template <class T>
__global__ void __launch_bounds__(THREADS)
    edge_fold(const Piece* __restrict__ pieces, const int* __restrict__ total, int width,
              const T* __restrict__ parts, T* __restrict__ out, int how) {
  const int64 number = flat_index() / width, column = flat_index() - number * width;
  if (number >= *total || pieces[number].first != number) return;
  const Piece piece = pieces[number];
  parts += number * width + column;
  T all = parts[0];
#pragma unroll 4
  for (int i = 1; i < piece.count; i++) {
    const T part = parts[int64(i) * width];
    all = how == MOST ? larger(all, part) : all + part;
  }
  T* to = out + int64(piece.row) * width + column;
  *to = how == MOST ? larger(*to, all) : how == ADD ? *to + all : all;
}

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

// x: SCORES: leaky ReLU of u[i] + v[j] (x stays without u), whose maxima are taken with those there. POWERS:
// exp(x - maxima), added to sums. SHARES: over sums. Of pieces one phase at a time, whose maxima or sums go to
// `parts`. signs: null, or the bits of numpy.packbits in 32-bit words, zeros at first; number n of x has bit
// first + n, set for a score above 0.
template <class T, class Index>
__global__ void __launch_bounds__(THREADS, 4)
    edge_softmax(int64 m, const Index* __restrict__ indptr, const Index* __restrict__ indices, int longest,
                 const Piece* __restrict__ pieces, const int* __restrict__ total, int heads,
                 const T* __restrict__ u, const T* __restrict__ v, T slope, T* x, unsigned* signs, int64 first,
                 T* maxima, T* sums, int phases, T* parts) {
  const int64 number = flat_index() / WARP;
  const Task<Index> task(number, m, indptr, longest, pieces, total);
  if (!task.there || task.length == 0) return;  // whole warps leave
  const int64 begin = task.begin, count = task.length * heads;
  x += begin * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP) {
    const Walk<1> walk(heads, chunk);
    const int64 at = task.row * heads + walk.head, part_at = number * heads + walk.head;
    const int64 stop = walk.active ? count : 0;
    const bool writes = walk.active && walk.first < heads;
    T highest = maxima[at], sum = sums[at];
    if (phases & SCORES) {
      int64 e = begin + walk.first / heads;
#pragma unroll 1  // unrolled, numbers in double precision spill
      for (int64 base = 0; base < count; base += walk.step, e += walk.step / heads) {  // the same for all lanes
        const int64 n = base + walk.first;
        T score = 0;
        if (n < stop) {
          score = u ? u[at] + v[int64(indices[e]) * heads + walk.head] : x[n];
          if (u) score = score > 0 ? score : slope * score, x[n] = score;
          highest = larger(highest, score);
        }
        if (signs) {
          const int64 bit = first + begin * heads + base + (walk.first - threadIdx.x % WARP);
          set_bits(signs, bit, __ballot_sync(ALL_LANES, score > 0));
        }
      }
      highest = fold(highest, heads, true);
      if (writes) *(parts ? parts + part_at : maxima + at) = highest;
    }
    if (phases & POWERS) {
      T part = 0;
#pragma unroll 1
      for (int64 n = walk.first; n < stop; n += walk.step) {
        x[n] = exponential(x[n] - highest);
        part += x[n];
      }
      part = fold(part, heads, false);
      sum += part;
      if (writes) *(parts ? parts + part_at : sums + at) = parts ? part : sum;
    }
    const T share = 1 / sum;
    if (phases & SHARES)
#pragma unroll 1
      for (int64 n = walk.first; n < stop; n += walk.step) x[n] *= share;
  }
}

template <class T>
__device__ inline T times_slope(T x, const unsigned* signs, int64 bit, T slope) {
  return !signs || signs[bit / 32] >> (bit / 8 % 4 * 8 + 7 - bit % 8) & 1 ? x : slope * x;
}

// SUMS: the sums of p x in each row, added to `sums`. GRADIENT: x = p (x - sums), times `slope` where `signs` (null:
// none) has a 0; its sums are added to `totals` (null: not). Of pieces one phase at a time, with the sums of either
// in `parts`.
template <class T, class Index>
__global__ void __launch_bounds__(THREADS, 4)
    edge_softmax_back(int64 m, const Index* __restrict__ indptr, int longest, const Piece* __restrict__ pieces,
                      const int* __restrict__ total, int heads, const T* __restrict__ p, T slope,
                      const unsigned* __restrict__ signs, int64 first, T* x, T* sums, T* totals, int phases,
                      T* parts) {
  const int64 number = flat_index() / WARP;
  const Task<Index> task(number, m, indptr, longest, pieces, total);
  if (!task.there || task.length == 0) return;
  const int64 begin = task.begin, count = task.length * heads;
  x += begin * heads;
  p += begin * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP) {
    const Walk<1> walk(heads, chunk);
    const int64 at = task.row * heads + walk.head, part_at = number * heads + walk.head;
    const int64 stop = walk.active ? count : 0;
    const bool writes = walk.active && walk.first < heads;
    T sum = sums[at];
    if (phases & SUMS) {
      T part = 0;
      for (int64 n = walk.first; n < stop; n += walk.step) part += p[n] * x[n];
      part = fold(part, heads, false);
      sum += part;
      if (writes) *(parts ? parts + part_at : sums + at) = parts ? part : sum;
    }
    if (phases & GRADIENT) {
      T part = 0;
      for (int64 n = walk.first; n < stop; n += walk.step) {
        x[n] = times_slope(p[n] * (x[n] - sum), signs, first + begin * heads + n, slope);
        part += x[n];
      }
      part = fold(part, heads, false);
      if (totals && writes) *(parts ? parts + part_at : totals + at) = parts ? part : totals[at] + part;
    }
  }
}

// out[e, k] = the product of u[i] and v[j] in the columns of head k, f columns in all; V columns at a time, of which
// every head has a multiple.
template <class T, class Index, int G, int V>
__global__ void __launch_bounds__(THREADS, 4)
    edge_dots(int64 m, const Index* __restrict__ indptr, const Index* __restrict__ indices, int longest,
              const Piece* __restrict__ pieces, const int* __restrict__ total, int heads,
              const int64* __restrict__ bounds, int even, const T* __restrict__ u, const T* __restrict__ v, int f,
              T* __restrict__ out) {
  const Task<Index> task(flat_index() / WARP, m, indptr, longest, pieces, total);
  if (!task.there) return;
  u += task.row * f;
  sum_by_heads<G>(task, heads, bounds, even, out, [&](int64 e, int from, int to) {
    const T* other = v + int64(indices[e]) * f;
    T sum = 0;
#pragma unroll 2
    for (int c = from + threadIdx.x % G * V; c < to; c += G * V) {
      const Pack<T, V> a = load_read_only<V>(u + c), b = load_read_only<V>(other + c);
#pragma unroll
      for (int i = 0; i < V; i++) sum += a.at[i] * b.at[i];
    }
    return sum;
  });
}

// out[i, c] = the sum of values[e, k] B[j, c] over the entries of row i, with k the head of column c; plus what is
// there with `accumulate`; of pieces in rows of their own. order: null, or whose values an entry has. G lanes per
// row, each on V columns at a time, of which every head has a multiple.
template <class T, class Index, int G, int V>
__global__ void __launch_bounds__(THREADS, 4)
    edge_products(int64 m, const Index* __restrict__ indptr, const Index* __restrict__ indices, int longest,
                  const Piece* __restrict__ pieces, const int* __restrict__ total, int heads,
                  const int64* __restrict__ bounds, int even, const T* __restrict__ values,
                  const Index* __restrict__ order, const T* __restrict__ B, int f, T* __restrict__ out,
                  int accumulate) {
  const int64 number = flat_index() / G;
  const Task<Index> task(number, m, indptr, longest, pieces, total);
  if (!task.there) return;
  const int64 end = task.begin + task.length;
  out += number * f;
  for (int column = threadIdx.x % G * V; column < f; column += G * V) {
    int head = even ? column / even : 0;
    if (!even)
      while (bounds[head + 1] <= column) head++;
    Pack<T, V> sum{};
#pragma unroll 4
    for (int64 e = task.begin; e < end; e++) {
      const T weight = values[(order ? int64(order[e]) : e) * heads + head];
      const Pack<T, V> b = load_read_only<V>(B + int64(indices[e]) * f + column);
#pragma unroll
      for (int i = 0; i < V; i++) sum.at[i] += weight * b.at[i];
    }
    if (accumulate) {
      const Pack<T, V> before = load<V>(out + column);
#pragma unroll
      for (int i = 0; i < V; i++) sum.at[i] += before.at[i];
    }
    store(out + column, sum);
  }
}
