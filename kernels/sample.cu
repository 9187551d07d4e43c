// Distinct entries drawn from the rows of a sparse matrix by inverse transform sampling on the row's prefix
// sum (Tripathy, Yelick and Buluç, MLSys 2024, section 4.1.2). The definition is in distgnn/sampling/rows.py;
// these kernels and kernels/host/sample.c draw the same entries, to the bit.
//
// A warp has a row. Each lane looks up a number of its own, a function of (key, position), and the warp takes
// what they found in the order of the numbers: a search costs a row as much for 32 numbers as for one.
//
// The bits of a prefix sum depend on the order of its additions: 32 entries take a warp 32 additions one
// after the other, of which lane l takes part in l + 1, where a scan would take five. With many rows in
// flight they hide behind the loads of others; a single row of millions of entries waits for them. Sums of
// ones are whole numbers. No product is added to anything, so fused multiply-adds cannot change a bit.

#include "common.cuh"

constexpr double LARGEST = 1.7976931348623157e308;  // that is finite

__device__ inline int lane_index() { return threadIdx.x % WARP; }

__device__ inline double uniform(uint64 state) { return double(splitmix64(state) >> 11) * 0x1p-53; }

// The first of 0 .. length - 1 for which a condition holds, as for all that follow; else `length`.
template <class Condition> __device__ inline int64 first_where(int64 length, Condition holds) {
  int64 low = 0;
  while (length > 0) {
    const int64 half = length / 2;
    if (holds(low + half)) length = half;
    else {
      low += half + 1;
      length -= half + 1;
    }
  }
  return low;
}

// A row with weights. What was drawn is marked in `picked`.
struct Weighted {
  int64 first, length;
  const double* weights;  // these three of all rows: an offset takes fewer registers than three addresses
  unsigned char* picked;
  double* prefix;
  double* staged;  // shared memory, one number per lane
  double weight;   // of the entry that this lane found
  bool summed;     // the prefix sums of whole rows are there

  __device__ double left(int64 i) const {
    return i < length && !picked[first + i] ? weights[first + i] : 0.0;
  }

  // Prefix sums of what has not been drawn; returns their sum.
  __device__ double renew(int64 drawn) {
    if (summed && drawn == 0) return prefix[first + length - 1];
    const int lane = lane_index();
    double before = 0, next = left(lane);
    for (int64 at = 0; at < length; at += WARP) {
      staged[lane] = next;
      __syncwarp();
      next = left(at + WARP + lane);  // on its way while the sums are made
      double sum = before;
#pragma unroll 8  // more want more registers than there are for six blocks
      for (int k = 0; k < WARP; k++)
        if (k <= lane) sum += staged[k];
      if (at + lane < length) prefix[first + at + lane] = sum;
      before = __shfl_sync(ALL_LANES, sum, WARP - 1);
      __syncwarp();
    }
    return before;
  }

  // The first entry whose prefix sum exceeds x; `length` where none does.
  __device__ int64 find(double x) const {
    return first_where(length, [&](int64 i) { return prefix[first + i] > x; });
  }

  __device__ bool open(int64 i, int64) {
    const bool mine = i < length && !picked[first + i];
    weight = mine ? weights[first + i] : 0.0;
    return mine;
  }
  __device__ double weight_of(int lane) const { return __shfl_sync(ALL_LANES, weight, lane); }
  __device__ void take(int64 i, int64) { picked[first + i] = 1; }
};

// A row of ones. What was drawn is listed, and no pass over the row is made: how many entries are left before
// another follows from the sorted list.
struct Ones {
  int64 length;
  int64* order;   // the entries drawn
  int64* sorted;  // the first `settled` of them, ascending
  int64 settled;

  // Each goes where as many stand before it as are smaller: `count` steps per lane and 32 entries.
  __device__ void sort(int64 count, int64 base) {
    for (int64 i = lane_index(); i < count; i += WARP) {
      int64 smaller = 0;
      for (int64 k = 0; k < count; k++) smaller += order[k] < order[i];
      sorted[smaller] = base + order[i];
    }
    __syncwarp();
  }

  __device__ double renew(int64 drawn) {
    sort(drawn, 0);
    settled = drawn;
    return double(length - drawn);
  }

  // The entry that floor(x) entries that are left come before; sorted[k] - k of them come before sorted[k].
  __device__ int64 find(double x) const {
    const int64 before = int64(x);
    return before + first_where(settled, [&](int64 k) { return sorted[k] - k > before; });
  }

  __device__ bool open(int64 i, int64 drawn) const {
    bool found = false;
    for (int64 k = settled; k < drawn; k++) found |= order[k] == i;
    return !found;
  }
  __device__ double weight_of(int) const { return 1.0; }
  __device__ void take(int64 i, int64 drawn) { order[drawn] = i; }
};

