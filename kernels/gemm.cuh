// What dense products on tensor cores share; included after common.cuh and tensor.cuh.
//
// A number is the sum of two of TF32 (split), and a product of two numbers the sum of three products: low high' + high
// low' + high high'. Tensor cores round their sums toward zero, each time the same way, so that they add up 16
// products of each kind, small ones first, and the result goes to a running sum by an addition that rounds to
// nearest (Ootomo and Yokota, 2022, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
// theoretical peak performance"). The order of a sum depends on the shape alone. An infinite number makes NaN.
//
// Which of 8 steps of k is which for a tensor core is chosen so that a thread reads neighbours from shared memory: its
// steps t and t + 4 are 2 t and 2 t + 1.

constexpr int CHUNK = 32;  // of k in shared memory at a time
constexpr int GROUP = 16;  // of k that tensor cores add up by themselves
constexpr int TEAM = 4 * WARP;    // threads that multiply together
constexpr int TEAMS = THREADS / TEAM;
constexpr int ROWS = 64;          // of a tile, which a team has

// Begins a copy of a panel to shared memory by N threads, UNIT numbers at a time; zeros where there is none.
template <int N, int OUTER, int INNER, int PITCH, int UNIT>
__device__ inline void copy_units(float* to, const float* from, int stride, int outer, int inner) {
  constexpr int UNITS = INNER / UNIT;
#pragma unroll 1  // else addresses of all turns take registers
  for (int i = threadIdx.x % N; i < OUTER * UNITS; i += N) {
    const int row = i / UNITS, column = i % UNITS * UNIT;
    const bool there = row < outer && column < inner;
    copy_later<UNIT>(to + row * PITCH + column, there ? from + int64(row) * stride + column : from, there);
  }
}

// The same of OUTER x INNER numbers at `at`, `stride` from row to row, of which outer x inner are there. unit: the
// numbers that may be copied together, 4, 2 or 1.
template <int N, int OUTER, int INNER, int PITCH>
__device__ inline void copy_panel(float* to, const float* at, int stride, int outer, int inner, int unit) {
  if (unit == 4)
    copy_units<N, OUTER, INNER, PITCH, 4>(to, at, stride, outer, inner);
  else if (unit == 2)
    copy_units<N, OUTER, INNER, PITCH, 2>(to, at, stride, outer, inner);
  else
    copy_units<N, OUTER, INNER, PITCH, 1>(to, at, stride, outer, inner);
}

// A's fragments for 16 of k, in two steps of 8.
struct Halves {
  float high[2][4], low[2][4];
};

// Begins sums = the product of a and the 16 of k that are held at b.
template <int F> __device__ inline void begin(float (&sums)[F][4], const Halves& a, const float* b) {
  begin_multiplying();
#pragma unroll
  for (int s = 0; s < 2; s++) multiply_tf32<F>(sums, a.low[s], b + 2 * s * F * 64, s > 0);
#pragma unroll
  for (int s = 0; s < 2; s++) multiply_tf32<F>(sums, a.high[s], b + (2 * s + 1) * F * 64, true);
#pragma unroll
  for (int s = 0; s < 2; s++) multiply_tf32<F>(sums, a.high[s], b + 2 * s * F * 64, true);
  commit_products();
}

// sums += fresh, once it is there; a: what was multiplied.
template <int F> __device__ inline void add(float (&sums)[F][4], float (&fresh)[F][4], Halves& a) {
  wait_for_products();
  hold_registers(fresh);
  hold_registers(a.high);
  hold_registers(a.low);
#pragma unroll
  for (int j = 0; j < F; j++)
#pragma unroll
    for (int v = 0; v < 4; v++) sums[j][v] += fresh[j][v];
}
