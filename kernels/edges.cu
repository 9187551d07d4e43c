// Passes over the stored entries of a CSR pattern, each of which has a number per head: nnz x heads, in the
// order of the entries. Products and dot products by head, and the softmax over rows of graph attention with its
// adjoint. A head has the columns bounds[k] to bounds[k + 1] of the dense matrices beside it, or `even` of them.
//
// A warp per row. Its groups of G lanes go through the row's numbers in memory's order, as many of them as fill
// whole entries, so that a group has one head. Sums are folded in an order that the row alone decides. The only
// atomics set bits.

#include "common.cuh"

constexpr int SCORES = 1, POWERS = 2, SHARES = 4;  // phases of a softmax
constexpr int SUMS = 1, GRADIENT = 2;              // and of its adjoint

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }

// The numbers of a row that a group of G lanes goes through: first, first + step, ..., all of one head. With more
// heads than groups, this is done for each `chunk` of heads.
template <int G> struct Walk {
  int head, first, step;
  bool active;
  __device__ Walk(int heads, int chunk) {
    constexpr int groups = WARP / G;
    const int group = threadIdx.x % WARP / G;
    const bool few = heads <= groups;
    step = few ? groups / heads * heads : heads;
    first = few ? group : chunk + group;
    active = first < step;
    head = few ? group % heads : active ? first : 0;
  }
};

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

// All kernels here are bound to four blocks, 64 registers: where the compiler is free it takes fewer, and spills.

// x: SCORES: leaky ReLU of u[i] + v[j] (x stays without u), whose maxima are taken with those there. POWERS:
// exp(x - maxima), added to sums. SHARES: over sums. signs: null, or the bits of numpy.packbits in 32-bit words,
// zeros at first; number n of x has bit first + n, set for a score above 0.
template <class T, class Index>
__global__ void __launch_bounds__(THREADS, 4)
    edge_softmax(int64 m, const Index* __restrict__ indptr, const Index* __restrict__ indices, int heads,
                 const T* __restrict__ u, const T* __restrict__ v, T slope, T* x, unsigned* signs, int64 first,
                 T* maxima, T* sums, int phases) {
  const int64 row = flat_index() / WARP;
  if (row >= m) return;  // whole warps leave
  const int64 begin = indptr[row], count = (indptr[row + 1] - begin) * heads;
  if (count == 0) return;
  x += begin * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP) {
    const Walk<1> walk(heads, chunk);
    const int64 at = row * heads + walk.head, stop = walk.active ? count : 0;
    const bool writes = walk.active && walk.first < heads;
    T highest = maxima[at], sum = sums[at];
    if (phases & SCORES) {
      int64 e = begin + walk.first / heads;
#pragma unroll 1  // unrolled, numbers in double precision spill
      for (int64 n = walk.first; n < stop; n += walk.step, e += walk.step / heads) {
        if (u) {
          const T score = u[at] + v[int64(indices[e]) * heads + walk.head];
          x[n] = score > 0 ? score : slope * score;
        }
        const int64 bit = first + begin * heads + n;
        if (signs && x[n] > 0) atomicOr(signs + bit / 32, 1u << (bit / 8 % 4 * 8 + 7 - bit % 8));
        highest = larger(highest, x[n]);
      }
      highest = fold(highest, heads, true);
      if (writes) maxima[at] = highest;
    }
    if (phases & POWERS) {
      T part = 0;
#pragma unroll 1
      for (int64 n = walk.first; n < stop; n += walk.step) {
        x[n] = exponential(x[n] - highest);
        part += x[n];
      }
      sum += fold(part, heads, false);
      if (writes) sums[at] = sum;
    }
    const T share = 1 / sum;
    if (phases & SHARES)
#pragma unroll 1
      for (int64 n = walk.first; n < stop; n += walk.step) x[n] *= share;
  }
}

// SUMS: the sums of p x in each row, added to `sums`. GRADIENT: x = p (x - sums), times `slope` where `signs` (null:
// none) has a 0; its sums are added to `totals` (null: not).
template <class T>
__device__ inline T times_slope(T x, const unsigned* signs, int64 bit, T slope) {
  return !signs || signs[bit / 32] >> (bit / 8 % 4 * 8 + 7 - bit % 8) & 1 ? x : slope * x;
}

