// What sampling does besides drawing (Tripathy, Yelick and Buluç, MLSys 2024, Algorithm 1): rows of a sparse
// matrix picked and summed, columns picked and renumbered. The host does the same in distgnn/sampling/ and
// kernels/host/sample.c; results have the same bits.
//
// A thread has an entry, whatever the length of its row: it finds the row, or the minibatch, by a binary search
// in the pointers, which stay in a cache. The only atomics are compare-and-swap and minimum of whole numbers in
// the table of ids, whose results do not depend on who comes first; where a key lies in the table does, but
// nothing that leaves it.

#include "common.cuh"

// lengths[i] = entries of row rows[i].
__global__ void __launch_bounds__(THREADS)
    row_lengths(int64 selected, const int64* __restrict__ pointers, const int64* __restrict__ rows,
                int64* lengths) {
  const int64 i = flat_index();
  if (i < selected) lengths[i] = pointers[rows[i] + 1] - pointers[rows[i]];
}

// keys[i]: of the draws from row ids[i], from that of its minibatch.
__global__ void __launch_bounds__(THREADS)
    row_keys(int64 count, int64 blocks, const int64* __restrict__ bounds, const int64* __restrict__ ids,
             const uint64* __restrict__ block_keys, uint64* keys) {
  const int64 i = flat_index();
  if (i < count) keys[i] = splitmix64(splitmix64(uint64(ids[i])) ^ block_keys[part_of(bounds, blocks, i)]);
}

// The entries of some rows of a matrix, one row after another: positions in the matrix, and the number of the
// selected row. offsets: selected + 1, sums of the rows' lengths.
__global__ void __launch_bounds__(THREADS)
    row_entries(int64 count, int64 selected, const int64* __restrict__ offsets, const int64* __restrict__ pointers,
                const int64* __restrict__ rows, int64* positions, int64* owners) {
  const int64 p = flat_index();
  if (p >= count) return;
  const int64 r = part_of(offsets, selected, p);
  positions[p] = pointers[rows[r]] + (p - offsets[r]);
  owners[p] = r;
}

// Every product of an entry of Q, (m, n), and one of A, (n, width): keys[p] = row * width + column. offsets:
// entries + 1, sums of the lengths of the rows of A that Q's entries meet.
template <class T, class Index>
__global__ void __launch_bounds__(THREADS)
    expand_products(int64 count, int64 m, int64 entries, const int64* __restrict__ offsets,
                    const int64* __restrict__ Q_pointers, const int64* __restrict__ Q_columns,
                    const T* __restrict__ Q_values, const int64* __restrict__ pointers,
                    const Index* __restrict__ columns, const T* __restrict__ values, int64 width, int64* keys,
                    T* products) {
  const int64 p = flat_index();
  if (p >= count) return;
  const int64 q = part_of(offsets, entries, p), i = pointers[Q_columns[q]] + (p - offsets[q]);
  keys[p] = part_of(Q_pointers, m, q) * width + columns[i];
  products[p] = Q_values[q] * values[i];
}

// Sums of values[order[i]] over runs of equal keys, in this order, each where its run begins. kept: 1 there,
// else 0.
template <class T>
__global__ void __launch_bounds__(THREADS)
    sum_runs(int64 count, const int64* __restrict__ keys, const int64* __restrict__ order,
             const T* __restrict__ values, T* sums, unsigned char* kept) {
  const int64 p = flat_index();
  if (p >= count) return;
  const int64 key = keys[p];
  const bool begins = p == 0 || keys[p - 1] != key;
  T sum = 0;
  if (begins)
    for (int64 i = p; i < count && keys[i] == key; i++) sum += values[order[i]];
  sums[p] = sum;
  kept[p] = begins;
}

// positions[k] = the k-th of the numbers i whose part pointers[i] .. pointers[i + 1] is not empty.
__global__ void __launch_bounds__(THREADS)
    compact(int64 count, const int64* __restrict__ pointers, int64* positions) {
  const int64 p = flat_index();
  if (p < count && pointers[p] < pointers[p + 1]) positions[pointers[p]] = p;
}

// labels[p] = where columns[entries[p]] stands among the ids of its minibatch, which rise, or -1. The row
// owners[p] belongs to the minibatch b of row_bounds, whose ids are those from bounds[b] to bounds[b + 1].
template <class Index>
__global__ void __launch_bounds__(THREADS)
    find_columns(int64 count, int64 blocks, const int64* __restrict__ row_bounds,
                 const int64* __restrict__ owners, const int64* __restrict__ entries,
                 const Index* __restrict__ columns, const int64* __restrict__ bounds,
                 const int64* __restrict__ ids, int64* labels, unsigned char* kept) {
  const int64 p = flat_index();
  if (p >= count) return;
  const int64 b = part_of(row_bounds, blocks, owners[p]), first = bounds[b], size = bounds[b + 1] - first;
  const int64 column = columns[entries[p]];
  const int64 at = size ? part_of(ids + first, size, column) : 0;
  const bool found = size && ids[first + at] == column;
  labels[p] = found ? at : -1;
  kept[p] = found;
}

