// One pass over parameters, their gradients and their state, by the formulas of distgnn/local/elementwise.py.
//
// A launch takes up to PARTS arrays, as a network has a few small parameters in each layer; those that are not
// there have size 0. Threads are laid over one array after the other, in whole blocks.

#include "common.cuh"

constexpr int PARTS = 8;

__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }

// Whether the square of x is finite: that of the largest numbers is not, nor is what Adam makes of it.
__device__ inline bool square_is_finite(float x) { return x * x <= 3.402823466e+38f; }
__device__ inline bool square_is_finite(double x) { return x * x <= 1.7976931348623157e+308; }

// a + b c, rounded twice, as it is where array operations do it one after the other.
#ifdef __CUDA_ARCH__
__device__ inline float plus_product(float a, float b, float c) { return __fadd_rn(a, __fmul_rn(b, c)); }
__device__ inline double plus_product(double a, double b, double c) { return __dadd_rn(a, __dmul_rn(b, c)); }
#else
template <class T> __device__ inline T plus_product(T a, T b, T c) { return a + b * c; }
#endif

// An array that is trained. state: the moments of Adam; of SGD the velocity, or null.
template <class T> struct Part {
  int64 size;
  T shrink, decay;
  const T* gradient;
  T *w, *m, *v;
};

// The part that this block is laid over, its number, and the element of this thread: from size on it has none.
template <class T> struct Place {
  Part<T> part;
  int number;
  int64 at;
};

template <class T> __device__ inline Place<T> place_in(const Part<T> (&parts)[PARTS]) {
  Place<T> place{};
  int64 block = blockIdx.x;
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    const int64 blocks = (parts[i].size + THREADS - 1) / THREADS;
    if (block >= 0 && block < blocks) place = {parts[i], i, block * THREADS + int(threadIdx.x)};
    block -= blocks;
  }
  return place;
}

// The gradient, scaled down where the norm of all is larger than `most`; square: that of the norm, or null.
template <class T> __device__ inline T clipped(T gradient, const double* square, double most) {
  if (!square) return gradient;
  const double norm = sqrt(*square);
  return norm <= 1.7976931348623157e+308 ? T(gradient * (most / (norm > most ? norm : most))) : gradient;
}

// Kingma and Ba, Algorithm 1. w shrinks by `shrink` first (AdamW); `decay` w joins the gradient (L2 penalty).
// rate = lr / (1 - first^t), correction = 1 - second^t, rest = 1 - first, rest2 = 1 - second (in double).
// factors: rate, correction and every part's shrink, in place of the arguments; or null. bad: 1 is written to
// bad[i] where the gradient of part i has a number whose square is not finite, to bad[count + i] where the new w
// has one.
template <class T>
__global__ void __launch_bounds__(THREADS)
    adam(T rate, T correction, T first, T second, T rest, T rest2, T epsilon,
         const double* __restrict__ factors, const double* __restrict__ square, double most, int count,
         int* bad,
         int64 size0, T shrink0, T decay0, const T* gradient0, T* w0, T* m0, T* v0,
         int64 size1, T shrink1, T decay1, const T* gradient1, T* w1, T* m1, T* v1,
         int64 size2, T shrink2, T decay2, const T* gradient2, T* w2, T* m2, T* v2,
         int64 size3, T shrink3, T decay3, const T* gradient3, T* w3, T* m3, T* v3,
         int64 size4, T shrink4, T decay4, const T* gradient4, T* w4, T* m4, T* v4,
         int64 size5, T shrink5, T decay5, const T* gradient5, T* w5, T* m5, T* v5,
         int64 size6, T shrink6, T decay6, const T* gradient6, T* w6, T* m6, T* v6,
         int64 size7, T shrink7, T decay7, const T* gradient7, T* w7, T* m7, T* v7) {
  const Part<T> parts[PARTS] = {
      {size0, shrink0, decay0, gradient0, w0, m0, v0}, {size1, shrink1, decay1, gradient1, w1, m1, v1},
      {size2, shrink2, decay2, gradient2, w2, m2, v2}, {size3, shrink3, decay3, gradient3, w3, m3, v3},
      {size4, shrink4, decay4, gradient4, w4, m4, v4}, {size5, shrink5, decay5, gradient5, w5, m5, v5},
      {size6, shrink6, decay6, gradient6, w6, m6, v6}, {size7, shrink7, decay7, gradient7, w7, m7, v7}};
  const Place<T> place = place_in(parts);
  const Part<T>& p = place.part;
  const int64 i = place.at;
  if (i >= p.size) return;
  if (factors) rate = T(factors[0]), correction = T(factors[1]);
  const T shrink = factors ? T(factors[2 + place.number]) : p.shrink;
  const T given = p.gradient[i], scaled = clipped(given, square, most);
  const T x = p.w[i] * shrink, g = scaled + p.decay * x;
  const T m = first * p.m[i] + rest * g, v = second * p.v[i] + rest2 * (g * g);
  const T w = x - rate * m / (root(v / correction) + epsilon);
  p.m[i] = m;
  p.v[i] = v;
  p.w[i] = w;
  if (!square_is_finite(given)) bad[place.number] = 1;
  if (!square_is_finite(w)) bad[count + place.number] = 1;
}

