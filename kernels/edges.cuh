// What kernels over entries with a number per head share; included after common.cuh. A warp takes a row, or a piece of
// a longer one. Kernels are bound to four blocks, 64 registers: where the compiler is free it takes fewer, and spills.

// What a warp works on: row number `at`, if it is not cut, or with `pieces` the piece of this number.
template <class Index> struct Task {
  bool there;
  int64 row = 0, begin = 0, length = 0;
  __device__ Task(int64 at, int64 m, const Index* indptr, int longest, const Piece* pieces, const int* total) {
    there = at < (pieces ? *total : m);
    if (!there) return;
    row = pieces ? pieces[at].row : at;
    begin = pieces ? pieces[at].begin : int64(indptr[at]);
    length = pieces ? pieces[at].length : int64(indptr[at + 1]) - begin;
    there = pieces || !longest || length <= longest;
  }
};

// The numbers of a row that a group of G lanes goes through: first, first + step, ..., all of one head. With more
// heads than groups, this is done for each `chunk` of heads.
template <int G> struct Walk {
  int head, first, step;
  bool active;
  __device__ Walk(int heads, int chunk) {
    constexpr int groups = WARP / G;
    const int group = threadIdx.x % WARP / G;
    const bool few = heads <= groups;
    step = few ? groups / heads * heads : heads;
    first = few ? group : chunk + group;
    active = first < step;
    head = few ? group % heads : active ? first : 0;
  }
};

// out[e, k] for the entries of a task: what `part(e, from, to)` of G lanes gives, added up; each takes some of the
// columns `from` to `to` of head k.
template <int G, class T, class Index, class Part>
__device__ inline void sum_by_heads(const Task<Index>& task, int heads, const int64* bounds, int even, T* out,
                                    const Part& part) {
  const int64 count = task.length * heads;
  out += task.begin * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP / G) {
    const Walk<G> walk(heads, chunk);
    const int from = even ? walk.head * even : int(bounds[walk.head]);
    const int to = even ? from + even : int(bounds[walk.head + 1]);
    int64 e = task.begin + walk.first / heads;
    for (int64 base = 0; base < count; base += walk.step, e += walk.step / heads) {  // the same for all lanes
      const int64 n = base + walk.first;
      const bool there = walk.active && n < count;
      T sum = there ? part(e, from, to) : T(0);
#pragma unroll
      for (int step = 1; step < G; step *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
      if (there && threadIdx.x % G == 0) out[n] = sum;
    }
  }
}