template <class T, class Index>
__global__ void __launch_bounds__(THREADS, 4)
    edge_softmax_back(int64 m, const Index* __restrict__ indptr, int heads, const T* __restrict__ p, T slope,
                      const unsigned* __restrict__ signs, int64 first, T* x, T* sums, T* totals, int phases) {
  const int64 row = flat_index() / WARP;
  if (row >= m) return;
  const int64 begin = indptr[row], count = (indptr[row + 1] - begin) * heads;
  if (count == 0) return;
  x += begin * heads;
  p += begin * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP) {
    const Walk<1> walk(heads, chunk);
    const int64 at = row * heads + walk.head, stop = walk.active ? count : 0;
    const bool writes = walk.active && walk.first < heads;
    T sum = sums[at];
    if (phases & SUMS) {
      T part = 0;
      for (int64 n = walk.first; n < stop; n += walk.step) part += p[n] * x[n];
      sum += fold(part, heads, false);
      if (writes) sums[at] = sum;
    }
    if (phases & GRADIENT) {
      T part = 0;
      for (int64 n = walk.first; n < stop; n += walk.step) {
        x[n] = times_slope(p[n] * (x[n] - sum), signs, first + begin * heads + n, slope);
        part += x[n];
      }
      part = fold(part, heads, false);
      if (totals && writes) totals[at] += part;
    }
  }
}

// out[e, k] = the product of u[i] and v[j] in the columns of head k, f columns in all.
template <class T, class Index, int G>
__global__ void __launch_bounds__(THREADS, 4)
    edge_dots(int64 m, const Index* __restrict__ indptr, const Index* __restrict__ indices, int heads,
              const int64* __restrict__ bounds, int even, const T* __restrict__ u, const T* __restrict__ v, int f,
              T* __restrict__ out) {
  const int64 row = flat_index() / WARP;
  if (row >= m) return;
  const int64 begin = indptr[row], count = (indptr[row + 1] - begin) * heads;
  u += row * f;
  out += begin * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP / G) {
    const Walk<G> walk(heads, chunk);
    const int from = even ? walk.head * even : int(bounds[walk.head]);
    const int to = even ? from + even : int(bounds[walk.head + 1]);
    int64 e = begin + walk.first / heads;
    for (int64 base = 0; base < count; base += walk.step, e += walk.step / heads) {  // the same for all lanes
      const int64 n = base + walk.first;
      const bool there = walk.active && n < count;
      T sum = 0;
      if (there) {
        const T* other = v + int64(indices[e]) * f;
#pragma unroll 2
        for (int c = from + threadIdx.x % G; c < to; c += G) sum += u[c] * other[c];
      }
#pragma unroll
      for (int step = 1; step < G; step *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
      if (there && threadIdx.x % G == 0) out[n] = sum;
    }
  }
}

// out[i, c] = the sum of values[e, k] B[j, c] over the entries of row i, with k the head of column c; plus what is
// there with `accumulate`. order: null, or whose values an entry has. G lanes per row, on C columns each at a time.
template <class T, class Index, int G>
__global__ void __launch_bounds__(THREADS, 4)
    edge_products(int64 m, const Index* __restrict__ indptr, const Index* __restrict__ indices, int heads,
                  const int64* __restrict__ bounds, int even, const T* __restrict__ values,
                  const Index* __restrict__ order, const T* __restrict__ B, int f, T* __restrict__ out,
                  int accumulate) {
  constexpr int C = 4;
  const int64 row = flat_index() / G;
  if (row >= m) return;
  const int64 begin = indptr[row], end = indptr[row + 1];
  out += row * f;
  for (int column = threadIdx.x % G; column < f; column += C * G) {
    int head[C];
    T sum[C] = {};
#pragma unroll
    for (int c = 0; c < C; c++) {
      const int own = column + c * G;
      head[c] = 0;
      if (even) head[c] = own / even;
      else
        while (own < f && bounds[head[c] + 1] <= own) head[c]++;
    }
#pragma unroll 2
    for (int64 e = begin; e < end; e++) {
      const T* row_of_B = B + int64(indices[e]) * f;
      const T* weights = values + (order ? int64(order[e]) : e) * heads;
#pragma unroll
      for (int c = 0; c < C; c++)
        if (column + c * G < f) sum[c] += weights[head[c]] * row_of_B[column + c * G];
    }
#pragma unroll
    for (int c = 0; c < C; c++)
      if (column + c * G < f) out[column + c * G] = accumulate ? out[column + c * G] + sum[c] : sum[c];
  }
}
