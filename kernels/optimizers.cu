// One pass over a parameter, its gradient and its state, by the formulas of distgnn/local/elementwise.py.

#include "common.cuh"

__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }

// Kingma and Ba, Algorithm 1. w shrinks by `shrink` first (AdamW); `decay` w joins the gradient (L2 penalty).
// rate = lr / (1 - first^t), correction = 1 - second^t, rest = 1 - first, rest2 = 1 - second (in double).
template <class T>
__global__ void __launch_bounds__(THREADS)
    adam(int64 size, T rate, T correction, T first, T second, T rest, T rest2, T epsilon, T decay, T shrink,
         const T* __restrict__ gradient, T* __restrict__ w, T* __restrict__ m, T* __restrict__ v) {
  const int64 i = flat_index();
  if (i >= size) return;
  const T x = w[i] * shrink, g = gradient[i] + decay * x;
  m[i] = first * m[i] + rest * g;
  v[i] = second * v[i] + rest2 * (g * g);
  w[i] = x - rate * m[i] / (root(v[i] / correction) + epsilon);
}