// v <- momentum v + (g + decay w);  w <- w - rate v. Where v is null, w <- w - rate (g + decay w).
// factors: the rate, in place of the argument; or null. shrink and m are not used. All else as for adam.
template <class T>
__global__ void __launch_bounds__(THREADS)
    sgd(T rate, T momentum, const double* __restrict__ factors, const double* __restrict__ square,
        double most, int count, int* bad,
        int64 size0, T shrink0, T decay0, const T* gradient0, T* w0, T* m0, T* v0,
        int64 size1, T shrink1, T decay1, const T* gradient1, T* w1, T* m1, T* v1,
        int64 size2, T shrink2, T decay2, const T* gradient2, T* w2, T* m2, T* v2,
        int64 size3, T shrink3, T decay3, const T* gradient3, T* w3, T* m3, T* v3,
        int64 size4, T shrink4, T decay4, const T* gradient4, T* w4, T* m4, T* v4,
        int64 size5, T shrink5, T decay5, const T* gradient5, T* w5, T* m5, T* v5,
        int64 size6, T shrink6, T decay6, const T* gradient6, T* w6, T* m6, T* v6,
        int64 size7, T shrink7, T decay7, const T* gradient7, T* w7, T* m7, T* v7) {
  const Part<T> parts[PARTS] = {
      {size0, shrink0, decay0, gradient0, w0, m0, v0}, {size1, shrink1, decay1, gradient1, w1, m1, v1},
      {size2, shrink2, decay2, gradient2, w2, m2, v2}, {size3, shrink3, decay3, gradient3, w3, m3, v3},
      {size4, shrink4, decay4, gradient4, w4, m4, v4}, {size5, shrink5, decay5, gradient5, w5, m5, v5},
      {size6, shrink6, decay6, gradient6, w6, m6, v6}, {size7, shrink7, decay7, gradient7, w7, m7, v7}};
  const Place<T> place = place_in(parts);
  const Part<T>& p = place.part;
  const int64 i = place.at;
  if (i >= p.size) return;
  if (factors) rate = T(factors[0]);
  const T given = p.gradient[i], x = p.w[i];
  T g = clipped(given, square, most);
  if (p.decay != T(0)) g = plus_product(g, p.decay, x);
  if (p.v) p.v[i] = g = plus_product(g, momentum, p.v[i]);
  const T w = plus_product(x, -rate, g);
  p.w[i] = w;
  if (!square_is_finite(given)) bad[place.number] = 1;
  if (!square_is_finite(w)) bad[count + place.number] = 1;
}

// The sum over a block's threads, in one order, at thread 0. room: THREADS numbers of shared memory.
__device__ inline double block_sum(double x, double* room) {
  room[threadIdx.x] = x;
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half) room[threadIdx.x] += room[threadIdx.x + half];
  }
  __syncthreads();
  return room[0];
}

// *square = the squares of all numbers of these arrays, added up in double in one order; `add`: and what it was.
// At most THREADS blocks. sums: a number for each of them; arrived: 0 before and after.
template <class T>
__global__ void __launch_bounds__(THREADS)
    sum_squares(int add, double* sums, int* arrived, double* square,
                int64 size0, const T* x0, int64 size1, const T* x1, int64 size2, const T* x2,
                int64 size3, const T* x3, int64 size4, const T* x4, int64 size5, const T* x5,
                int64 size6, const T* x6, int64 size7, const T* x7) {
  __shared__ double room[THREADS];
  __shared__ int last;
  const int64 sizes[PARTS] = {size0, size1, size2, size3, size4, size5, size6, size7};
  const T* const arrays[PARTS] = {x0, x1, x2, x3, x4, x5, x6, x7};
  double sum = 0;
#pragma unroll
  for (int part = 0; part < PARTS; part++)
    for (int64 i = flat_index(); i < sizes[part]; i += int64(gridDim.x) * THREADS)
      sum += double(arrays[part][i]) * double(arrays[part][i]);
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(arrived, 1) == int(gridDim.x) - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  sum = block_sum(threadIdx.x < gridDim.x ? __ldcg(sums + threadIdx.x) : 0.0, room);
  if (threadIdx.x == 0) {
    *square = add ? *square + sum : sum;
    *arrived = 0;
  }
}
