// What dense products on tensor cores share; included after common.cuh and tensor.cuh.
//
// A number is the sum of two PARTS of TF32 (split), and a product of two numbers the sum of three products: low
// high' + high low' + high high'. A number of 16 bits has one part; so have all where they are rounded to TF32.
// Then what is low is left out. Tensor cores round their sums toward zero, each time the same way, so that
// they add up 16 products of each kind, small ones first, and the result goes to a running sum by an addition
// that rounds to nearest (Ootomo and Yokota, 2022, "Recovering single precision accuracy from Tensor Cores
// while surpassing the FP32 theoretical peak performance"). The order of a sum depends on the shape alone. An
// infinite number makes NaN.
//
// Which of 8 steps of k is which for a tensor core is chosen so that a thread reads neighbours from shared
// memory: its steps t and t + 4 are 2 t and 2 t + 1. Columns are multiplied in two halves, so that one is
// under way while the sums of the other are added up.

constexpr int CHUNK = 32;  // of k in shared memory at a time
constexpr int GROUP = 16;  // of k that tensor cores add up by themselves
constexpr int TEAM = 4 * WARP;    // threads that multiply together
constexpr int TEAMS = THREADS / TEAM;
constexpr int ROWS = 64;          // of a tile, which a team has

// The parts of x; low is 0 where it counts for nothing.
template <int PARTS> __device__ inline void split_in(float x, float& high, float& low) {
  if constexpr (PARTS == 2)
    split(x, high, low);
  else
    high = rounded_to_tf32(x), low = 0.0f;
}

// Begins a copy of a panel to shared memory by N threads, UNIT numbers at a time; zeros where there is none.
template <int N, int OUTER, int INNER, int PITCH, int UNIT>
__device__ inline void copy_units(float* to, const float* from, int stride, int outer, int inner) {
  constexpr int UNITS = INNER / UNIT, DOWN = N / UNITS;
  static_assert(DOWN > 0);
  const int thread = threadIdx.x % N, top = thread / UNITS, column = thread % UNITS * UNIT;
  if (top >= DOWN) return;  // N is no multiple of UNITS
  if (column >= inner) outer = 0;
  from += int64(top) * stride + column;
  to += top * PITCH + column;
#pragma unroll 4
  for (int row = top; row < OUTER; row += DOWN) {
    copy_later<UNIT>(to, from, row < outer);
    from += int64(DOWN) * stride;
    to += DOWN * PITCH;
  }
}

// The same of OUTER x INNER numbers at `at`, `stride` from row to row, of which outer x inner are there.
// unit: the numbers that may be copied together, 4, 2 or 1.
template <int N, int OUTER, int INNER, int PITCH>
__device__ inline void copy_panel(float* to, const float* at, int stride, int outer, int inner, int unit) {
  if (unit == 4)
    copy_units<N, OUTER, INNER, PITCH, 4>(to, at, stride, outer, inner);
  else if (unit == 2)
    copy_units<N, OUTER, INNER, PITCH, 2>(to, at, stride, outer, inner);
  else
    copy_units<N, OUTER, INNER, PITCH, 1>(to, at, stride, outer, inner);
}

// The same of numbers of type X. Of 16 bits, whose rows are whole vectors, 8 are copied together, as words.
template <int N, int OUTER, int INNER, int PITCH, class X>
__device__ inline void copy_numbers(X* to, const X* at, int stride, int outer, int inner, [[maybe_unused]] int unit) {
  if constexpr (sizeof(X) == sizeof(float))
    copy_panel<N, OUTER, INNER, PITCH>(to, at, stride, outer, inner, unit);
  else
    copy_units<N, OUTER, INNER / 2, PITCH / 2, 4>(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(at),
                                                  stride / 2, outer, inner / 2);
}

// The parts of two neighbours in memory.
template <int PARTS, class X> __device__ inline void split_two(const X* at, float (&high)[2], float (&low)[2]) {
  if constexpr (sizeof(X) == sizeof(float)) {
    const auto x = load<2>(at);
#pragma unroll
    for (int i = 0; i < 2; i++) split_in<PARTS>(x.at[i], high[i], low[i]);
  } else {
    X::widen(*reinterpret_cast<const unsigned*>(at), high[0], high[1]);
    low[0] = low[1] = 0.0f;
  }
}

// The numbers of a row, of which `columns` are the matrix's: all, of float32.
template <class X> __device__ inline int row_of(int columns, int stride) {
  return sizeof(X) == sizeof(float) ? columns : stride;
}

// A's fragments for 16 of k, in two steps of 8.
struct Halves {
  float high[2][4], low[2][4];
};

// Begins sums = the product of a and 16 of k at b, for H of the F fragments that lie there.
template <int F, int A_PARTS, int B_PARTS, int H>
__device__ inline void begin(float (&sums)[H][4], const Halves& a, const float* b) {
  constexpr int STEP = B_PARTS * F * 64;
  begin_multiplying();
  if constexpr (A_PARTS == 2)
#pragma unroll
    for (int s = 0; s < 2; s++) multiply_tf32<H>(sums, a.low[s], b + s * STEP, s > 0);
  if constexpr (B_PARTS == 2)
#pragma unroll
    for (int s = 0; s < 2; s++) multiply_tf32<H>(sums, a.high[s], b + s * STEP + F * 64, A_PARTS == 2 || s > 0);
#pragma unroll
  for (int s = 0; s < 2; s++) multiply_tf32<H>(sums, a.high[s], b + s * STEP, A_PARTS + B_PARTS > 2 || s > 0);
  commit_products();
}

// Adds what is there when all products but the last N are, to the sums of H fragments from `first` on.
template <int N, int F, int H> __device__ inline void add(float (&sums)[F][4], int first, float (&fresh)[H][4]) {
  wait_for_products<N>();
  hold_registers(fresh);
#pragma unroll
  for (int j = 0; j < H; j++)
#pragma unroll
    for (int v = 0; v < 4; v++) sums[first + j][v] += fresh[j][v];
}

// Adds the product of a, 32 of k, and what lies at b. `load` makes what is multiplied next.
template <int F, int A_PARTS, int B_PARTS, class Load>
__device__ inline void multiply(float (&sums)[F][4], Halves (&a)[2], const float* b, Load load) {
  constexpr int H = F / 2;
  float left[H][4], right[H][4];
  const float* middle = b + GROUP * (8 * B_PARTS * F);
  begin<F, A_PARTS, B_PARTS>(left, a[0], b);
  begin<F, A_PARTS, B_PARTS>(right, a[0], b + H * 64);
  add<1>(sums, 0, left);
  begin<F, A_PARTS, B_PARTS>(left, a[1], middle);
  add<1>(sums, H, right);
  begin<F, A_PARTS, B_PARTS>(right, a[1], middle + H * 64);
  load();
  add<1>(sums, 0, left);
  add<0>(sums, H, right);
#pragma unroll
  for (int g = 0; g < 2; g++) {
    hold_registers(a[g].high);
    if constexpr (A_PARTS == 2) hold_registers(a[g].low);
  }
}
