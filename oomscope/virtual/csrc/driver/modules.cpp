// The driver's modules, libraries and kernels.
#include "work/kernels.h"

#include <string.h>

#include "code/fat_binary.h"
#include "core/process.h"
#include "driver/types.h"

using namespace card;

namespace {

template <class Body>
int kernel_call(Kernel *handle, Body body) {
  return driver_call([&]() -> int {
    Kernel *kernel = find_kernel(handle);
    return kernel ? body(*kernel) : CARD_INVALID_HANDLE;
  });
}

int give_variable(Module *module, const char *name, Address *address, size_t *bytes) {
  Variable variable{};
  int status = module_variable(module, name, &variable);
  if (address) *address = variable.address;
  if (bytes) *bytes = variable.bytes;
  return status;
}

Shape shape_of(const unsigned grid[3], const unsigned block[3], unsigned shared) {
  return {{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared};
}

}  // namespace

CARD_API int cuModuleLoadData(Module **module, const void *image) {
  return driver_call([&] { return load_module(module, image); });
}
CARD_API int cuModuleLoad(Module **module, const char *path) {
  return driver_call([&] { return load_module_file(module, path); });
}
CARD_API int cuModuleUnload(Module *module) {
  return is_forked() ? 0 : driver_call([&] { return unload_module(module); });
}
CARD_API int cuModuleGetFunction(Kernel **kernel, Module *module, const char *name) {
  return driver_call([&] { return module_kernel(module, name, kernel); });
}
CARD_API int cuModuleGetGlobal_v2(Address *address, size_t *bytes, Module *module, const char *name) {
  return driver_call([&] { return give_variable(module, name, address, bytes); });
}

CARD_API int cuLibraryGetModule(Module **module, Module *library) {
  return driver_call([&]() -> int { return library ? tell(module, library) : CARD_INVALID_VALUE; });
}
CARD_API int cuLibraryGetKernelCount(unsigned *count, Module *library) {
  return driver_call([&]() -> int { return library ? tell(count, library->kernels.size()) : CARD_INVALID_VALUE; });
}
CARD_API int cuLibraryEnumerateKernels(Kernel **kernels, unsigned count, Module *library) {
  return driver_call([&]() -> int {
    if (!kernels || !library) return CARD_INVALID_VALUE;
    std::lock_guard<std::mutex> guard(library->mutex);
    unsigned i = 0;
    for (auto &[name, kernel] : library->kernels)
      if (i < count) kernels[i++] = kernel;
    return 0;
  });
}

// ---- kernels

CARD_API int cuKernelGetFunction(Kernel **function, Kernel *handle) {
  return kernel_call(handle, [&](Kernel &kernel) { return tell(function, &kernel); });
}
CARD_API int cuFuncGetName(const char **name, Kernel *handle) {
  return kernel_call(handle, [&](Kernel &kernel) { return tell(name, kernel.name.c_str()); });
}
CARD_API int cuFuncGetModule(const void **module, Kernel *handle) {
  return kernel_call(handle, [&](Kernel &kernel) { return tell(module, kernel.module); });
}

CARD_API int cuFuncGetParamInfo(Kernel *handle, size_t index, size_t *offset, size_t *bytes) {
  return kernel_call(handle, [&](Kernel &kernel) -> int {
    auto &sizes = kernel.signature.bytes;
    if (!offset || index >= sizes.size()) return CARD_INVALID_VALUE;
    *offset = 0;
    for (size_t i = 0; i <= index; i++) {
      size_t alignment = sizes[i] >= 8 ? 8 : sizes[i] ? sizes[i] : 1;
      *offset = (*offset + alignment - 1) / alignment * alignment + (i < index ? sizes[i] : 0);
    }
    if (bytes) *bytes = sizes[index];
    return 0;
  });
}

CARD_API int cuFuncGetAttribute(int *value, int attribute, Kernel *handle) {
  return kernel_call(handle, [&](Kernel &kernel) { return kernel_attribute(kernel, attribute, value); });
}
CARD_API int cuFuncSetAttribute(Kernel *handle, int attribute, int value) {
  return kernel_call(handle, [&](Kernel &kernel) { return set_kernel_attribute(kernel, attribute, value); });
}
CARD_API int cuKernelSetAttribute(int attribute, int value, Kernel *handle, int) {
  return cuFuncSetAttribute(handle, attribute, value);
}

// ---- launches

CARD_API int cuLaunchKernel(Kernel *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                            void **extra) {
  unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
  return kernel_call(handle, [&](Kernel &kernel) {
    return launch_kernel(&kernel, shape_of(grid, block, shared), stream, arguments, extra);
  });
}

CARD_API int cuLaunchKernelEx(const KernelConfig *config, Kernel *handle, void **arguments, void **extra) {
  return kernel_call(handle, [&](Kernel &kernel) -> int {
    if (!config) return CARD_INVALID_VALUE;
    Shape shape = shape_of(config->grid, config->block, config->shared);
    return launch_kernel(&kernel, shape, config->stream, arguments, extra);
  });
}

CARD_API int cuLaunchCooperativeKernel(Kernel *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                       void *stream, void **arguments) {
  return cuLaunchKernel(handle, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, nullptr);
}

CARD_API int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Kernel *handle, int threads,
                                                                  size_t shared, unsigned) {
  return kernel_call(handle, [&](Kernel &kernel) -> int {
    if (!blocks || threads <= 0) return CARD_INVALID_VALUE;
    *blocks = occupancy(kernel.registers, threads, shared + static_cast<size_t>(kernel.static_shared));
    return 0;
  });
}

CARD_API int cuOccupancyMaxPotentialBlockSize(int *grid, int *threads, Kernel *handle, size_t (*shared_of)(int),
                                              size_t shared, int limit) {
  return kernel_call(handle, [&](Kernel &kernel) -> int {
    if (!grid || !threads) return CARD_INVALID_VALUE;
    *threads = limit > 0 && limit < kernel.max_threads ? limit : kernel.max_threads;
    size_t needed = shared_of ? shared_of(*threads) : shared;
    *grid = settings().description.multiprocessors * occupancy(kernel.registers, *threads, needed);
    return 0;
  });
}

CARD_API int cuOccupancyMaxActiveClusters(int *clusters, Kernel *handle, const KernelConfig *) {
  auto &d = settings().description;
  return kernel_call(handle, [&](Kernel &) { return tell(clusters, d.major >= 9 ? d.multiprocessors / 2 : 0); });
}

// A tensor map is an opaque argument of kernels: it keeps the address, so that a launch is seen to use it.
CARD_API int cuTensorMapEncodeTiled(void *map, int, uint32_t rank, void *address, const uint64_t *, const uint64_t *,
                                    const uint32_t *, const uint32_t *, int, int, int, int) {
  return driver_call([&]() -> int {
    if (!map || rank < 1 || rank > 5) return CARD_INVALID_VALUE;
    memset(map, 0, 128);
    memcpy(map, &address, sizeof address);
    return 0;
  });
}

CARD_API int cuTensorMapReplaceAddress(void *map, void *address) {
  return driver_call([&] { return tell(static_cast<void **>(map), address); });
}
