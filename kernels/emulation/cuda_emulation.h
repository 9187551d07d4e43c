// Runs CUDA kernels on the host: include this before an unchanged .cu file, compile it as C++17 into a shared
// library, and launch its kernels by runtime.cpp, which says what is modelled. Here is what a kernel may call.
//
// Every kernel of every test is compiled anew where no cache is, so this includes next to nothing.

#pragma once

#include <math.h>
#include <stddef.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulation {

// What runtime.cpp does for a thread that comes to a barrier, of its block or of so many threads that name a
// team, or to a collective of its warp. A shuffle replaces the `bytes` at `value`; a ballot returns the lanes
// that vote.
enum class Kind { sync, shuffle, ballot };
void wait_for_block();
void wait_for_team(int team, int threads);
unsigned collective(Kind kind, unsigned mask, bool vote = false, int source = 0, void* value = nullptr,
                    size_t bytes = 0);
int lane();

// The block's dynamic shared memory: as many bytes as the launch asks for.
unsigned char* block_memory();

// Copies that a thread begins (cp.async). They are made when it waits for them, no sooner, so that who reads
// without waiting finds what was there before; in shuffled orders at once, so that who reads too late finds
// them. Of the `bytes` at `to`, those behind the first `there` become 0.
void copy_later(void* to, const void* from, int bytes, int there);
void commit_copies();
void wait_for_copies(int but);

// D = A B of a warp, or D += A B with `add`, for A (16, 8) and B (8, 8 F) of fragments as tensor.cuh tells
// it: the lowest 13 bits of operands count for nothing, and sums are rounded toward zero.
void multiply_tf32(float* d, int F, const float (&a)[4], const float* b, bool add);

template <class T> T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 16);
  collective(Kind::shuffle, mask, false, source, &value, sizeof value);
  return value;
}

template <class T> T exchange(T* at, T value) {
  const T before = *at;
  *at = value;
  return before;
}

// A parameter's type: 'f' a floating-point number, 'i' an integer, 'p' a pointer, else 's'. Of a pointer,
// `to` is the same of what it points to, and `bytes` the size of that; words (unsigned) may be parts of
// anything.
struct Parameter {
  char kind, to;
  unsigned bytes;
};

template <class T> struct Type {
  static constexpr char kind = 's';
};
template <> struct Type<float> {
  static constexpr char kind = 'f';
};
template <> struct Type<double> : Type<float> {};
template <> struct Type<int> {
  static constexpr char kind = 'i';
};
template <> struct Type<unsigned> : Type<int> {};
template <> struct Type<long long> : Type<int> {};
template <> struct Type<unsigned long long> : Type<int> {};
template <> struct Type<unsigned short> : Type<int> {};
template <> struct Type<unsigned char> : Type<int> {};

template <class T> struct Parameter_of {
  static constexpr Parameter value{Type<T>::kind, ' ', sizeof(T)};
};
template <class T> struct Parameter_of<T*> {
  static constexpr Parameter value{'p', Type<T>::kind, sizeof(T)};
};
template <> struct Parameter_of<unsigned*> {
  static constexpr Parameter value{'p', 's', sizeof(unsigned)};
};
template <class T> struct Parameter_of<const T*> : Parameter_of<T*> {};

struct Kernel {
  int count;
  const Parameter* parameters;
  void (*call)(void* const* values);
};

template <int... I> struct Places {};
template <int N, int... I> struct Counted : Counted<N - 1, N - 1, I...> {};
template <int... I> struct Counted<0, I...> {
  using type = Places<I...>;
};

template <auto kernel> struct Entry;
template <class... P, void (*kernel)(P...)> struct Entry<kernel> {
  static constexpr Parameter parameters[] = {Parameter_of<P>::value...};
  template <int... I> static void call_with(void* const* values, Places<I...>) {
    kernel(*static_cast<P*>(values[I])...);
  }
  static void call(void* const* values) { call_with(values, typename Counted<sizeof...(P)>::type()); }
  static constexpr Kernel value{sizeof...(P), parameters, call};
};

}  // namespace emulation

inline void __syncthreads() { emulation::wait_for_block(); }
inline void __syncwarp(unsigned mask = ~0u) { emulation::collective(emulation::Kind::sync, mask); }

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emulation::shuffle(mask, value, emulation::lane() / width * width + (source & (width - 1)));
}

template <class T> T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32) {
  const int lane = emulation::lane(), source = lane ^ flip;
  return emulation::shuffle(mask, value, source / width > lane / width ? lane : source);
}

template <class T> T __shfl_down_sync(unsigned mask, T value, int by, int width = 32) {
  const int lane = emulation::lane();
  return emulation::shuffle(mask, value, lane % width + by < width ? lane + by : lane);
}

template <class T> T __shfl_up_sync(unsigned mask, T value, int by, int width = 32) {
  const int lane = emulation::lane();
  return emulation::shuffle(mask, value, lane % width >= by ? lane - by : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return emulation::collective(emulation::Kind::ballot, mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

inline void __threadfence() {}

// One thread runs at a time, so any read-modify-write is atomic.
template <class T> T atomicAdd(T* at, T value) { return emulation::exchange(at, T(*at + value)); }
template <class T> T atomicMax(T* at, T value) { return emulation::exchange(at, *at < value ? value : *at); }
template <class T> T atomicMin(T* at, T value) { return emulation::exchange(at, value < *at ? value : *at); }
template <class T> T atomicOr(T* at, T value) { return emulation::exchange(at, T(*at | value)); }
template <class T> T atomicExch(T* at, T value) { return emulation::exchange(at, value); }
template <class T> T atomicCAS(T* at, T expected, T value) {
  return emulation::exchange(at, *at == expected ? value : *at);
}

template <class T> T __ldg(const T* at) { return *at; }
template <class T> T __ldcs(const T* at) { return *at; }
template <class T> T __ldcg(const T* at) { return *at; }
template <class T> void __stcs(T* at, T value) { *at = value; }

inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
