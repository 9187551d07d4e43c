// Runs CUDA kernels on the host: include this before an unchanged .cu file and compile it as C++17.
//
// The threads of a block are fibers of one host thread. A fiber runs until it comes to a barrier, a shuffle
// or its end, then hands over to the scheduler, which lets the others catch up; so warps are in lock step
// exactly where CUDA says they are. A kernel that gets any of this wrong stops with a message that names the
// block and threads:
//   - a barrier or shuffle that not all threads reach that it waits for, or that some have left behind by
//   returning;
//   - a shuffle from a lane that takes no part in it, or by a lane that its mask does not name;
//   - threads of one mask at different collectives.
// Threads can run in different orders (forward, backward, shuffled): a missing barrier changes the result in
// one of them. Everything works under -fsanitize=address,undefined, which sees accesses out of bounds and
// vectors that are not aligned.
//
// Not modelled: the memory model within a warp between two collectives, timing, textures, cooperative groups,
// dynamic shared memory. Shared variables keep their values from block to block, as on a GPU nobody promises
// otherwise.

#pragma once

#include <sys/mman.h>
#if defined(__x86_64__) && !defined(EMULATION_UCONTEXT)
#define EMULATION_SWITCH 1
#else
#include <ucontext.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define EMULATION_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define EMULATION_ASAN 1
#endif
#endif

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

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace emulation {

// Where a fiber goes on. swapcontext, which is portable, makes two system calls per switch; six pushes do the
// same.
#ifdef EMULATION_SWITCH
using Context = void*;  // the stack pointer; the registers that calls preserve lie on the stack

extern "C" void emulation_switch(Context* from, Context to);
asm(R"(
.text
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

inline void switch_context(Context& from, Context& to) { emulation_switch(&from, to); }

inline void make_context(Context& context, char* stack, size_t bytes, void (*body)()) {
  void** top = reinterpret_cast<void**>(stack + bytes) -
               2;  // body's own return address, never used, keeps the ABI's alignment
  *top = reinterpret_cast<void*>(body);
  context = top - 6;
}
#else
using Context = ucontext_t;

inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

inline void make_context(Context& context, char* stack, size_t bytes, void (*body)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, body, 0);
}
#endif

constexpr int warp_size = 32;
constexpr size_t stack_bytes = 256 << 10;  // address-sanitised frames are large; untouched pages cost nothing

enum class State { running, at_warp, at_block, left };
enum class Kind { sync, shuffle, ballot };

// What a thread brings to a collective of its warp, and takes away.
struct Collective {
  Kind kind = Kind::sync;
  unsigned mask = 0;
  int source = 0;          // shuffle: the lane to read
  bool predicate = false;  // ballot
  unsigned char value[16] = {};
  unsigned votes = 0;
};

struct Thread {
  Context context;
  char* stack = nullptr;
  void* shadow = nullptr;  // the address sanitizer's, while the fiber sleeps
  uint3 index{};
  State state = State::left;
  Collective asks;
};

inline std::vector<Thread> threads(1024);  // all there can be; never moved, because contexts point into them
inline int thread_count = 0;               // of the block that runs
inline int current = -1;                   // thread that runs; -1: the scheduler
inline Context scheduler;
inline void* scheduler_shadow;
inline const void* scheduler_stack;
inline size_t scheduler_stack_bytes;
inline std::function<void()> kernel;

[[noreturn]] inline void fail(const char* what, int thread) {
  std::fprintf(stderr, "emulation: block (%u, %u, %u), thread %d: %s\n", blockIdx.x, blockIdx.y, blockIdx.z,
               thread, what);
  const char* names[] = {"running", "at a warp collective", "at __syncthreads", "left the kernel"};
  for (int t = 0, from = 0; t <= thread_count; t++)
    if (t == thread_count || threads[t].state != threads[from].state) {
      std::fprintf(stderr, "emulation:   threads %d..%d: %s\n", from, t - 1, names[int(threads[from].state)]);
      from = t;
    }
  std::exit(70);
}

inline void leave_fiber([[maybe_unused]] void** shadow, [[maybe_unused]] const void* stack,
                        [[maybe_unused]] size_t bytes) {
#ifdef EMULATION_ASAN
  __sanitizer_start_switch_fiber(shadow, stack, bytes);
#endif
}

inline void enter_fiber([[maybe_unused]] void* shadow, [[maybe_unused]] const void** stack,
                        [[maybe_unused]] size_t* bytes) {
#ifdef EMULATION_ASAN
  __sanitizer_finish_switch_fiber(shadow, stack, bytes);
#endif
}

inline void to_scheduler() {
  Thread& me = threads[current];
  leave_fiber(&me.shadow, scheduler_stack, scheduler_stack_bytes);
  switch_context(me.context, scheduler);
  enter_fiber(me.shadow, &scheduler_stack, &scheduler_stack_bytes);
}

// A fiber lives as long as the program and runs one thread of every block.
inline void fiber() {
  enter_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  for (;;) {
    kernel();
    threads[current].state = State::left;
    to_scheduler();
  }
}

inline void resume(int t) {
  Thread& thread = threads[t];
  current = t;
  threadIdx = thread.index;
  leave_fiber(&scheduler_shadow, thread.stack, stack_bytes);
  switch_context(scheduler, thread.context);
  enter_fiber(scheduler_shadow, nullptr, nullptr);
  current = -1;
}

inline void wait(State at) {
  threads[current].state = at;
  to_scheduler();
}

// Let the lanes of one mask go on, if all of them have come. Lanes of a warp may wait in several groups.
inline bool release(int warp, int lane) {
  const int first = warp * warp_size, size = std::min(thread_count - first, warp_size);
  const Collective& call = threads[first + lane].asks;
  if (!(call.mask >> lane & 1))
    fail("a lane calls a warp collective whose mask does not name it", first + lane);
  unsigned votes = 0;
  for (int l = 0; l < warp_size; l++) {
    if (!(call.mask >> l & 1)) continue;
    if (l >= size) {
      if (call.mask == ~0u) continue;  // the last warp of a block may be short
      fail("the mask of a warp collective names a lane that does not exist", first + lane);
    }
    const Thread& other = threads[first + l];
    if (other.state == State::left)
      fail("a warp collective waits for a lane that has left the kernel", first + lane);
    // A lane at another collective may come to this one later; if it does not, nobody moves, which is seen in
    // run_block.
    if (other.state != State::at_warp || other.asks.mask != call.mask || other.asks.kind != call.kind)
      return false;
    votes |= unsigned(other.asks.predicate) << l;
  }
  const unsigned mask = call.mask;
  unsigned char posted[warp_size][16];
  for (int l = 0; l < size; l++) std::memcpy(posted[l], threads[first + l].asks.value, 16);
  for (int l = 0; l < size; l++) {
    if (!(mask >> l & 1)) continue;
    Collective& ask = threads[first + l].asks;
    ask.votes = votes;
    if (ask.kind == Kind::shuffle) {
      if (ask.source >= size || !(mask >> ask.source & 1))
        fail("a shuffle reads a lane that takes no part in it", first + l);
      std::memcpy(ask.value, posted[ask.source], 16);
    }
    threads[first + l].state = State::running;
  }
  return true;
}

inline bool release_warps() {
  bool any = false;
  for (int t = 0; t < thread_count; t++)
    if (threads[t].state == State::at_warp && release(t / warp_size, t % warp_size)) any = true;
  return any;
}

inline bool release_block() {
  int waiting = -1, left = -1;
  for (int t = 0; t < thread_count; t++) {
    if (threads[t].state == State::at_block) waiting = t;
    else if (threads[t].state == State::left) left = t;
    else return false;
  }
  if (waiting < 0) return false;
  if (left >= 0) fail("__syncthreads waits for threads that have left the kernel", waiting);
  for (int t = 0; t < thread_count; t++) threads[t].state = State::running;
  return true;
}

inline void run_block(const std::vector<int>& order) {
  for (int t = 0; t < thread_count; t++) threads[t].state = State::running;
  for (;;) {
    for (int t : order)
      if (threads[t].state == State::running) resume(t);
    if (release_warps() || release_block()) continue;
    for (int t : order)
      if (threads[t].state != State::left) fail("threads wait for each other at different barriers", t);
    return;
  }
}

inline void make_fibers(dim3 block) {
  if (block.x * block.y * block.z > threads.size()) fail("a block has more than 1024 threads", 0);
  thread_count = int(block.x * block.y * block.z);
  for (int t = 0; t < thread_count; t++) {
    Thread& thread = threads[t];
    thread.index = {unsigned(t) % block.x, unsigned(t) / block.x % block.y, unsigned(t) / block.x / block.y};
    if (thread.stack) continue;
    void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for stacks", t);
    thread.stack = static_cast<char*>(memory);
    make_context(thread.context, thread.stack, stack_bytes, fiber);
  }
}

// Order 0 runs threads and blocks forward, 1 backward, any other number is the seed of a shuffle.
inline std::vector<int> permutation(int count, unsigned order) {
  std::vector<int> result(count);
  std::iota(result.begin(), result.end(), 0);
  if (order == 1) std::reverse(result.begin(), result.end());
  if (order > 1) std::shuffle(result.begin(), result.end(), std::mt19937(order));
  return result;
}

inline void launch(dim3 grid, dim3 block, unsigned order, std::function<void()> body) {
  gridDim = grid;
  blockDim = block;
  kernel = std::move(body);
  make_fibers(block);
  const auto thread_order = permutation(thread_count, order);
  for (int b : permutation(int(grid.x * grid.y * grid.z), order)) {
    blockIdx = {unsigned(b) % grid.x, unsigned(b) / grid.x % grid.y, unsigned(b) / grid.x / grid.y};
    run_block(thread_order);
  }
}

template <class T> T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 16);
  Collective& ask = threads[current].asks;
  ask.kind = Kind::shuffle;
  ask.mask = mask;
  ask.source = source;
  std::memcpy(ask.value, &value, sizeof value);
  wait(State::at_warp);
  T result;
  std::memcpy(&result, threads[current].asks.value, sizeof result);
  return result;
}

