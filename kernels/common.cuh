// What all kernels share. One source for three compilers: NVRTC (through CuPy), nvcc (the compile test), and,
// after emulation/cuda_emulation.h, any C++17 compiler, which runs the kernels on the host (see CUDA.md).

using int64 = long long;
using uint64 = unsigned long long;

constexpr int WARP = 32;
constexpr int THREADS = 256;  // of every block of every kernel
constexpr unsigned ALL_LANES = 0xffffffffu;

// Numbers of 16 bits, rounded from float32. A word has two of them, the first in its lower half.

// The upper half of a float32.
struct Bfloat16 {
  static constexpr unsigned BEYOND = 0x7F7F8000u;  // the least number that rounds to infinity: NaN from there on
  unsigned short bits;
  static __device__ inline unsigned narrow(unsigned x) {
    const unsigned size = x & 0x7FFFFFFFu;
    const bool lost = size >= BEYOND && size != 0x7F800000u;
    return (lost ? x | 0x7FC00000u : x + 0x7FFFu + (x >> 16 & 1u)) >> 16;
  }
  static __device__ inline float widen(unsigned h) { return __uint_as_float(h << 16); }
  static __device__ inline void widen(unsigned word, float& low, float& high) {
    low = widen(word), high = __uint_as_float(word & 0xFFFF0000u);
  }
};

// Of IEEE 754. Below 2^-14 its numbers are steps of 2^-24, the last bit of a float32 between 1/2 and 1.
struct Float16 {
  static constexpr unsigned BEYOND = 0x477FF000u;  // 65520
  unsigned short bits;
  static __device__ inline unsigned narrow(unsigned x) {
    const unsigned size = x & 0x7FFFFFFFu, sign = (x & 0x80000000u) >> 16;
    if (size == 0x7F800000u) return sign | 0x7C00u;
    if (size >= BEYOND) return sign | 0x7E00u | (size >> 13 & 0x3FFu);
    if (size < 113u << 23) return sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3F000000u);
    return sign | (size - (112u << 23) + 0xFFFu + (size >> 13 & 1u)) >> 13;
  }
  static __device__ inline float widen(unsigned h) {
    const unsigned sign = (h & 0x8000u) << 16, size = h & 0x7FFFu;
    const unsigned special = size >= 0x7C00u ? 0x7F800000u : 0u;
    // As a number of steps: CuPy compiles with -ftz=true, by which a product with a float32 below 2^-126 is 0.
    const unsigned small = __float_as_uint(static_cast<float>(size) * 0x1p-24f);
    return __uint_as_float(sign | special | (size < 0x0400u ? small : (size << 13) + (112u << 23)));
  }
  static __device__ inline void widen(unsigned word, float& low, float& high) {
#ifdef __CUDA_ARCH__  // exact for small numbers too: -ftz=true is about float32
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(low), "=f"(high)
        : "r"(word));
#else
    low = widen(word & 0xFFFFu), high = widen(word >> 16);
#endif
  }
};

// The bits of a number; those of a finite one that becomes NaN raise `beyond`.
template <class Kind> __device__ inline unsigned short narrowed(float number, int* beyond) {
  const unsigned x = __float_as_uint(number), size = x & 0x7FFFFFFFu;
  if (size >= Kind::BEYOND && size < 0x7F800000u) atomicMax(beyond, int(size));
  return static_cast<unsigned short>(Kind::narrow(x));
}

// A number as it is computed with: that of 16 bits in float32.
__device__ inline float number(float x) { return x; }
__device__ inline double number(double x) { return x; }
template <class X> __device__ inline float number(X x) { return X::widen(x.bits); }

// A number as it is stored.
template <class X, class T> __device__ inline X stored(T x, [[maybe_unused]] int* beyond) {
  if constexpr (sizeof(X) == 2) return X{narrowed<X>(x, beyond)};
  else return x;
}

// N neighbouring elements, moved by one instruction (two where they are 32 bytes: 16 is the widest there is).
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T at[N];
};

template <int N, class T> __device__ inline Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <int N, class T> __device__ inline void store(T* to, const Pack<T, N>& values) {
  *reinterpret_cast<Pack<T, N>*>(to) = values;
}

// A store that does not displace what other blocks read from the L2 cache.
template <int Bytes> struct Word;
template <> struct Word<4> {
  using type = unsigned;
};
template <> struct Word<8> {
  using type = uint2;
};
template <> struct Word<16> {
  using type = uint4;
};

template <int N, class T> __device__ inline void stream_out(T* to, const Pack<T, N>& values) {
  using W = typename Word<alignof(Pack<T, N>)>::type;
#pragma unroll
  for (int i = 0; i < int(sizeof(values) / sizeof(W)); i++)
    __stcs(reinterpret_cast<W*>(to) + i, reinterpret_cast<const W*>(&values)[i]);
}

// A load of what is read once, which does not displace it either.
template <int N, class T> __device__ inline Pack<T, N> stream_in(const T* from) {
  using W = typename Word<alignof(Pack<T, N>)>::type;
  Pack<T, N> values;
#pragma unroll
  for (int i = 0; i < int(sizeof(values) / sizeof(W)); i++)
    reinterpret_cast<W*>(&values)[i] = __ldcs(reinterpret_cast<const W*>(from) + i);
  return values;
}

