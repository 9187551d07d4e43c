// Layer norm of whole rows, forward and backward, a warp per row; sums are in double precision. Rows that are
// cut over ranks take array operations (distgnn/nn/norm.py).

#include "common.cuh"

__device__ inline double warp_sum(double x) {
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
  return x;
}

// N = (z - mean) scale with scale = 1 / sqrt(variance + epsilon), and out = gain N + shift. N is stored where
// `normal` is not null. `normal` or `out` may be z: a lane writes only entries that it has read.
template <class T>
__global__ void __launch_bounds__(THREADS)
    layer_norm(int64 m, int f, double epsilon, const T* __restrict__ gain, const T* __restrict__ shift,
               const T* z, T* normal, T* out, double* __restrict__ scales) {
  const int64 r = flat_index() / WARP;
  if (r >= m) return;  // whole warps leave
  const int lane = threadIdx.x % WARP;
  double sum = 0, squares = 0;
  for (int c = lane; c < f; c += WARP) sum += z[r * f + c];
  const double mean = warp_sum(sum) / f;
  for (int c = lane; c < f; c += WARP) {
    const double d = z[r * f + c] - mean;
    squares += d * d;
  }
  const double scale = 1 / sqrt(warp_sum(squares) / f + epsilon);
  for (int c = lane; c < f; c += WARP) {
    const T n = T((z[r * f + c] - mean) * scale);
    if (normal) normal[r * f + c] = n;
    out[r * f + c] = gain[c] * n + shift[c];
  }
  if (lane == 0) scales[r] = scale;
}

// gradient = (g' - mean(g') - N mean(N g')) scale with g' = gain gradient, in place. A warp has `height` rows;
// sums[warp, 0, :] and [warp, 1, :]: their sums of N gradient and of gradient. f is at most 128: a lane keeps
// the sums of COLUMNS columns.
constexpr int COLUMNS = 4;

template <class T>
__global__ void __launch_bounds__(THREADS)
    layer_norm_backward(int64 m, int f, int height, const T* __restrict__ normal,
                        const double* __restrict__ scales, const T* __restrict__ gain, T* gradient,
                        double* __restrict__ sums) {
  const int64 warp = flat_index() / WARP, first = warp * height, last = m - first < height ? m : first + height;
  if (first >= m) return;  // whole warps leave
  const int lane = threadIdx.x % WARP;
  double of_gain[COLUMNS] = {}, of_shift[COLUMNS] = {};
  for (int64 r = first; r < last; r++) {
    T n[COLUMNS], g[COLUMNS];
    double sum = 0, product = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      const int c = lane + i * WARP;
      if (c >= f) continue;
      n[i] = normal[r * f + c];
      g[i] = gradient[r * f + c];
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      if (lane + i * WARP >= f) continue;
      of_gain[i] += double(n[i]) * g[i];
      of_shift[i] += g[i];
      g[i] *= gain[lane + i * WARP];
      sum += g[i];
      product += double(n[i]) * g[i];
    }
    const double mean = warp_sum(sum) / f, along = warp_sum(product) / f, scale = scales[r];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
      if (lane + i * WARP < f) gradient[r * f + lane + i * WARP] = T((g[i] - (mean + n[i] * along)) * scale);
  }
#pragma unroll
  for (int i = 0; i < COLUMNS; i++) {
    const int c = lane + i * WARP;
    if (c >= f) continue;
    sums[warp * 2 * f + c] = of_gain[i];
    sums[(warp * 2 + 1) * f + c] = of_shift[i];
  }
}