// Draws `count` entries of a row that has more of positive weight. Receives in `remaining`, if there is one,
// the weight left before each draw and after the last. False where the sum of the weights is not finite.
template <class Row> __device__ inline bool draw(Row row, int64 count, uint64 state, double* remaining) {
  const int lane = lane_index();
  double total = 0, drawn = 1;  // so that the first sum is made below, like the others
  int64 entry = 0;              // what this lane's number hits
  unsigned open = 0;            // the lanes whose entries can be drawn next, in the order of the lanes
  int next = WARP - 1;          // the lane whose entry was drawn last
  for (int64 j = 0;; j++) {
    // So at most every second draw is a repeat, and what remains is known to the last bits.
    if (drawn > total / 2) {
      total = row.renew(j);
      drawn = 0;
      open = 0;
      state -= (WARP - 1 - next) * GOLDEN;  // the numbers of the lanes behind it were not used
      if (total > LARGEST) return false;
    }
    if (remaining && lane == 0) remaining[j] = total - drawn;
    if (j == count) return true;
    while (!open) {
      entry = row.find(uniform(state + lane * GOLDEN) * total);
      open = __ballot_sync(ALL_LANES, row.open(entry, j));
      state += WARP * GOLDEN;
    }
    next = __ffs(open) - 1;
    const int64 taken = __shfl_sync(ALL_LANES, entry, next);
    drawn += row.weight_of(next);
    open &= ~__ballot_sync(ALL_LANES, entry == taken);
    if (lane == 0) row.take(taken, j);
    __syncwarp();
  }
}

// How many of the weights are positive; -1 where one is negative, infinite or not a number.
__device__ inline int64 positives(int64 length, const double* weights) {
  int64 count = 0;
  bool wrong = false;
  for (int64 i = lane_index(); i < length; i += WARP) {
    wrong |= !(weights[i] >= 0 && weights[i] <= LARGEST);
    count += weights[i] > 0;
  }
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) count += __shfl_xor_sync(ALL_LANES, count, step);
  return __any_sync(ALL_LANES, wrong) ? -1 : count;
}

// Marks in `picked` (one per entry) `count` entries of every row, or all of positive weight where there are
// no more. remaining: rows x (count + 1), or null; 0 where all are taken. prefix: room for one number per
// entry; with `summed` the prefix sums of every row, whose weights are all positive, left as scratch: then
// `picked` is all 0 before, and no pass over a row is made. bad[r] = 1 where a row has a weight that is negative or not finite, or a sum that is not; its marks
// mean nothing then.
__global__ void __launch_bounds__(THREADS)
    sample_weighted(int64 rows, int64 count, const int64* __restrict__ pointers,
                    const double* __restrict__ weights, const uint64* __restrict__ keys,
                    unsigned char* picked, double* remaining, double* prefix, int summed, unsigned char* bad) {
  __shared__ double staged[THREADS];
  const int64 r = flat_index() / WARP;
  if (r >= rows) return;  // whole warps leave
  const int lane = lane_index();
  const int64 first = pointers[r], length = pointers[r + 1] - first;
  const int64 candidates = summed ? length : positives(length, weights + first);
  const bool all = candidates <= count;
  if (all || !summed)
    for (int64 i = first + lane; i < first + length; i += WARP) picked[i] = all && weights[i] > 0;
  if (remaining) remaining += r * (count + 1);
  if (remaining && all)
    for (int64 j = lane; j <= count; j += WARP) remaining[j] = 0;
  const Weighted row{first,  length, weights, picked, prefix, staged + threadIdx.x / WARP * WARP, 0,
                     summed != 0};
  const bool fine = candidates >= 0 && (all || draw(row, count, keys[r], remaining));
  if (lane == 0) bad[r] = !fine;
}

// positions[offsets[r]] ... = `count` entries, ascending, of row selected[r] of a matrix, all weights 1, or
// all its entries where there are no more. order: room for as many numbers.
__global__ void __launch_bounds__(THREADS)
    sample_ones(int64 rows, int64 count, const int64* __restrict__ pointers,
                const int64* __restrict__ selected, const uint64* __restrict__ keys,
                const int64* __restrict__ offsets, int64* order, int64* positions) {
  const int64 r = flat_index() / WARP;
  if (r >= rows) return;
  const int64 first = pointers[selected[r]], length = pointers[selected[r] + 1] - first;
  order += offsets[r];
  positions += offsets[r];
  if (length <= count) {
    for (int64 i = lane_index(); i < length; i += WARP) positions[i] = first + i;
    return;
  }
  const Ones row{length, order, positions, 0};
  draw(row, count, keys[r], nullptr);
  Ones{length, order, positions, 0}.sort(count, first);
}

// tau[r] = the time at which the first entry of row r that was not drawn would have rung, as told at `inclusion`
// in distgnn/sampling/rows.py. remaining: rows x steps, of sample_weighted. The lanes' sums are added up in a
// fixed order, which is not the host's: results agree to rounding.
__global__ void __launch_bounds__(THREADS)
    ring_times(int64 rows, int64 steps, const uint64* __restrict__ keys,
               const double* __restrict__ remaining, double* tau) {
  const int64 r = flat_index() / WARP;
  if (r >= rows) return;
  const uint64 state = splitmix64(~keys[r]);
  double sum = 0;
  for (int64 j = lane_index(); j < steps; j += WARP) {
    const double number = (double(splitmix64(state + uint64(j) * GOLDEN) >> 12) + 0.5) * 0x1p-52;
    sum += -log1p(-number) / remaining[r * steps + j];
  }
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
  if (lane_index() == 0) tau[r] = sum;
}

// p[i] = 1 - exp(-weights[i] tau), of the row that i stands in.
__global__ void __launch_bounds__(THREADS)
    inclusion(int64 count, int64 rows, const int64* __restrict__ bounds, const double* __restrict__ weights,
              const double* __restrict__ tau, double* p) {
  const int64 i = flat_index();
  if (i < count) p[i] = -expm1(-weights[i] * tau[part_of(bounds, rows, i)]);
}