// A load of what other blocks of this kernel may have stored: the L1 cache may know something older.
template <int N, class T> __device__ inline Pack<T, N> load_shared(const T* from) {
  using W = typename Word<alignof(Pack<T, N>)>::type;
  Pack<T, N> values;
#pragma unroll
  for (int i = 0; i < int(sizeof(values) / sizeof(W)); i++)
    reinterpret_cast<W*>(&values)[i] = __ldcg(reinterpret_cast<const W*>(from) + i);
  return values;
}

// A load of what no block of this kernel stores, by the read-only path. The compiler cannot tell by itself where
// the address comes out of `advance`.
template <int N, class T> __device__ inline Pack<T, N> load_read_only(const T* from) {
  using W = typename Word<alignof(Pack<T, N>)>::type;
  Pack<T, N> values;
#pragma unroll
  for (int i = 0; i < int(sizeof(values) / sizeof(W)); i++)
    reinterpret_cast<W*>(&values)[i] = __ldg(reinterpret_cast<const W*>(from) + i);
  return values;
}

template <int N, class T> __device__ inline bool aligned(const T* at) {
  return reinterpret_cast<size_t>(at) % alignof(Pack<T, N>) == 0;
}

// base + j * bytes, for 32-bit j by one instruction, which the compiler misses once `bytes` is widened.
template <class T> __device__ inline const T* advance(const T* base, int j, int bytes) {
#ifdef __CUDA_ARCH__
  int64 at;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(at) : "r"(j), "r"(bytes), "l"(base));
  return reinterpret_cast<const T*>(at);
#else
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(base) + int64(j) * bytes);
#endif
}

template <class T> __device__ inline const T* advance(const T* base, int64 j, int bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(base) + j * bytes);
}

// Entries begin .. begin + length of a row that is cut: one of its `count` pieces, which begin with `first`.
struct alignas(16) Piece {
  int64 begin;
  int length, row, first, count;
};

// The element of a flat grid that this thread works on; features may have more than 2^31 entries.
__device__ inline int64 flat_index() { return int64(blockIdx.x) * THREADS + threadIdx.x; }

constexpr uint64 GOLDEN = 0x9E3779B97F4A7C15ull;  // from one state of SplitMix64 to the next

// The output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
__device__ inline uint64 splitmix64(uint64 x) {
  x += GOLDEN;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The part that `at` lies in, of parts that begin at pointers[0 .. parts - 1]. Empty parts are passed over.
__device__ inline int64 part_of(const int64* __restrict__ pointers, int64 parts, int64 at) {
  int64 low = 0;
  for (int64 length = parts - 1; length > 0;) {  // pointers[low] <= at, and what is sought is within length of it
    const int64 half = (length + 1) / 2;
    if (pointers[low + half] <= at) {
      low += half;
      length -= half;
    } else {
      length = half - 1;
    }
  }
  return low;
}

// Whether an entry is kept: rng.keep_blocks. `threshold` is the probability times 2^32, at most 2^32.
__device__ inline bool kept(uint64 row_key, uint64 column_key, uint64 threshold) {
  unsigned x = (unsigned(column_key >> 32) ^ unsigned(row_key)) * (unsigned(row_key >> 32) | 1u);
  x = (x ^ (x >> 16)) * 0x846CA68Bu;
  return x < threshold;
}

// Bits of `count` entries, 9 at most, from entry `at` on, in the order of numpy.packbits: the first one's is the
// highest of the word.
__device__ inline unsigned bits_at(const unsigned char* bits, int64 at, int count) {
  const unsigned char *first = bits + (at >> 3), *last = bits + ((at + count - 1) >> 3);
  return (unsigned(__ldg(first)) << 8 | __ldg(last)) << (16 + (at & 7));
}

// What becomes of numbers of a matrix Z: dropout(relu(Z + bias)); or, with `keeps`, Z scale where its bit is 1
// (bits_at), else 0. What is null, or 0, is left out. row_keys, column_keys: hashes of the rows and columns of Z
// (dropout_keys), or both null. bits: for whoever writes them.
template <class T> struct Epilogue {
  const T* bias;
  int relu;
  const uint64 *row_keys, *column_keys;
  uint64 threshold;
  T scale;
  unsigned char* bits;
  const unsigned char* keeps;

  __device__ inline bool any() const { return bias || relu || row_keys || keeps; }

  // Of V neighbours in a row, the first `columns` of which are there; but for `keeps`.
  template <int V> __device__ inline void apply(Pack<T, V>& z, int64 row, int column, int columns = V) const {
    if (bias)
#pragma unroll
      for (int v = 0; v < V; v++)
        if (v < columns) z.at[v] += bias[column + v];
    if (relu)
#pragma unroll
      for (int v = 0; v < V; v++) z.at[v] = z.at[v] < T(0) ? T(0) : z.at[v];  // NaN stays NaN, as in numpy.maximum
    if (!row_keys) return;
    const uint64 key = row_keys[row];
#pragma unroll
    for (int v = 0; v < V; v++)
      if (v < columns) z.at[v] *= kept(key, column_keys[column + v], threshold) ? scale : T(0);
  }

  __device__ inline T of(T z, int64 row, int column) const {
    Pack<T, 1> one{{z}};
    apply(one, row, column);
    return one.at[0];
  }
};