// The entries that find_columns found, one after another: their labels, and their values times the scale of
// their column (one number per id; null for 1).
template <class T>
__global__ void __launch_bounds__(THREADS)
    keep_entries(int64 count, int64 blocks, const int64* __restrict__ row_bounds,
                 const int64* __restrict__ owners, const int64* __restrict__ entries,
                 const int64* __restrict__ labels, const int64* __restrict__ places,
                 const T* __restrict__ values, const int64* __restrict__ bounds,
                 const double* __restrict__ scale, int64* kept_labels, T* kept_values) {
  const int64 p = flat_index();
  if (p >= count || labels[p] < 0) return;
  T value = values[entries[p]];
  if (scale) value *= T(scale[bounds[part_of(row_bounds, blocks, owners[p])] + labels[p]]);
  kept_labels[places[p]] = labels[p];
  kept_values[places[p]] = value;
}

// Ids of minibatches, numbered: first the known ones, then the others as they first occur. All of both lists
// have a number, the known ones come first.
struct Lists {
  int64 known, count, blocks, n;
  const int64 *known_bounds, *known_ids, *bounds, *ids;

  __device__ int64 block(int64 p) const {
    return p < known ? part_of(known_bounds, blocks, p) : part_of(bounds, blocks, p - known);
  }
  __device__ int64 id(int64 p) const { return p < known ? known_ids[p] : ids[p - known]; }
};

constexpr uint64 NOTHING = ~uint64(0);

// Enters (minibatch, id) of all into a table of mask + 1 slots, at least twice as many as ids: its keys, then
// the least number that each was entered with; all NOTHING before. slots: where those that are not known went.
__global__ void __launch_bounds__(THREADS)
    enter_ids(int64 known, int64 count, int64 blocks, int64 n, const int64* __restrict__ known_bounds,
              const int64* __restrict__ known_ids, const int64* __restrict__ bounds,
              const int64* __restrict__ ids, uint64 mask, uint64* table, int64* slots) {
  const Lists lists{known, count, blocks, n, known_bounds, known_ids, bounds, ids};
  const int64 p = flat_index();
  if (p >= known + count) return;
  const uint64 key = uint64(lists.block(p)) * uint64(n) + uint64(lists.id(p));
  uint64 slot = splitmix64(key) & mask;
  for (;;) {
    const uint64 there = atomicCAS(table + slot, NOTHING, key);
    if (there == NOTHING || there == key) break;
    slot = (slot + 1) & mask;
  }
  atomicMin(table + mask + 1 + slot, uint64(p));
  if (p >= known) slots[p - known] = int64(slot);
}

// added[e] = 1 where id e occurs for the first time.
__global__ void __launch_bounds__(THREADS)
    mark_first(int64 known, int64 count, uint64 mask, const uint64* __restrict__ table,
               const int64* __restrict__ slots, unsigned char* added) {
  const int64 e = flat_index();
  if (e < count) added[e] = table[mask + 1 + slots[e]] == uint64(known + e);
}

// labels[e]: the number of id e in its minibatch. lists: every minibatch's known ids, and those added, list b
// from known_bounds[b] + before[bounds[b]] on; before: count + 1, how many are added before each id.
__global__ void __launch_bounds__(THREADS)
    number_ids(int64 known, int64 count, int64 blocks, int64 n, const int64* __restrict__ known_bounds,
               const int64* __restrict__ known_ids, const int64* __restrict__ bounds,
               const int64* __restrict__ ids, uint64 mask, const uint64* __restrict__ table,
               const int64* __restrict__ slots, const int64* __restrict__ before, int64* labels,
               int64* extended) {
  const Lists lists{known, count, blocks, n, known_bounds, known_ids, bounds, ids};
  const int64 p = flat_index();
  if (p >= known + count) return;
  const int64 b = lists.block(p), top = known_bounds[b], added = before[bounds[b]];
  const int64 first = p < known ? p : int64(table[mask + 1 + slots[p - known]]);
  const int64 label = first < known ? first - top : known_bounds[b + 1] - top + before[first - known] - added;
  if (p >= known) labels[p - known] = label;
  if (first == p) extended[top + added + label] = lists.id(p);
}
