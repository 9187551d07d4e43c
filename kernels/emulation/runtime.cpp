// Launches kernels on the host, in the process that it is loaded into.
//
// The threads of a block are fibers of one host thread. A fiber runs until it comes to a barrier, a shuffle
// or its end, then hands over to the scheduler, which lets the others catch up; so warps are in lock step
// exactly where CUDA says they are. A kernel that gets any of this wrong stops, and the launch returns a message
// that names the block and threads:
//   - a barrier or shuffle that not all threads reach that it waits for, or that some have left behind by
//   returning;
//   - a shuffle from a lane that takes no part in it, or by a lane that its mask does not name;
//   - threads of one mask at different collectives;
//   - an asynchronous copy from or to an address that is no multiple of its bytes.
// Threads can run in different orders (forward, backward, shuffled): a missing barrier changes the result in
// one of them. In shuffled orders, too, a warp goes on as far as it can before the next one, and copies are made
// as soon as they begin, so that one to where others still read shows. Arguments are compared with the
// parameters, which CUDA itself never does. Everything works under
// -fsanitize=address,undefined, which sees accesses out of bounds and vectors that are not aligned.
//
// Not modelled: the memory model within a warp between two collectives, timing, textures, cooperative groups.
// Shared variables keep their values from block to block, as on a GPU nobody promises otherwise; dynamic shared
// memory has NaNs when a block begins.

#include "runtime.h"

#include <sys/mman.h>
#if defined(__x86_64__) && !defined(EMULATION_UCONTEXT)
#define EMULATION_SWITCH 1
#else
#include <ucontext.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATION_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATION_ASAN 1
#endif
#endif
#ifdef EMULATION_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulation {
namespace {

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

void switch_context(Context& from, Context& to) { emulation_switch(&from, to); }

void make_context(Context& context, char* stack, size_t bytes, void (*body)()) {
  void** top = reinterpret_cast<void**>(stack + bytes) -
               2;  // body's own return address, never used, keeps the ABI's alignment
  *top = reinterpret_cast<void*>(body);
  context = top - 6;
}
#else
using Context = ucontext_t;

void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

void make_context(Context& context, char* stack, size_t bytes, void (*body)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, body, 0);
}
#endif

constexpr int warp_size = 32;
constexpr size_t stack_bytes = 256 << 10;  // address-sanitised frames are large; untouched pages cost nothing

enum class State { running, at_warp, at_block, at_team, left };

// What a thread brings to a collective of its warp, and takes away.
struct Collective {
  Kind kind = Kind::sync;
  unsigned mask = 0;
  int source = 0;     // shuffle: the lane to read
  bool vote = false;  // ballot
  unsigned char value[16] = {};
  unsigned votes = 0;
};

// A copy that has begun.
struct Copy {
  void* to;
  const void* from;
  int bytes, there;
};

void make(const Copy& copy) {
  memcpy(copy.to, copy.from, size_t(copy.there));
  memset(static_cast<char*>(copy.to) + copy.there, 0, size_t(copy.bytes - copy.there));
}

struct Thread {
  Context context;
  char* stack = nullptr;
  void* shadow = nullptr;  // the address sanitizer's, while the fiber sleeps
  uint3 index{};
  State state = State::left;
  Collective asks;
  int team = 0, team_size = 0;            // at whose barrier it waits
  std::vector<std::vector<Copy>> copies;  // groups, the last one open
};

std::vector<Thread> threads(1024);  // all there can be; never moved, because contexts point into them
int made = 0;                       // threads with a fiber
int thread_count = 0;               // of the block that runs
int current = -1;                   // thread that runs; -1: the scheduler
Context scheduler;
void* scheduler_shadow;
const void* scheduler_stack;
size_t scheduler_stack_bytes;
const Kernel* kernel;
void* const* values;  // its arguments
std::string problem;  // of the last launch
std::unique_ptr<unsigned char[]> dynamic_memory;
unsigned dynamic_bytes;
bool shuffled;  // the order of threads and blocks
int misaligned = -1;  // a thread that began a copy at no multiple of its bytes

