// Launches kernels for emulator.py in a process of their own, where sanitizers watch them. Requests come through
// a pipe, the libraries of kernels are loaded as they are named.
//
// Every array gets memory of exactly its size and with its own alignment, so that the address sanitizer sees
// the first byte too far.

#include "runtime.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define EMULATION_ASAN 1
#endif

namespace {

void read_bytes(void* to, size_t count) {
  for (char* at = static_cast<char*>(to); count > 0;) {
    const ssize_t got = read(STDIN_FILENO, at, count);
    if (got <= 0) std::exit(0);  // the other side has gone
    at += got;
    count -= size_t(got);
  }
}

void write_bytes(const void* from, size_t count) {
  for (const char* at = static_cast<const char*>(from); count > 0;) {
    const ssize_t put = write(STDOUT_FILENO, at, count);
    if (put <= 0) std::exit(0);
    at += put;
    count -= size_t(put);
  }
}

template <class T> T read_value() {
  T value;
  read_bytes(&value, sizeof value);
  return value;
}

// An array of the caller: its bytes lie as far from a multiple of 256 as they do there.
struct Array {
  size_t bytes, offset;
  char* memory = nullptr;

  Array() : bytes(read_value<unsigned long long>()), offset(read_value<unsigned>()) {
    if (posix_memalign(reinterpret_cast<void**>(&memory), 256, offset + bytes)) std::abort();
#ifdef EMULATION_ASAN
    __asan_poison_memory_region(memory, offset);
#endif
    read_bytes(data(), bytes);
  }
  Array(const Array&) = delete;
  ~Array() {
#ifdef EMULATION_ASAN
    __asan_unpoison_memory_region(memory, offset);
#endif
    std::free(memory);
  }
  char* data() const { return memory + offset; }
};

// One request: library and number of the kernel in it, launch, arrays, arguments, in which the value of an array
// is its number. The answer: an empty message and the arrays, or a message.
void serve() {
  std::string path(read_value<unsigned>(), '\0');
  read_bytes(path.data(), path.size());
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto* kernels = library ? static_cast<emulation::Kernel*>(dlsym(library, "emulation_kernels")) : nullptr;
  const unsigned number = read_value<unsigned>();
  const auto request = read_value<emulation::Request>();
  std::vector<std::unique_ptr<Array>> arrays(read_value<unsigned>());
  for (auto& array : arrays) array = std::make_unique<Array>();
  std::vector<emulation::Argument> arguments(request.count);
  read_bytes(arguments.data(), arguments.size() * sizeof arguments[0]);
  for (auto& argument : arguments)
    if (argument.kind == 'p')
      argument.value = reinterpret_cast<unsigned long long>(arrays.at(argument.value)->data());

  const char* problem = kernels ? emulation_launch(kernels + number, &request, arguments.data()) : dlerror();
  const unsigned length = problem ? unsigned(strlen(problem)) : 0;
  write_bytes(&length, sizeof length);
  if (problem) write_bytes(problem, length);
  else
    for (auto& array : arrays) write_bytes(array->data(), array->bytes);
}

}  // namespace

int main() {
  for (;;) serve();
}
