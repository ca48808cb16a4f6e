// Kernels: those that libraries register when they are loaded, known by the address of a host function, and those that
// are taken from modules at run time.
#pragma once
#include <stdint.h>

#include <atomic>
#include <string>

#include "work/fat_binary.h"
#include "work/signature.h"

namespace card {

void register_kernel(FatBinary *code, const void *host, const char *name);
const char *name_of_host(const void *host);  // null: not registered
const FatBinary *code_of_host(const void *host);

struct Kernel {  // CUfunction, CUkernel, cudaKernel_t
  static constexpr uint64_t live = 0x6c656e72656b766f;
  uint64_t mark = live;
  std::string name;
  Signature signature;
  const void *module = nullptr;
  int max_dynamic_shared = 48 << 10;
  int registers = 64, static_shared = 0, max_threads = 1024;
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

}  // namespace card