struct Fault {};

// Ends the launch; called by the scheduler alone.
[[noreturn]] void fail(const char* what, int thread) {
  const auto number = [](unsigned x) { return std::to_string(x); };
  problem = "block (" + number(blockIdx.x) + ", " + number(blockIdx.y) + ", " + number(blockIdx.z) + "), thread " +
            number(thread) + ": " + what;
  const char* names[] = {"running", "at a warp collective", "at __syncthreads", "at a team's barrier",
                         "left the kernel"};
  for (int t = 0, from = 0; t <= thread_count; t++)
    if (t == thread_count || threads[t].state != threads[from].state) {
      problem += "\n  threads " + number(from) + ".." + number(t - 1) + ": " + names[int(threads[from].state)];
      from = t;
    }
  throw Fault();
}

void leave_fiber([[maybe_unused]] void** shadow, [[maybe_unused]] const void* stack,
                 [[maybe_unused]] size_t bytes) {
#ifdef EMULATION_ASAN
  __sanitizer_start_switch_fiber(shadow, stack, bytes);
#endif
}

void enter_fiber([[maybe_unused]] void* shadow, [[maybe_unused]] const void** stack,
                 [[maybe_unused]] size_t* bytes) {
#ifdef EMULATION_ASAN
  __sanitizer_finish_switch_fiber(shadow, stack, bytes);
#endif
}

void to_scheduler() {
  Thread& me = threads[current];
  leave_fiber(&me.shadow, scheduler_stack, scheduler_stack_bytes);
  switch_context(me.context, scheduler);
  enter_fiber(me.shadow, &scheduler_stack, &scheduler_stack_bytes);
}

// A fiber lives as long as the program and runs one thread of every block.
void fiber() {
  enter_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  for (;;) {
    kernel->call(values);
    threads[current].state = State::left;
    to_scheduler();
  }
}

void resume(int t) {
  Thread& thread = threads[t];
  current = t;
  threadIdx = thread.index;
  leave_fiber(&scheduler_shadow, thread.stack, stack_bytes);
  switch_context(scheduler, thread.context);
  enter_fiber(scheduler_shadow, nullptr, nullptr);
  current = -1;
}

void wait(State at) {
  threads[current].state = at;
  to_scheduler();
}

// Let the lanes of one mask go on, if all of them have come. Lanes of a warp may wait in several groups.
bool release(int warp, int lane) {
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
    votes |= unsigned(other.asks.vote) << l;
  }
  const unsigned mask = call.mask;
  unsigned char posted[warp_size][16];
  if (call.kind == Kind::shuffle)
    for (int l = 0; l < size; l++) memcpy(posted[l], threads[first + l].asks.value, 16);
  for (int l = 0; l < size; l++) {
    if (!(mask >> l & 1)) continue;
    Collective& ask = threads[first + l].asks;
    ask.votes = votes;
    if (ask.kind == Kind::shuffle) {
      if (ask.source >= size || !(mask >> ask.source & 1))
        fail("a shuffle reads a lane that takes no part in it", first + l);
      memcpy(ask.value, posted[ask.source], 16);
    }
    threads[first + l].state = State::running;
  }
  return true;
}

bool release_warp(int warp) {
  bool any = false;
  for (int t = warp * warp_size; t < std::min((warp + 1) * warp_size, thread_count); t++)
    if (threads[t].state == State::at_warp && release(warp, t % warp_size)) any = true;
  return any;
}

bool release_warps() {
  bool any = false;
  for (int warp = 0; warp * warp_size < thread_count; warp++) any |= release_warp(warp);
  return any;
}

// Lets each warp go on, as far as it comes by itself if orders are shuffled.
void resume_warps(const std::vector<int>& order) {
  for (int warp = 0; shuffled && warp * warp_size < thread_count; warp++) do {
      for (int t : order)
        if (t / warp_size == warp && threads[t].state == State::running) resume(t);
    } while (release_warp(warp));
  for (int t : order)
    if (threads[t].state == State::running) resume(t);
}

