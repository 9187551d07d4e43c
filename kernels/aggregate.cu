// The best neighbour in each column, and where gradients go; see kernels/host/aggregate.h.

#include "common.cuh"

template <class T> struct CodeOf;
template <> struct CodeOf<float> {
  using type = int;
};
template <> struct CodeOf<double> {
  using type = int64;
};
template <class T> using Code = typename CodeOf<T>::type;

// A number, and the code of the column where it is; -1 where there is none.
template <class T> struct Best {
  T x;
  Code<T> code;

  // Becomes (y, other) if that is better: NaN before all numbers, of equals the smaller code.
  __device__ void take(T y, Code<T> other) {
    const bool missing = y != y, lost = x != x;
    const bool equal = y == x || (missing && lost);
    const bool before = code < 0 || (other >= 0 && other < code);
    if (y > x || (missing && !lost) || (equal && before)) {
      x = y;
      code = other;
    }
  }
};

// Lanes stand side by side on a row; `lowest` is -inf. Without values an entry makes b of an entry b of B, else
// a b, or a + b.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
    best(int m, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ values,
         const T* __restrict__ B, int f, const Code<T>* __restrict__ codes, int64 first, int plus, int least,
         int merge, int lanes, T lowest, T* __restrict__ out, Code<T>* __restrict__ held) {
  const int64 row = flat_index() / lanes;
  if (row >= m) return;
  const T sign = T(least ? -1 : 1);
  for (int c = threadIdx.x % lanes; c < f; c += lanes) {
    const int64 at = row * f + c;
    Best<T> found{lowest, Code<T>(-1)};
    if (merge) found = {sign * out[at], held[at]};
    for (I p = indptr[row]; p < indptr[row + 1]; p++) {
      const I j = indices[p];
      const T b = B[int64(j) * f + c], x = values == nullptr ? b : plus ? values[p] + b : values[p] * b;
      found.take(sign * x, codes == nullptr ? Code<T>(first + j) : codes[j]);
    }
    out[at] = sign * found.x;
    held[at] = found.code;
  }
}

// Row j of the transposed block adds up G[i, :], times the entry's value if there are some, where `held` has its
// code. No two threads meet, and the order is that of the rows i.
template <class T, class I>
__global__ void __launch_bounds__(THREADS)
    best_back(int k, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ values,
              const T* __restrict__ gradient, const Code<T>* __restrict__ held, int f,
              const Code<T>* __restrict__ codes, int64 first, int lanes, T* __restrict__ out) {
  const int64 row = flat_index() / lanes;
  if (row >= k) return;
  const Code<T> own = codes == nullptr ? Code<T>(first + row) : codes[row];
  for (int c = threadIdx.x % lanes; c < f; c += lanes) {
    T sum = 0;
    for (I p = indptr[row]; p < indptr[row + 1]; p++) {
      const int64 at = int64(indices[p]) * f + c;
      if (held[at] == own) sum += values == nullptr ? gradient[at] : gradient[at] * values[p];
    }
    out[row * f + c] = sum;
  }
}