inline unsigned vote(unsigned mask, bool predicate) {
  Collective& ask = threads[current].asks;
  ask.kind = Kind::ballot;
  ask.mask = mask;
  ask.predicate = predicate;
  wait(State::at_warp);
  return threads[current].asks.votes & mask;
}

inline int lane() { return current % warp_size; }

}  // namespace emulation

inline void __syncthreads() { emulation::wait(emulation::State::at_block); }

inline void __syncwarp(unsigned mask = ~0u) {
  emulation::Collective& ask = emulation::threads[emulation::current].asks;
  ask.kind = emulation::Kind::sync;
  ask.mask = mask;
  emulation::wait(emulation::State::at_warp);
}

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

inline unsigned __ballot_sync(unsigned mask, int predicate) { return emulation::vote(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return emulation::vote(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return emulation::vote(mask, predicate != 0) == mask; }

inline void __threadfence() {}

// One thread runs at a time, so any read-modify-write is atomic.
template <class T> T atomicAdd(T* at, T value) { return std::exchange(*at, T(*at + value)); }
template <class T> T atomicMax(T* at, T value) { return std::exchange(*at, std::max(*at, value)); }
template <class T> T atomicMin(T* at, T value) { return std::exchange(*at, std::min(*at, value)); }
template <class T> T atomicOr(T* at, T value) { return std::exchange(*at, T(*at | value)); }
template <class T> T atomicExch(T* at, T value) { return std::exchange(*at, value); }
template <class T> T atomicCAS(T* at, T expected, T value) {
  return std::exchange(*at, *at == expected ? value : *at);
}

template <class T> T __ldg(const T* at) { return *at; }
template <class T> T __ldcs(const T* at) { return *at; }
template <class T> T __ldcg(const T* at) { return *at; }
template <class T> void __stcs(T* at, T value) { *at = value; }

inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