bool release_block() {
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

bool release_teams() {
  bool any = false;
  for (int t = 0; t < thread_count; t++) {
    if (threads[t].state != State::at_team) continue;
    std::vector<int> come;
    for (int other = 0; other < thread_count; other++)
      if (threads[other].state == State::at_team && threads[other].team == threads[t].team) come.push_back(other);
    if (int(come.size()) < threads[t].team_size) continue;
    for (int other : come) threads[other].state = State::running;
    any = true;
  }
  return any;
}

void run_block(const std::vector<int>& order) {
  for (int t = 0; t < thread_count; t++) threads[t].state = State::running, threads[t].copies.assign(1, {});
  memset(dynamic_memory.get(), 0xFF, dynamic_bytes);  // NaNs
  for (;;) {
    resume_warps(order);
    if (misaligned >= 0) fail("an asynchronous copy at a misaligned address", std::exchange(misaligned, -1));
    if (release_warps() || release_teams() || release_block()) continue;
    for (int t : order)
      if (threads[t].state != State::left) fail("threads wait for each other at different barriers", t);
    return;
  }
}

// Stacks begin at different lines of a page: at equal ones they would share few places of the caches.
void make_fibers(int count) {
  for (; made < count; made++) {
    Thread& thread = threads[made];
    if (!thread.stack) {
      void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) fail("no memory for stacks", made);
      thread.stack = static_cast<char*>(memory);
    }
#ifdef EMULATION_ASAN
    __asan_unpoison_memory_region(thread.stack, stack_bytes);  // after a fault: frames that it left
#endif
    make_context(thread.context, thread.stack, stack_bytes - made % 32 * 128, fiber);
  }
}

std::vector<int> permutation(int count, unsigned order) {
  std::vector<int> result(count);
  std::iota(result.begin(), result.end(), 0);
  if (order == 1) std::reverse(result.begin(), result.end());
  if (order > 1) std::shuffle(result.begin(), result.end(), std::mt19937(order));
  return result;
}

void run(dim3 grid, dim3 block, unsigned order) {
  gridDim = grid;
  blockDim = block;
  thread_count = int(block.x * block.y * block.z);
  shuffled = order > 1;
  make_fibers(thread_count);
  for (unsigned t = 0; t < unsigned(thread_count); t++)
    threads[t].index = {t % block.x, t / block.x % block.y, t / block.x / block.y};
  const auto thread_order = permutation(thread_count, order);
  for (unsigned b : permutation(int(grid.x * grid.y * grid.z), order)) {
    blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    run_block(thread_order);
  }
}

// Tells what is wrong with an argument. Any array may be taken for one of structs or words.
std::string mismatch(const Parameter& parameter, const Argument& given) {
  const auto bytes = [](unsigned count) { return " of " + std::to_string(count) + " bytes"; };
  const auto is = [](char kind) { return std::string(kind == 'f' ? "a floating-point number" : "an integer"); };
  if (given.kind == 'p') {
    if (parameter.kind != 'p') return "an array, the parameter is not";
    if (parameter.to == 's' || (parameter.to == given.to && parameter.bytes == given.bytes)) return "";
    return "an array whose element is " + is(given.to) + bytes(given.bytes) + ", that of the parameter " +
           is(parameter.to) + bytes(parameter.bytes);
  }
  const bool pointer = parameter.kind == 'p';
  const unsigned needed = pointer ? sizeof(void*) : parameter.bytes;
  if (given.bytes == needed && (given.kind == 'i') == (pointer || parameter.kind == 'i')) return "";
  return is(given.kind) + bytes(given.bytes) + ", the parameter " + (pointer ? "a pointer" : is(parameter.kind)) +
         bytes(needed);
}

void check(const Kernel& kernel, const Request& request, const Argument* arguments) {
  if (kernel.count != request.count) {
    problem = std::to_string(request.count) + " arguments for " + std::to_string(kernel.count) + " parameters";
    throw Fault();
  }
  for (int i = 0; i < request.count; i++) {
    const std::string wrong = mismatch(kernel.parameters[i], arguments[i]);
    if (wrong.empty()) continue;
    problem = "argument " + std::to_string(i) + " is " + wrong;
    throw Fault();
  }
  if (request.block.x * request.block.y * request.block.z > threads.size()) {
    problem = "a block has more than 1024 threads";
    throw Fault();
  }
}

