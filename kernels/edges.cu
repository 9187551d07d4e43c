// Products and dot products over the stored entries of a CSR pattern, each of which has a number per head: nnz
// x heads, in the order of the entries. A head has the columns bounds[k] to bounds[k + 1] of the dense matrices
// beside it, or `even` of them. And the table of tasks that these kernels, and those of edge_softmax.cu and
// additive.cu, take.

#include "common.cuh"
#include "edges.cuh"

// The table of tasks: `most` pieces, of which there are *total, then the m rows in the order of `rows` (null:
// theirs), but for those of more than `longest` entries (0: all are whole). Grid: most + m threads.
template <class Index>
__global__ void __launch_bounds__(THREADS)
    edge_tasks(int m, int most, const int* __restrict__ total, const Piece* __restrict__ pieces, int longest,
               const Index* __restrict__ indptr, const int* __restrict__ rows, Piece* __restrict__ tasks) {
  const int64 at = flat_index(), number = at - most;
  if (number >= m) return;
  Piece task{};
  if (number < 0) {
    if (at < *total) task = pieces[at];
  } else {
    const int row = rows ? rows[number] : int(number);
    const int64 begin = indptr[row], length = indptr[row + 1] - begin;
    if (!longest || length <= longest) task = {begin, int(length), row, 0, 1};
  }
  tasks[at] = task;
}

// out[e, k] = the product of u[i] and v[j] in the columns of head k, f columns in all; V columns at a time, of
// which every head has a multiple, by G lanes.
template <class T, class Index, int G, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, Index>)
    edge_dots(int64 tasks, const Piece* __restrict__ table, const Index* __restrict__ indices, int heads,
              const int64* __restrict__ bounds, int even, const T* __restrict__ u, const T* __restrict__ v,
              int f, T* __restrict__ out) {
  constexpr int U = IN_FLIGHT<T, Index, V>;
  const int64 number = flat_index() / WARP;
  if (number >= tasks) return;
  const Piece task = table[number];
  if (!task.count || !task.length) return;
  u += int64(task.row) * f;
  const auto add = [&](bool whole, const Index* j, int there, int64, int, int from, int to, T* sums) {
#pragma unroll 1
    for (int c = from + threadIdx.x % G * V; c < to; c += G * V) {
      const Pack<T, V> a = load_read_only<V>(u + c);
      Pack<T, V> b[U];
#pragma unroll
      for (int n = 0; n < U; n++)
        if (whole || n < there) b[n] = load_read_only<V>(advance(v + c, j[n], f * int(sizeof(T))));
#pragma unroll
      for (int n = 0; n < U; n++)
        if (whole || n < there)
#pragma unroll
          for (int i = 0; i < V; i++) sums[n] += a.at[i] * b[n].at[i];
    }
  };
  sum_by_heads<G, U>(task, indices, heads, bounds, even, out, add);
}

// A column of A, and the entry whose values count.
template <class Index> struct Named {
  Index column, entry;
};

// The sum of values[e, head] B[j, column...] over the entries of a task.
template <int V, bool ORDERED, class T, class Index>
__device__ inline Pack<T, V> weighted_sum(const Piece& task, const Index* indices, const T* values,
                                          const Index* order, const T* B, int heads, int f) {
  constexpr int U = IN_FLIGHT<T, Index, V>;
  using Entry = Named<Index>;
  Pack<T, V> sum{};
  indices += task.begin;
  if (ORDERED)
    order += task.begin;
  else
    values += task.begin * heads;
  in_turns<U, Entry>(
      task.length, task.length,
      [&](int e) { return Entry{__ldcs(indices + e), ORDERED ? __ldcs(order + e) : Index(e)}; },
      [&](bool whole, const Entry* read, int at) {
        T weight[U];
        Pack<T, V> b[U];
#pragma unroll
        for (int n = 0; n < U; n++)
          if (whole || at + n < task.length) {
            b[n] = load_read_only<V>(advance(B, read[n].column, f * int(sizeof(T))));
            const Index entry = ORDERED ? read[n].entry : Index(at + n);
            weight[n] = load_read_only<1>(advance(values, entry, heads * int(sizeof(T)))).at[0];
          }
#pragma unroll
        for (int n = 0; n < U; n++)
          if (whole || at + n < task.length)
#pragma unroll
            for (int i = 0; i < V; i++) sum.at[i] += weight[n] * b[n].at[i];
      });
  return sum;
}

// out[i, c] = the sum of values[e, k] B[j, c] over the entries of row i, with k the head of column c; plus what
// is there with `accumulate`. order: null, or whose values an entry has. G lanes per task, each on V columns at
// a time, of which every head has a multiple. parts: (pieces, f).
template <class T, class Index, int G, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS<T, Index>)
    edge_products(int64 tasks, const Piece* __restrict__ table, int* arrived, const Index* __restrict__ indices,
                  int heads, const int64* __restrict__ bounds, int even, const T* __restrict__ values,
                  const Index* __restrict__ order, const T* __restrict__ B, int f, T* out, T* parts,
                  int accumulate) {
  const int64 number = flat_index() / G;
  if (number >= tasks) return;
  const Piece task = table[number];
  if (!task.count) return;
  rows_of_sums<G, V>(task, int(number), f, out, parts, arrived, accumulate, [&](int column) {
    const T* own = values + head_of(column, bounds, even);
    return order ? weighted_sum<V, true>(task, indices, own, order, B + column, heads, f)
                 : weighted_sum<V, false>(task, indices, own, order, B + column, heads, f);
  });
}
