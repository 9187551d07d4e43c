// The other half of emulator.py: a program that launches kernels by name, with arguments that come through a
// pipe.
//
// Every array gets memory of exactly its size and with its own alignment, so that the address sanitizer sees
// the first byte too far. The sizes of scalar arguments are compared with the parameters, which CUDA itself
// never does.

#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <type_traits>

#ifdef EMULATION_ASAN
#include <sanitizer/asan_interface.h>
#endif
#if defined(EMULATION_FLUSH) && defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace emulation {

struct Parameter {
  size_t bytes;
  bool pointer, constant;
};

struct Kernel {
  std::vector<Parameter> parameters;
  std::function<void(void**)> call;
};

inline std::map<std::string, Kernel> kernels;

template <class... P, size_t... I>
void call_with(void (*kernel)(P...), void** values, std::index_sequence<I...>) {
  kernel(*static_cast<P*>(values[I])...);
}

template <class... P> bool add(const char* name, void (*kernel)(P...)) {
  std::vector<Parameter> parameters{
      {sizeof(P), std::is_pointer_v<P>, std::is_const_v<std::remove_pointer_t<P>>}...};
  kernels[name] = {parameters,
                   [kernel](void** values) { call_with(kernel, values, std::index_sequence_for<P...>()); }};
  return true;
}

inline void read_bytes(void* to, size_t count) {
  for (char* at = static_cast<char*>(to); count > 0;) {
    const ssize_t got = read(STDIN_FILENO, at, count);
    if (got <= 0) std::exit(0);  // the other side has gone
    at += got;
    count -= size_t(got);
  }
}

inline void write_bytes(const void* from, size_t count) {
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

// An argument: a scalar's bytes or the number of an array.
struct Argument {
  bool array;
  std::vector<char> value;

  Argument() : array(read_value<unsigned char>() != 0), value(read_value<unsigned>()) {
    read_bytes(value.data(), value.size());
  }
};

inline std::string mismatch(const Kernel& kernel, const std::vector<Argument>& arguments) {
  if (kernel.parameters.size() != arguments.size())
    return std::to_string(arguments.size()) + " arguments for " + std::to_string(kernel.parameters.size()) +
           " parameters";
  for (size_t i = 0; i < arguments.size(); i++) {
    const Parameter& parameter = kernel.parameters[i];
    if (arguments[i].array && !parameter.pointer)
      return "argument " + std::to_string(i) + " is an array, the parameter is not";
    if (!arguments[i].array && arguments[i].value.size() != parameter.bytes)
      return "argument " + std::to_string(i) + " has " + std::to_string(arguments[i].value.size()) +
             " bytes, the parameter " + std::to_string(parameter.bytes);
  }
  return "";
}

// One request: name, grid, block, order, arrays, arguments. The answer: an empty message and the arrays, or a
// message.
inline void serve() {
  std::string name(read_value<unsigned>(), '\0');
  read_bytes(name.data(), name.size());
  const dim3 grid = read_value<dim3>(), block = read_value<dim3>();
  const unsigned order = read_value<unsigned>();
  std::vector<std::unique_ptr<Array>> arrays(read_value<unsigned>());
  for (auto& array : arrays) array = std::make_unique<Array>();
  std::vector<Argument> arguments(read_value<unsigned>());

  const auto found = kernels.find(name);
  const std::string problem =
      found == kernels.end() ? "no kernel " + name : mismatch(found->second, arguments);
  const unsigned length = unsigned(problem.size());
  if (length == 0) {
    std::vector<void*> pointers(arguments.size()), values(arguments.size());
    for (size_t i = 0; i < arguments.size(); i++) {
      values[i] = arguments[i].value.data();
      if (!arguments[i].array) continue;
      unsigned number;
      std::memcpy(&number, values[i], sizeof number);
      pointers[i] = arrays.at(number)->data();
      values[i] = &pointers[i];
    }
    launch(grid, block, order, [&] { found->second.call(values.data()); });
  }
  write_bytes(&length, sizeof length);
  write_bytes(problem.data(), length);
  if (length == 0)
    for (auto& array : arrays) write_bytes(array->data(), array->bytes);
}

}  // namespace emulation

int main() {
#if defined(EMULATION_FLUSH) && defined(__SSE__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // numbers below the normal ones are 0
#endif
  for (;;) emulation::serve();
}
