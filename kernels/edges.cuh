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
