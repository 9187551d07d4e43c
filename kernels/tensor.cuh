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

// Waits until all N threads of a team, one of two of the block, have come here.
template <int N> __device__ inline void wait_for_team(int team) {
#ifdef __CUDACC__
  if (team)
    asm volatile("bar.sync 2, %0;" ::"n"(N) : "memory");
  else
    asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory");
#else
  emulation::wait_for_team(team, N);
#endif
}

// The tensor cores of sm_90a. A warp group, four warps, multiplies A (64, 8), in registers, by B (8, 8 F) in
// shared memory: D = A B, or D += A B with `add`. Of what it is given the lowest 13 bits count for nothing,
// and sums are rounded toward zero. Warp w has rows 16 w of A and D; lane 4 r + t has A[r][t], A[r + 8][t],
// A[r][t + 4], A[r + 8][t + 4], and for each 8 columns D[r][2 t], D[r][2 t + 1], D[r + 8][2 t], D[r + 8][2 t
// + 1]. B[k][n] lies at 64 (n / 8) + 32 (k / 4) + 4 (n % 8) + k % 4.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FOUR(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
template <int F> struct Wgmma;
template <> struct Wgmma<1> {
  static __device__ inline void multiply(float (&d)[1][4], const unsigned (&a)[4], uint64 b, int add) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %9, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3"
        "}, {%4, %5, %6, %7}, %8, p, 1, 1;\n\t}"
        : FOUR(d[0])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
  }
};
template <> struct Wgmma<3> {
  static __device__ inline void multiply(float (&d)[3][4], const unsigned (&a)[4], uint64 b, int add) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %17, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n24k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
        "}, {%12, %13, %14, %15}, %16, p, 1, 1;\n\t}"
        : FOUR(d[0]), FOUR(d[1]), FOUR(d[2])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
  }
};
template <> struct Wgmma<4> {
  static __device__ inline void multiply(float (&d)[4][4], const unsigned (&a)[4], uint64 b, int add) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n\t}"
        : FOUR(d[0]), FOUR(d[1]), FOUR(d[2]), FOUR(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
  }
};
template <> struct Wgmma<8> {
  static __device__ inline void multiply(float (&d)[8][4], const unsigned (&a)[4], uint64 b, int add) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n\t}"
        : FOUR(d[0]), FOUR(d[1]), FOUR(d[2]), FOUR(d[3]), FOUR(d[4]), FOUR(d[5]), FOUR(d[6]), FOUR(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
  }
};
#undef FOUR

// The descriptor of B at this place: parts of 4 steps of k 128 bytes apart, of 8 columns 256.
__device__ inline uint64 described(const float* b) {
  return (unsigned(__cvta_generic_to_shared(b)) >> 4 & 0x3FFF) | uint64(128 >> 4) << 16 | uint64(256 >> 4) << 32;
}
#endif

template <int F>
__device__ inline void multiply_tf32(float (&d)[F][4], const float (&a)[4], const float* b, bool add) {
#ifdef __CUDACC__
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const unsigned words[4] = {__float_as_uint(a[0]), __float_as_uint(a[1]), __float_as_uint(a[2]),
                             __float_as_uint(a[3])};
  Wgmma<F>::multiply(d, words, described(b), add);
#else
  __trap();
#endif
#else
  emulation::multiply_tf32(d[0], F, a, b, add);
#endif
}

// What is multiplied from here on may read the registers that were written before.
__device__ inline void begin_multiplying() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Ends what is multiplied together, and begins it.
__device__ inline void commit_products() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits for all products but for the last N that were committed; before, nobody may touch their registers.
template <int N> __device__ inline void wait_for_products() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

// Keeps registers where they are until here.
template <int F, int R> __device__ inline void hold_registers([[maybe_unused]] float (&x)[F][R]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma unroll
  for (int i = 0; i < F; i++)
#pragma unroll
    for (int r = 0; r < R; r++) asm volatile("" : "+f"(x[i][r])::"memory");
#endif
}

// What this thread stored in shared memory may be read by tensor cores, after a barrier.
__device__ inline void show_tensor_cores() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// x = high + low, up to 2^-23 of x: high is x rounded to TF32 (11 bits, ties away from zero), low the rest,
// of which multiply_tf32 takes 11 bits. From 2^128 - 2^116 on high is cut off, lest it be infinite. If x is
// infinite, low is NaN.
__device__ inline void split(float x, float& high, float& low) {
  constexpr float LARGE = 0x1.FFEp127f;
  const unsigned bits = __float_as_uint(x);
  high = __uint_as_float((fabsf(x) < LARGE ? bits + 0x1000u : bits) & ~0x1FFFu);
  low = x - high;
}

// x rounded to TF32 as `split` rounds it. NaN stays NaN, whose payload may lie in the lowest bits alone.
__device__ inline float rounded_to_tf32(float x) {
  float high, low;
  split(x, high, low);
  return x != x ? __uint_as_float(0x7FC00000u) : high;
}
