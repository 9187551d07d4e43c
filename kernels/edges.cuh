// What kernels over entries with a number per head share; included after common.cuh.
//
// The tasks of a grid stand in a table (edge_tasks), most entries first: the pieces of long rows, then the other
// rows, each of which is its only piece (count 1). Places of the table may be empty (count 0). Of a row's pieces
// the one that comes last joins what all of them give, in their order: no sum depends on who that is. The only
// atomics on memory count, and set bits.

// Blocks that a multiprocessor must have room for, by 64 registers (80 but on Hopper, where fewer do), or 128: where
// the compiler is free it takes fewer, and spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 != 9
constexpr int OF_FLOATS = 3;
#else
constexpr int OF_FLOATS = 4;
#endif
template <class T, class Index> constexpr int BLOCKS = sizeof(T) + sizeof(Index) == 8 ? OF_FLOATS : 2;

template <int G> __device__ inline unsigned lanes_of_group() {
  return G == WARP ? ALL_LANES : ((1u << G % WARP) - 1) << (threadIdx.x % WARP / G * G);
}

// Whether this is the piece of its row that comes last; then `arrived` is as before, and what the others stored
// by load_shared is there. For all G lanes of a group.
template <int G> __device__ inline bool comes_last(const Piece& piece, int* arrived) {
  const unsigned group = lanes_of_group<G>();
  __threadfence();
  __syncwarp(group);
  int before = 0;
  if (threadIdx.x % G == 0) before = atomicAdd(arrived + piece.first, 1);
  before = __shfl_sync(group, before, threadIdx.x % WARP / G * G);
  if (before < piece.count - 1) return false;
  __threadfence();
  if (threadIdx.x % G == 0) arrived[piece.first] = 0;
  return true;
}

template <class T> __device__ inline T shared_number(const T* at) { return load_shared<1>(at).at[0]; }

// Entries of which a lane reads V columns at a time: so many in flight as fit its registers.
template <class T, class Index, int V>
constexpr int IN_FLIGHT = sizeof(T) == 4 && sizeof(Index) == 8 && V > 1 ? 2 : 4;

// Goes through turns 0 .. count, U at a time: `use(whole, read, at)` gets what `read(turn)` gave for turns at
// .. at + U, of which it must ask whether they are before `own`, the turns that this lane has, unless `whole`,
// a constant once it is inlined. What the next U turns read is under way meanwhile. own: count or one less.
template <int U, class Entry, class Read, class Use>
__device__ inline void in_turns(int count, int own, const Read& read, const Use& use) {
  Entry next[U] = {}, now[U];
#pragma unroll
  for (int u = 0; u < U; u++)
    if (u < own) next[u] = read(u);
  int at = 0;
#pragma unroll 1
  for (; count - at > 2 * U; at += U) {
#pragma unroll
    for (int u = 0; u < U; u++) now[u] = next[u];
#pragma unroll
    for (int u = 0; u < U; u++) next[u] = read(at + U + u);
    use(true, now, at);
  }
#pragma unroll 1
  for (; at < count; at += U) {
#pragma unroll
    for (int u = 0; u < U; u++) now[u] = next[u];
#pragma unroll
    for (int u = 0; u < U; u++)
      if (at + U + u < own) next[u] = read(at + U + u);
    use(false, now, at);
  }
}

// The numbers of a row that a group of G lanes goes through: first, first + step, ..., all of one head. With
// more heads than groups, this is done for each `chunk` of heads.
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
    if (!active) first = head;
  }
};

// The head of a column, of heads with `even` columns each, or those between bounds.
__device__ inline int head_of(int column, const int64* bounds, int even) {
  if (even) return column / even;
  int head = 0;
  while (bounds[head + 1] <= column) head++;
  return head;
}

// out[e, k] for the entries of a task, U in flight: what `add(whole, j, there, e, apart, from, to, sums)` adds to the
// sums of U entries e, e + apart, ..., of columns j and of which `there` are, in the columns `from` to `to` of
// head k; each of G lanes takes some.
template <int G, int U, class T, class Index, class Add>
__device__ inline void sum_by_heads(const Piece& task, const Index* indices, int heads, const int64* bounds,
                                    int even, T* out, const Add& add) {
  indices += task.begin;
  out += task.begin * heads;
  for (int chunk = 0; chunk < heads; chunk += WARP / G) {
    const Walk<G> walk(heads, chunk);
    const int from = even ? walk.head * even : int(bounds[walk.head]);
    const int to = even ? from + even : int(bounds[walk.head + 1]);
    const int apart = walk.step / heads, place = walk.first / heads;  // of entries
    const int count = (task.length + apart - 1) / apart, own = (task.length - place + apart - 1) / apart;
    const bool writes = walk.active && threadIdx.x % G == 0;
    in_turns<U, Index>(
        count, own, [&](int turn) { return indices[place + turn * apart]; },
        [&](bool whole, const Index* j, int at) {
          T sums[U] = {};
          const int e = place + at * apart;
          add(whole, j, own - at, task.begin + e, apart, from, to, sums);
#pragma unroll
          for (int step = 1; step < G; step *= 2)
#pragma unroll
            for (int u = 0; u < U; u++) sums[u] += __shfl_xor_sync(ALL_LANES, sums[u], step);
#pragma unroll
          for (int u = 0; u < U; u++)
            if (writes && (whole || at + u < own))
              out[int64(e + u * apart) * heads + walk.head] = sums[u];
        });
  }
}

// Rows of `out`, f wide, or of pieces in rows of their own of `parts`: what `sum(column)` gives for V columns;
// by G lanes.
template <int G, int V, class T, class SumOf>
__device__ inline void rows_of_sums(const Piece& task, int number, int f, T* out, T* parts, int* arrived,
                                    int accumulate, const SumOf& sum) {
  const int start = threadIdx.x % G * V;
  out += int64(task.row) * f;
  const auto give = [&](int column, Pack<T, V> all) {
    if (accumulate) {
      const Pack<T, V> before = load<V>(out + column);
#pragma unroll
      for (int i = 0; i < V; i++) all.at[i] += before.at[i];
    }
    store(out + column, all);
  };
  for (int column = start; column < f; column += G * V) {
    const Pack<T, V> own = sum(column);
    if (task.count == 1)
      give(column, own);
    else
      store(parts + int64(number) * f + column, own);
  }
  if (task.count == 1 || !comes_last<G>(task, arrived)) return;
  for (int column = start; column < f; column += G * V) {
    Pack<T, V> all{};
#pragma unroll 4
    for (int i = 0; i < task.count; i++) {
      const Pack<T, V> part = load_shared<V>(parts + int64(task.first + i) * f + column);
#pragma unroll
      for (int v = 0; v < V; v++) all.at[v] += part.at[v];
    }
    give(column, all);
  }
}
