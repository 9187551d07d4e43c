// Additive attention over the stored entries of a CSR pattern, a number per head: scores a . leaky ReLU(u[i] +
// v[j]) with a bit for each entry and column, and sums of slopes by these bits. Tasks and heads as in edges.cu.
//
// V columns at a time: 8, a byte of bits, where every head has a multiple of that; else 1.

#include "common.cuh"
#include "edges.cuh"

template <class T> __device__ inline T leaky(T x, T slope) { return x > 0 ? x : slope * x; }

// out[e, k] = the sum of a leaky ReLU(u[i] + v[j]) in the columns of head k, f columns in all, by G lanes. With
// V = 8, signs (nnz, f / 8) are written, which sums are above 0, as of numpy.packbits.
template <class T, class Index, int G, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, Index> - 1)
    edge_scores(int64 tasks, const Piece* __restrict__ table, const Index* __restrict__ indices, int heads,
                const int64* __restrict__ bounds, int even, const T* __restrict__ u, const T* __restrict__ v,
                const T* __restrict__ a, int f, T slope, T* __restrict__ out,
                unsigned char* __restrict__ signs) {
  constexpr int W = V * sizeof(T) < 16 ? V : 16 / sizeof(T), U = IN_FLIGHT<T, Index, W> / (V == 1 ? 1 : 2);
  const int64 number = flat_index() / WARP;
  if (number >= tasks) return;  // whole warps leave
  const Piece task = table[number];
  if (!task.count || !task.length) return;
  u += int64(task.row) * f;
  const auto add = [&](bool whole, const Index* j, int there, int64 e, int apart, int from, int to,
                       T* sums) {
#pragma unroll 1
    for (int c = from + threadIdx.x % G * V; c < to; c += G * V) {
      unsigned bits[U] = {};
#pragma unroll
      for (int w = 0; w < V; w += W) {  // by 16 bytes
        Pack<T, W> y[U];
#pragma unroll
        for (int n = 0; n < U; n++)
          if (whole || n < there) y[n] = load_read_only<W>(advance(v + c + w, j[n], f * int(sizeof(T))));
        const Pack<T, W> x = load_read_only<W>(u + c + w), weights = load_read_only<W>(a + c + w);
#pragma unroll
        for (int n = 0; n < U; n++)
          if (whole || n < there)
#pragma unroll
            for (int i = 0; i < W; i++) {
              const T sum = x.at[i] + y[n].at[i];
              bits[n] = bits[n] << 1 | unsigned(sum > 0);
              sums[n] += weights.at[i] * leaky(sum, slope);
            }
      }
#pragma unroll
      for (int n = 0; n < U; n++)
        if (V == 8 && (whole || n < there))
          signs[(e + n * apart) * (f / 8) + c / 8] = static_cast<unsigned char>(bits[n]);
    }
  };
  sum_by_heads<G, U>(task, indices, heads, bounds, even, out, add);
}

// signs (nnz, ceil(f / 8)): which sums u[i] + v[j] are above 0, as of numpy.packbits.
template <class T, class Index>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, Index>)
    edge_signs(int64 tasks, const Piece* __restrict__ table, const Index* __restrict__ indices,
               const T* __restrict__ u, const T* __restrict__ v, int f, unsigned char* __restrict__ signs) {
  const int64 number = flat_index() / WARP;
  if (number >= tasks) return;
  const Piece task = table[number];
  if (!task.count) return;
  const int bytes = (f + 7) / 8;
  u += int64(task.row) * f;
  for (int64 n = threadIdx.x % WARP; n < int64(task.length) * bytes; n += WARP) {
    const int64 e = task.begin + n / bytes;
    const int column = int(n % bytes) * 8, columns = f - column < 8 ? f - column : 8;
    const T* other = v + int64(indices[e]) * f + column;
    unsigned bits = 0;
    for (int i = 0; i < columns; i++) bits |= unsigned(u[column + i] + other[i] > 0) << (7 - i);
    signs[e * bytes + column / 8] = static_cast<unsigned char>(bits);
  }
}

// The sum over the entries of a task of a head's values, times `slope` where a bit is 0: bit `highest` of a
// byte and those below, by column.
template <int V, class T, class Index>
__device__ inline Pack<T, V> slope_sum(const Piece& task, const Index* order, const T* values, int heads,
                                       const unsigned char* signs, int bytes, int highest, T slope) {
  constexpr int U = IN_FLIGHT<T, Index, 1>;
  Pack<T, V> sum{};
  const auto read = [&](int e) { return order ? __ldcs(order + task.begin + e) : Index(task.begin + e); };
  const auto add = [&](bool whole, const Index* entry, int at) {
    T value[U];
    unsigned bits[U];
#pragma unroll
    for (int n = 0; n < U; n++)
      if (whole || at + n < task.length) {
        bits[n] = *advance(signs, entry[n], bytes);
        value[n] = *advance(values, Index(at + n), heads * int(sizeof(T)));
      }
#pragma unroll
    for (int n = 0; n < U; n++)
      if (whole || at + n < task.length)
#pragma unroll
        for (int i = 0; i < V; i++) sum.at[i] += bits[n] >> (highest - i) & 1 ? value[n] : slope * value[n];
  };
  in_turns<U, Index>(task.length, task.length, read, add);
  return sum;
}

// out[i, c] = the sum of values[e, k] over the entries of row i, with k the head of column c, times `slope`
// where the entry's bit is 0; plus what is there with `accumulate`. order: null, or whose bits an entry has. G
// lanes per task, each on V columns at a time. parts: (pieces, f).
template <class T, class Index, int G, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, Index>)
    edge_slopes(int64 tasks, const Piece* __restrict__ table, int* arrived, int heads,
                const int64* __restrict__ bounds, int even, const T* __restrict__ values,
                const Index* __restrict__ order, const unsigned char* __restrict__ signs, int f, T slope,
                T* out, T* parts, int accumulate) {
  const int64 number = flat_index() / G;
  if (number >= tasks) return;
  const Piece task = table[number];
  if (!task.count) return;
  rows_of_sums<G, V>(task, int(number), f, out, parts, arrived, accumulate, [&](int column) {
    const T* own = values + task.begin * heads + head_of(column, bounds, even);
    return slope_sum<V>(task, order, own, heads, signs + column / 8, (f + 7) / 8, 7 - column % 8, slope);
  });
}
