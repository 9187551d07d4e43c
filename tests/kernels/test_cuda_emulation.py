"""The emulation finds what it promises to find, each fault in a kernel written for it."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.conftest import emulator

pytestmark = pytest.mark.kernels

SOURCE = r"""
__global__ void reverse(const int* from, int* to) {  // right: every thread reads what another one wrote
  __shared__ int held[64];
  held[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = held[63 - threadIdx.x];
}
__global__ void forgotten_barrier(const int* from, int* to) {
  __shared__ int held[64];
  held[threadIdx.x] = from[threadIdx.x];
  to[threadIdx.x] = held[63 - threadIdx.x];
}
__global__ void collectives(int* to) {
  const int lane = threadIdx.x % 32;
  int sum = lane;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  const unsigned odd = __ballot_sync(~0u, lane % 2);
  const int from_left = __shfl_up_sync(~0u, lane, 1), from_right = __shfl_down_sync(~0u, lane, 1, 8);
  __syncwarp();
  to[threadIdx.x] = sum + int(odd == 0xaaaaaaaau) * 1000 + from_left * 10000 + from_right * 1000000;
}
__global__ void half_warps(int* to) {  // two groups of lanes at different shuffles: allowed
  const unsigned mask = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
  int sum = 1;
  for (int step = 8; step > 0; step /= 2)
    if (threadIdx.x < 16) sum += __shfl_xor_sync(mask, sum, step);
  if (threadIdx.x >= 16) sum += __shfl_sync(mask, int(threadIdx.x), 20);
  to[threadIdx.x] = sum;
}
__global__ void count(int* to) { atomicAdd(to, 1); }
__global__ void divergent_barrier(int* to) {
  if (threadIdx.x < 32) __syncthreads(); else __syncwarp();
  if (threadIdx.x >= 32) { __shfl_sync(~0u, 1, 0); __syncthreads(); }
  if (threadIdx.x == 3) __syncthreads();
  *to = 1;
}
__global__ void early_return(int* to) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  *to = 1;
}
__global__ void left_warp(int* to) {
  if (threadIdx.x == 5) return;
  *to = __shfl_xor_sync(~0u, 1, 1);
}
__global__ void stranger(int* to) {
  if (threadIdx.x < 16) *to = __shfl_sync(0xffffu, 1, 20);
}
__global__ void unnamed(int* to) { *to = __shfl_sync(0xffffu, 1, 0); }
__global__ void mixed(int* to) {
  if (threadIdx.x % 2) __syncwarp(); else *to = __shfl_sync(~0u, 1, 0);
}
__global__ void out_of_bounds(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x + 1]; }
__global__ void before_bounds(const int* from, int* to) { to[threadIdx.x] = from[int(threadIdx.x) - 4]; }
__global__ void shared_bounds(int* to) {
  __shared__ int held[32];
  held[threadIdx.x + 1] = 1;
  *to = held[0];
}
__global__ void vector_load(const float* from, float* to) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}
__global__ void copies(const int* from, int* to) {  // reads before and after it waits
  int *held = reinterpret_cast<int*>(emulation::block_memory()), t = threadIdx.x;
  for (int i = 0; i < 2; i++) {
    emulation::copy_later(held + 32 * i + t, from + 32 * i + t, 4, i && t % 2 ? 0 : 4);
    emulation::commit_copies();
  }
  for (int left = 2; left >= 0; left--) {
    emulation::wait_for_copies(left);
    for (int i = 0; i < 2; i++, to += 32) to[t] = held[32 * i + t];
  }
}
__global__ void copy_too_early(const int* from, int* to) {  // into what the other warp still reads
  int *held = reinterpret_cast<int*>(emulation::block_memory()), t = threadIdx.x;
  for (int round = 0; round < 2; round++) {
    emulation::copy_later(held + t, from + 64 * round + t, 4, 4);
    emulation::commit_copies();
    emulation::wait_for_copies(0);
    __syncthreads();
    to[64 * round + t] = held[63 - t];
    __syncwarp();
  }
}
__global__ void misaligned_copy(int* to) {
  emulation::copy_later(emulation::block_memory(), to, 16, 0);
  emulation::copy_later(emulation::block_memory(), to + 1, 16, 0);
}
__global__ void beyond_dynamic(int* to) { to[0] = reinterpret_cast<int*>(emulation::block_memory())[8]; }
__global__ void tensor(const float* A, const float* B, float* D) {
  const int r = threadIdx.x / 4, t = threadIdx.x % 4;
  const float a[4] = {A[8 * r + t], A[8 * r + 64 + t], A[8 * r + t + 4], A[8 * r + 68 + t]};
  float* held = reinterpret_cast<float*>(emulation::block_memory());
  for (int i = threadIdx.x; i < 128; i += 32)
    held[i % 16 / 8 * 64 + i / 16 / 4 * 32 + i % 8 * 4 + i / 16 % 4] = B[i];
  __syncwarp();
  float d[8];
  float* to = D + 16 * r + 2 * t;
  for (int i = 0; i < 8; i++) d[i] = to[i % 2 + i / 2 % 2 * 128 + i / 4 * 8];
  emulation::multiply_tf32(d, 2, a, held, true);
  for (int i = 0; i < 8; i++) to[i % 2 + i / 2 % 2 * 128 + i / 4 * 8] = d[i];
}
__global__ void teams(int* to) {  // the second team goes to its barrier twice as often
  __shared__ int held[64];
  const int team = threadIdx.x / 32;
  for (int round = 0; round < 1 + team; round++) {
    held[threadIdx.x] = int(threadIdx.x) + 100 * round;
    emulation::wait_for_team(team, 32);
    to[threadIdx.x] = held[threadIdx.x / 32 * 32 + 31 - threadIdx.x % 32];
    emulation::wait_for_team(team, 32);
  }
}
__global__ void incomplete_team(int* to) {
  if (threadIdx.x) emulation::wait_for_team(0, 32);
  *to = 1;
}
__global__ void overflow(int by, int* to) { *to = (1 << 30) * by; }
"""
NAMES = [line.split("(")[0].split()[-1] for line in SOURCE.splitlines() if line.startswith("__global__")]


KERNELS = emulator.Kernels(SOURCE, NAMES)
UCONTEXT = (*emulator.SANITIZED, "-DEMULATION_UCONTEXT")
WAYS = {
    "sanitized": emulator.Apart,
    "sanitized, portable": lambda: emulator.Apart(UCONTEXT),  # how fibers are switched
    "in this process": emulator.Here,
}


@pytest.fixture(scope="module", params=WAYS)
def machine(request):
    """Yield what runs kernels, in every way that there is."""
    if emulator.compiler() is None:
        pytest.skip("no C++ compiler here (g++, or what CXX names) to emulate a GPU with")
    made = WAYS[request.param]()
    yield made
    if isinstance(made, emulator.Apart):
        made.close()


@pytest.fixture
def sanitized(machine):
    """Return the same; skip what has no sanitizers."""
    if not isinstance(machine, emulator.Apart):
        pytest.skip("no sanitizers in this process")
    return machine


def run(machine, name, threads, *arguments, order=0, grid=(1,), shared=0):
    machine.launch(KERNELS, name, grid, (threads,), arguments, order, shared)


@pytest.mark.parametrize("order", [0, 1, 7])
def test_barriers_and_collectives(machine, order):
    values, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    run(machine, "reverse", 64, values, out, order=order)
    np.testing.assert_array_equal(out, values[::-1])
    run(machine, "collectives", 64, out, order=order)
    lane = np.arange(64) % 32
    right = np.where(lane % 8 < 7, lane + 1, lane)
    np.testing.assert_array_equal(out, 496 + 1000 + np.maximum(lane - 1, 0) * 10000 + right * 1000000)
    run(machine, "half_warps", 32, out, order=order)
    np.testing.assert_array_equal(out[:32], [16] * 16 + [21] * 16)
    total = np.zeros(1, np.int32)
    run(machine, "count", 96, total, order=order, grid=(5, 2))
    assert total[0] == 960


@pytest.mark.parametrize("order", [0, 1, 7])
def test_copies_are_there_when_they_were_waited_for(machine, order):
    """Before, dynamic shared memory has what it had: NaNs, which are -1 as whole numbers.

    In shuffled orders they are made when they begin.
    """
    values, out = np.arange(1, 65, dtype=np.int32), np.zeros((3, 64), np.int32)
    run(machine, "copies", 32, values, out, order=order, shared=256)
    first, second = values[:32], np.where(np.arange(32) % 2, 0, values[32:])
    expected = [[-1] * 64, [*first, *[-1] * 32], [*first, *second]]
    expected = expected if order < 2 else expected[2:] * 3
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("order", [0, 1, 7])
def test_teams_wait_for_themselves(machine, order):
    out = np.zeros(64, np.int32)
    run(machine, "teams", 64, out, order=order)
    np.testing.assert_array_equal(out, [*range(31, -1, -1), *range(163, 131, -1)])


@pytest.mark.parametrize("order", [0, 1])
def test_tensor_cores(machine, order):
    """Operands have 11 bits that count, and sums are rounded toward zero."""
    random = np.random.default_rng(1)
    A, B, D = (random.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8, 16), (16, 16)))
    cut = [(X.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(float) for X in (A, B)]
    exact, out = D + cut[0] @ cut[1], D.copy()
    run(machine, "tensor", 32, A, B, out, order=order, shared=512)
    nearest = exact.astype(np.float32)
    toward_zero = np.where(abs(nearest) > abs(exact), np.nextafter(nearest, np.float32(0)), nearest)
    assert (toward_zero != nearest).any()
    np.testing.assert_array_equal(out, toward_zero)


def test_a_forgotten_barrier_shows_in_some_order(machine):
    values = np.arange(1, 65, dtype=np.int32)
    results = []
    for order in (0, 1, 7):
        out = np.zeros(64, np.int32)
        run(machine, "forgotten_barrier", 64, values, out, order=order)
        results.append(out)
    assert any((result != values[::-1]).any() for result in results)


def test_a_copy_to_where_others_read_shows_in_a_shuffled_order(machine):
    values, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    run(machine, "copy_too_early", 64, values, out, order=7, shared=256)
    assert (out != [*range(63, -1, -1), *range(127, 63, -1)]).any()


@pytest.mark.parametrize(
    ("name", "threads", "report"),
    [
        ("divergent_barrier", 64, "different barriers|has left|have left"),
        ("early_return", 32, "waits for threads that have left"),
        ("left_warp", 32, "waits for a lane that has left"),
        ("stranger", 32, "reads a lane that takes no part"),
        ("unnamed", 32, "mask does not name it"),
        ("mixed", 32, "different barriers"),
        ("incomplete_team", 32, "different barriers"),
        ("misaligned_copy", 32, "copy at a misaligned address"),
    ],
)
def test_faults_are_reported(machine, name, threads, report):
    with pytest.raises(emulator.EmulationError, match=report):
        run(machine, name, threads, np.zeros(4, np.int32), shared=16)
    run(machine, "count", 32, np.zeros(1, np.int32))  # and the next launch works


@pytest.mark.slow
def test_accesses_out_of_bounds(sanitized):
    memory = np.arange(65, dtype=np.int32)
    for start in range(4):  # at any alignment, to the byte
        values = memory[start : start + 32]
        with pytest.raises(emulator.EmulationError, match="AddressSanitizer: heap-buffer-overflow"):
            run(sanitized, "out_of_bounds", 32, values, np.zeros(32, np.int32))
    with pytest.raises(emulator.EmulationError, match="AddressSanitizer"):
        run(sanitized, "before_bounds", 32, values, np.zeros(32, np.int32))
    with pytest.raises(emulator.EmulationError, match="out of bounds"):
        run(sanitized, "shared_bounds", 32, np.zeros(1, np.int32))
    with pytest.raises(emulator.EmulationError, match="AddressSanitizer: heap-buffer-overflow"):
        run(sanitized, "beyond_dynamic", 32, np.zeros(1, np.int32), shared=32)
    run(sanitized, "count", 32, np.zeros(1, np.int32))  # in a new process


def test_misaligned_vectors_and_overflow(sanitized):
    room, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    offset = -room.ctypes.data % 16 // 4
    aligned_out = out[-out.ctypes.data % 16 // 4 :][:4]
    run(sanitized, "vector_load", 1, room[offset : offset + 4], aligned_out)
    with pytest.raises(emulator.EmulationError, match="misaligned address"):
        run(sanitized, "vector_load", 1, room[offset + 1 : offset + 5], aligned_out)
    with pytest.raises(emulator.EmulationError, match="signed integer overflow"):
        run(sanitized, "overflow", 1, np.int32(4), np.zeros(1, np.int32))


def test_arguments_are_compared_with_parameters(machine):
    out, both = np.zeros(1, np.int32), np.zeros(128, np.int32)
    for words, name, *arguments in (
        ("1 arguments for 2 parameters", "overflow", np.int32(4)),
        ("argument 0 is an integer of 8 bytes, the parameter an integer of 4", "overflow", np.int64(4), out),
        ("argument 0 is a floating-point number of 4 bytes, the", "overflow", np.float32(4), out),
        ("argument 0 is an array, the parameter is not", "overflow", out, out),
        ("argument 1 is an integer of 4 bytes, the parameter a poin", "overflow", np.int32(4), np.int32(4)),
        ("argument 1 is an array whose element is an integer of 8", "reverse", both, both.astype(np.int64)),
        ("argument 0 is an array whose element is a floating", "reverse", both.astype(np.float32), both),
        ("C-contiguous", "overflow", np.int32(4), np.zeros((4, 4), np.int32).T[:, ::2]),
    ):
        with pytest.raises(emulator.EmulationError, match=words):
            run(machine, name, 64, *arguments)
    with pytest.raises(emulator.EmulationError, match="more than 1024 threads"):
        run(machine, "count", 1025, out)


def test_arrays_that_overlap_in_part_are_refused(sanitized):
    both = np.zeros(128, np.int32)
    with pytest.raises(emulator.EmulationError, match="overlap"):
        run(sanitized, "reverse", 64, both[:64], both[32:96])


@pytest.mark.parametrize("flushed", [True, False])
def test_small_numbers_are_zeros_where_all_is_float32(flushed):
    """Small numbers are flushed as CuPy compiles; in double precision, and in what runs afterwards, not."""
    if emulator.compiler() is None:
        pytest.skip("no C++ compiler here")
    source = "__global__ void half(const float* x, float* y) { *y = *x * 0.5f; }"
    source += "" if flushed else "  // double"
    x, y = np.full(1, 1.2e-38, np.float32), np.ones(1, np.float32)
    emulator.Here().launch(emulator.Kernels(source, ["half"]), "half", (1,), (1,), (x, y))
    assert (y[0] == 0) == flushed and x[0] * np.float32(0.5) > 0


@pytest.mark.slow
def test_source_that_does_not_compile(machine):
    with pytest.raises(emulator.EmulationError, match="don't compile"):
        kernels = emulator.Kernels("__global__ void broken() { nothing; }", ["broken"])
        machine.launch(kernels, "broken", (1,), (1,), ())