// Sets a processor to take numbers below the normal ones for 0, and sets it back.
struct Flushing {
#if defined(__SSE__)
  unsigned before = _mm_getcsr();
  explicit Flushing(bool wanted) {
    if (wanted) _mm_setcsr(before | 0x8040);
  }
  ~Flushing() { _mm_setcsr(before); }
#else
  explicit Flushing(bool) {}
#endif
};

}  // namespace

void wait_for_block() { wait(State::at_block); }

void wait_for_team(int team, int threads_of_team) {
  threads[current].team = team;
  threads[current].team_size = threads_of_team;
  wait(State::at_team);
}

unsigned collective(Kind kind, unsigned mask, bool vote, int source, void* value, size_t bytes) {
  Collective& ask = threads[current].asks;
  ask.kind = kind;
  ask.mask = mask;
  ask.vote = vote;
  ask.source = source;
  memcpy(ask.value, value ? value : ask.value, bytes);
  wait(State::at_warp);
  Collective& answer = threads[current].asks;
  if (value) memcpy(value, answer.value, bytes);
  return answer.votes & mask;
}

int lane() { return current % warp_size; }

unsigned char* block_memory() { return dynamic_memory.get(); }

void copy_later(void* to, const void* from, int bytes, int there) {
  const Copy copy{to, from, bytes, there};
  if ((reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from)) % size_t(bytes)) misaligned = current;
  if (shuffled)
    make(copy);
  else
    threads[current].copies.back().push_back(copy);
}

void commit_copies() { threads[current].copies.emplace_back(); }

void wait_for_copies(int but) {
  auto& groups = threads[current].copies;
  for (; int(groups.size()) - 1 > but; groups.erase(groups.begin()))
    for (const Copy& copy : groups.front()) make(copy);
}

namespace {

float toward_zero(double x) {
  const float rounded = float(x);
  if (std::isinf(rounded) || std::fabs(double(rounded)) <= std::fabs(x) || x != x) return rounded;
  return __uint_as_float(__float_as_uint(rounded) - 1);
}

float tf32(float x) { return __uint_as_float(__float_as_uint(x) & ~0x1FFFu); }

float rows_of_warps[32][16][8];  // A, by warp

}  // namespace

void multiply_tf32(float* d, int F, const float (&a)[4], const float* b, bool add) {
  float(&rows)[16][8] = rows_of_warps[current / warp_size];
  const int row = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; i++) rows[row + i % 2 * 8][t + i / 2 * 4] = tf32(a[i]);
  collective(Kind::sync, ~0u);
  for (int i = 0; i < 4 * F; i++) {
    double sum = add ? d[i] : 0.0;
    for (int k = 0; k < 8; k++)
      sum += double(rows[row + i / 2 % 2 * 8][k]) *
             double(tf32(b[i / 4 * 64 + k / 4 * 32 + (2 * t + i % 2) * 4 + k % 4]));
    d[i] = toward_zero(sum);
  }
  collective(Kind::sync, ~0u);
}

}  // namespace emulation

extern "C" const char* emulation_launch(const emulation::Kernel* kernel, const emulation::Request* request,
                                        const emulation::Argument* arguments) {
  using namespace emulation;
  const Flushing flushing(request->flush);
  try {
    check(*kernel, *request, arguments);
    std::vector<void*> places;
    for (int i = 0; i < request->count; i++)
      places.push_back(const_cast<unsigned long long*>(&arguments[i].value));
    emulation::kernel = kernel;
    values = places.data();
    dynamic_bytes = request->shared;
    dynamic_memory.reset(new unsigned char[dynamic_bytes]);
    run(request->grid, request->block, request->order);
    return nullptr;
  } catch (const Fault&) {
    made = 0;  // fibers of threads that are somewhere in a kernel are made anew
    current = -1;
    return problem.c_str();
  }
}
