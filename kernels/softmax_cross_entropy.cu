// Masked softmax cross-entropy and its gradient. G lanes of a warp per row, a power of two, which keep its logits in
// registers and read them once; those of rows that do not fit three times, from DRAM once. The gradient may be rounded to
// 16 bits. Rows that are cut over ranks take array operations (distgnn/nn/loss.py).

#include "common.cuh"

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }

// The largest logit of no logits: finite, so that the exponential of a difference is 0 and never NaN.
template <class T> __device__ inline T lowest() {
  return T(sizeof(T) == 4 ? -3.4028234e38 : -1.7976931348623157e308);
}

// A lane's share of a row of whole vectors of V numbers: K of them at a time, G apart.
template <class T, int V, int K> struct Lane {
  int G, first, vectors;
  Pack<T, V> x[K];

  // Calls what(k, v, column) for the numbers of the vectors from `start` on.
  template <class F> __device__ inline void each(int start, F what) const {
#pragma unroll
    for (int k = 0; k < K; k++)
      if (start + k * G + first < vectors)
#pragma unroll
        for (int v = 0; v < V; v++) what(k, v, (start + k * G + first) * V + v);
  }

  __device__ inline void read(const T* row, int start) {
#pragma unroll
    for (int k = 0; k < K; k++)
      if (start + k * G + first < vectors) x[k] = load<V>(row + (start + k * G + first) * V);
  }

  template <class X> __device__ inline void write(X* row, int start, int* beyond) const {
#pragma unroll
    for (int k = 0; k < K; k++)
      if (start + k * G + first < vectors) {
        Pack<X, V> numbers;
#pragma unroll
        for (int v = 0; v < V; v++) numbers.at[v] = stored<X>(x[k].at[v], beyond);
        store(row + (start + k * G + first) * V, numbers);
      }
  }
};

// The loss of a row whose first logits, or all, are in `own`, for the lane that has the label's, and writes it; and the
// row's gradient, (softmax - onehot) scale. By all lanes of a warp. `gradient` may be `row`: a lane writes only what it
// has read.
template <class T, class X, int V, int K>
__device__ inline void of_row(Lane<T, V, K>& own, const T* row, X* gradient, int label, T scale, int* beyond,
                              double* loss) {
  const int step = own.G * K;
  const bool again = K > 1 && own.vectors > step;  // with K = 1 a row fits
  T highest = lowest<T>(), sum = 0, logit = 0;
  bool labelled = false;
#pragma unroll 1
  for (int at = 0; K > 1 ? at < own.vectors : at == 0; at += K > 1 ? step : 1) {
    if (at) own.read(row, at);
    own.each(at, [&](int k, int v, int) { highest = highest < own.x[k].at[v] ? own.x[k].at[v] : highest; });
  }
#pragma unroll
  for (int away = WARP / 2; away > 0; away /= 2) {
    const T other = __shfl_xor_sync(ALL_LANES, highest, away);
    if (away < own.G && highest < other) highest = other;
  }
#pragma unroll 1
  for (int at = 0; K > 1 ? at < own.vectors : at == 0; at += K > 1 ? step : 1) {
    if (again) own.read(row, at);
    own.each(at, [&](int k, int v, int column) {
      const T x = own.x[k].at[v] - highest;
      if (column == label) logit = x, labelled = true;
      sum += own.x[k].at[v] = exponential(x);
    });
  }
#pragma unroll
  for (int away = WARP / 2; away > 0; away /= 2) {
    const T other = __shfl_xor_sync(ALL_LANES, sum, away);
    if (away < own.G) sum += other;
  }
  const T share = T(1) / sum;
#pragma unroll 1
  for (int at = 0; K > 1 ? at < own.vectors : at == 0; at += K > 1 ? step : 1) {
    if (again) own.read(row, at);
    own.each(at, [&](int k, int v, int column) {
      const T e = again ? exponential(own.x[k].at[v] - highest) : own.x[k].at[v];
      own.x[k].at[v] = (e * share - T(column == label)) * scale;
    });
    own.write(gradient, at, beyond);
  }
  if (labelled) *loss = logarithm(sum) - logit;
}

// Logits of a lane that are on their way, where one row has so few; more doubles would spill.
template <class T> constexpr int IN_FLIGHT = sizeof(T) == 4 ? 16 : 4;

// Blocks that a multiprocessor must have room for; doubles spill on Blackwell where the compiler is free.
template <class T> constexpr int BLOCKS = sizeof(T) == 8 ? 2 : 0;

// position[r] is the place of row r among the training rows, or -1; labels and losses are indexed by place.
// gradient[r, :] for all m rows, in rows of `pitch`, zero where position[r] is -1 and from column f on. A group of lanes
// has some rows, one after the other, whose first logits are all on their way before it looks at one. V: divides f, and
// rows may be read and written V at a time. beyond: as of `narrowed`.
template <class T, class X, int V, int K>
__global__ void __launch_bounds__(THREADS, BLOCKS<T>)
    softmax_cross_entropy(int64 m, const int* __restrict__ position, const int64* __restrict__ labels,
                          const T* logits, int f, int G, T scale, int pitch, X* gradient, int* beyond,
                          double* __restrict__ losses) {
  constexpr int R = K * V < IN_FLIGHT<T> ? IN_FLIGHT<T> / (K * V) : 1;
  const int in_warp = threadIdx.x % WARP, group = in_warp / G, lane = in_warp - group * G;
  const int64 first = (flat_index() / WARP * (WARP / G) + group) * R;
  int place[R], label[R];
  Lane<T, V, K> own[R];
#pragma unroll
  for (int r = 0; r < R; r++) place[r] = first + r < m ? position[first + r] : -1;
#pragma unroll
  for (int r = 0; r < R; r++) {
    own[r].G = G, own[r].first = lane, own[r].vectors = place[r] < 0 ? 0 : f / V;
    label[r] = place[r] < 0 ? -1 : int(labels[place[r]]);
    own[r].read(logits + (first + r) * f, 0);
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    const int64 row = first + r;
    of_row(own[r], logits + row * f, gradient + row * pitch, label[r], scale, beyond, losses + place[r]);
    if (row < m)
      for (int c = (place[r] < 0 ? 0 : f) + lane; c < pitch; c += G) gradient[row * pitch + c] = X{};
  }
}
