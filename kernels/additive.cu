// Additive attention over the stored entries of a CSR pattern, a number per head: scores a . leaky ReLU(u[i] + v[j]) with
// a bit for each entry and column, and sums of slopes by these bits. Rows, pieces and heads as in edges.cu.
//
// V columns at a time: 8, a byte of bits, where every head has a multiple of that; else 1.

#include "common.cuh"
#include "edges.cuh"

template <class T> __device__ inline T leaky(T x, T slope) { return x > 0 ? x : slope * x; }

// V numbers, by 16 bytes at a time.
template <class T, int V> __device__ inline void load_columns(const T* from, T (&x)[V]) {
  constexpr int W = V * sizeof(T) < 16 ? V : 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < V; i += W) {
    const Pack<T, W> some = load_read_only<W>(from + i);
#pragma unroll
    for (int k = 0; k < W; k++) x[i + k] = some.at[k];
  }
}

// out[e, k] = the sum of a leaky ReLU(u[i] + v[j]) in the columns of head k, f columns in all, by G lanes. With V = 8,
// signs (nnz, f / 8) are written, which sums are above 0, as of numpy.packbits.
template <class T, class Index, int G, int V>
__global__ void __launch_bounds__(THREADS, 4)
    edge_scores(int64 m, const Index* __restrict__ indptr, const Index* __restrict__ indices, int longest,
                const Piece* __restrict__ pieces, const int* __restrict__ total, int heads,
                const int64* __restrict__ bounds, int even, const T* __restrict__ u, const T* __restrict__ v,
                const T* __restrict__ a, int f, T slope, T* __restrict__ out, unsigned char* __restrict__ signs) {
  const Task<Index> task(flat_index() / WARP, m, indptr, longest, pieces, total);
  if (!task.there) return;  // whole warps leave
  u += task.row * f;
  sum_by_heads<G>(task, heads, bounds, even, out, [&](int64 e, int from, int to) {
    const T* other = v + int64(indices[e]) * f;
    T sum = 0;
#pragma unroll 1
    for (int c = from + threadIdx.x % G * V; c < to; c += G * V) {
      T x[V], y[V], weights[V];
      load_columns(u + c, x);
      load_columns(other + c, y);
      load_columns(a + c, weights);
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < V; i++) {
        x[i] += y[i];
        bits = bits << 1 | unsigned(x[i] > 0);
        sum += weights[i] * leaky(x[i], slope);
      }
      if (V == 8) signs[e * (f / 8) + c / 8] = static_cast<unsigned char>(bits);
    }
    return sum;
  });
}

// signs (nnz, ceil(f / 8)): which sums u[i] + v[j] are above 0, as of numpy.packbits.
template <class T, class Index>
__global__ void __launch_bounds__(THREADS, 4)
    edge_signs(int64 m, const Index* __restrict__ indptr, const Index* __restrict__ indices, int longest,
               const Piece* __restrict__ pieces, const int* __restrict__ total, const T* __restrict__ u,
               const T* __restrict__ v, int f, unsigned char* __restrict__ signs) {
  const Task<Index> task(flat_index() / WARP, m, indptr, longest, pieces, total);
  if (!task.there) return;
  const int bytes = (f + 7) / 8;
  u += task.row * f;
  for (int64 n = threadIdx.x % WARP; n < task.length * bytes; n += WARP) {
    const int64 e = task.begin + n / bytes;
    const int column = int(n % bytes) * 8, columns = f - column < 8 ? f - column : 8;
    const T* other = v + int64(indices[e]) * f + column;
    unsigned bits = 0;
    for (int i = 0; i < columns; i++) bits |= unsigned(u[column + i] + other[i] > 0) << (7 - i);
    signs[e * bytes + column / 8] = static_cast<unsigned char>(bits);
  }
}

// out[i, c] = the sum of values[e, k] over the entries of row i, with k the head of column c, times `slope` where the
// entry's bit is 0; plus what is there with `accumulate`; of pieces in rows of their own. order: null, or whose bits an
// entry has. G lanes per row, each on V columns at a time.
template <class T, class Index, int G, int V>
__global__ void __launch_bounds__(THREADS, 4)
    edge_slopes(int64 m, const Index* __restrict__ indptr, int longest, const Piece* __restrict__ pieces,
                const int* __restrict__ total, int heads, const int64* __restrict__ bounds, int even,
                const T* __restrict__ values, const Index* __restrict__ order,
                const unsigned char* __restrict__ signs, int f, T slope, T* __restrict__ out, int accumulate) {
  const int64 number = flat_index() / G;
  const Task<Index> task(number, m, indptr, longest, pieces, total);
  if (!task.there) return;
  const int64 end = task.begin + task.length;
  const int bytes = (f + 7) / 8;
  out += number * f;
  for (int column = threadIdx.x % G * V; column < f; column += G * V) {
    int head = even ? column / even : 0;
    if (!even)
      while (bounds[head + 1] <= column) head++;
    T sum[V] = {};
#pragma unroll 4
    for (int64 e = task.begin; e < end; e++) {
      const T value = values[e * heads + head], less = slope * value;
      const unsigned bits = signs[(order ? int64(order[e]) : e) * bytes + column / 8];
#pragma unroll
      for (int i = 0; i < V; i++) sum[i] += bits >> (7 - (column + i) % 8) & 1 ? value : less;
    }
#pragma unroll
    for (int i = 0; i < V; i++) out[column + i] = accumulate ? out[column + i] + sum[i] : sum[i];
  }
}
