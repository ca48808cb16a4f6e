// Kernels: those that libraries register when they are loaded, known by the address of a host function, and those that
// are taken from modules at run time.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <map>
#include <mutex>
#include <string>

#include "code/cubin.h"
#include "code/fat_binary.h"

namespace card {

struct Registered {
  const void *host;  // null: not registered
  const char *name;
  FatBinary *code;
  const Signature *signature;  // once it was read
};

void register_kernel(FatBinary *code, const void *host, const char *name);
Registered find_registered(const void *host);

constexpr int plausible_registers = 64;  // of kernels whose code cannot be read

struct Kernel {  // CUfunction, CUkernel, cudaKernel_t
  static constexpr uint64_t live = 0x6c656e72656b766f;
  uint64_t mark = live;
  std::string name;
  Signature signature;
  const void *module = nullptr;
  int max_dynamic_shared = 48 << 10;
  int registers = plausible_registers, static_shared = 0, max_threads = 1024;
};

Kernel *find_kernel(const void *handle);  // null: no such kernel

struct Shape {
  unsigned grid[3], block[3];
  uint64_t shared;
};

// Checks the launch and does what the card does of a kernel: counts it, forgets what its arguments point into, or adds
// a node. Returns a status of the runtime; the driver's numbers agree but for invalid_configuration.
constexpr int invalid_configuration = 9;
int launch_host(const void *host, const Shape &shape, void *stream, void **arguments);
int launch_kernel(Kernel *kernel, const Shape &shape, void *stream, void **arguments, void **extra);

// How many blocks of so many threads fit on a multiprocessor.
int occupancy(int registers, int threads, uint64_t shared);
// The same of a kernel that a program registered, by its registers and shared memory where its code can be read.
int occupancy_of(const void *host, int threads, uint64_t shared);

struct Variable {
  uintptr_t address;
  size_t bytes;
};

struct Module {  // CUmodule, CUlibrary, cudaLibrary_t
  static constexpr uint64_t live = 0x656c75646f6d766f;
  uint64_t mark = live;
  bool is_readable = false;  // a cubin: its kernels are known, others are not found
  std::mutex mutex;
  std::map<std::string, Kernel *> kernels;
  std::map<std::string, Variable> variables;
};

int load_module(Module **module, const void *image);
int load_module_file(Module **module, const char *path);
int unload_module(Module *module);
int module_kernel(Module *module, const char *name, Kernel **kernel);
int module_variable(Module *module, const char *name, Variable *variable);

// Memory of a module's variable, which the driver takes with the module: not part of the budget.
uintptr_t variable_memory(size_t bytes);

int kernel_attribute(const Kernel &kernel, int attribute, int *value);
int set_kernel_attribute(Kernel &kernel, int attribute, int value);

}  // namespace card
