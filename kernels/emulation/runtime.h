// How a launch is asked for: by emulator.py in its own process, or by server.cpp in another one.

#pragma once

#include "cuda_emulation.h"

namespace emulation {

// An argument of a launch. `kind`: 'f' or 'i', a number of so many `bytes`, whose bits are the `value`; 'p', an
// array at that address, whose elements have the kind `to` and so many bytes.
struct Argument {
  unsigned long long value;
  unsigned bytes;
  char kind, to, unused[2];
};

struct Request {
  dim3 grid, block;
  unsigned order;  // of threads and blocks: 0 forward, 1 backward, else the seed of a shuffle
  unsigned flush;  // whether numbers below the normal ones are 0
  unsigned shared; // bytes of dynamic shared memory
  int count;       // of arguments
};

}  // namespace emulation

// Run a kernel over its grid. Returns nullptr, or what was wrong, which is kept until the next launch.
extern "C" const char* emulation_launch(const emulation::Kernel* kernel, const emulation::Request* request,
                                        const emulation::Argument* arguments);
