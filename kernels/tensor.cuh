// Tensor cores, asynchronous copies and dynamic shared memory: what sm_80 and later have, and the emulation.

// The dynamic shared memory of a block, at a multiple of 16 bytes.
__device__ inline float* block_memory() {
#ifdef __CUDACC__
  extern __shared__ uint4 dynamic_memory[];
  return reinterpret_cast<float*>(dynamic_memory);
#else
  return reinterpret_cast<float*>(emulation::block_memory());
#endif
}

// Begins a copy of N floats to shared memory; zeros come where they are not `there`, and nothing is read.
template <int N> __device__ inline void copy_later(float* to, const float* from, bool there) {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 800
  const unsigned target = unsigned(__cvta_generic_to_shared(to));
  const int bytes = there ? N * 4 : 0;
  if constexpr (N == 4)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(from), "n"(N * 4), "r"(bytes)
                 : "memory");
#endif
#else
  emulation::copy_later(to, from, N * 4, there ? N * 4 : 0);
#endif
}

// Ends a group of copies of this thread.
__device__ inline void commit_copies() {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
#else
  emulation::commit_copies();
#endif
}

// Waits for this thread's groups of copies, but for the last N.
template <int N> __device__ inline void wait_for_copies() {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
#else
  emulation::wait_for_copies(N);
#endif
}

// D += A B by a warp, A (16, 8) and B (8, 8) of TF32: of what it is given the lowest 13 bits count for nothing, and the
// sum is rounded toward zero. Lane 4 r + t has A[r][t], A[r + 8][t], A[r][t + 4], A[r + 8][t + 4]; B[t][r],
// B[t + 4][r]; and D[r][2 t], D[r][2 t + 1], D[r + 8][2 t], D[r + 8][2 t + 1].
__device__ inline void multiply_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#else
  __trap();
#endif
#else
  emulation::multiply_tf32(d, a, b);
#endif
}

// x = high + low, up to 2^-23 of x: high is x rounded to TF32 (11 bits, ties away from zero), low the rest, of which
// multiply_tf32 takes 11 bits. From 2^128 - 2^116 on high is cut off, lest it be infinite. If x is infinite, low is NaN.
__device__ inline void split(float x, float& high, float& low) {
  constexpr float LARGE = 0x1.FFEp127f;
  const unsigned bits = __float_as_uint(x);
  high = __uint_as_float((fabsf(x) < LARGE ? bits + 0x1000u : bits) & ~0x1FFFu);
  low = x - high;
}
