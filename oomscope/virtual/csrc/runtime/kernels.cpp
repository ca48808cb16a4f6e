// The runtime's kernels: those that compiled programs register when they are loaded, and their launches.
#include "work/kernels.h"

#include <string.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/process.h"
#include "runtime/types.h"

using namespace card;

namespace {

struct Configuration {
  Dim3 grid, block;
  size_t shared;
  Stream_t stream;
};

std::vector<Configuration> &configurations() {  // pushed by <<<...>>>, popped by the stub that it calls
  static thread_local auto *all = new std::vector<Configuration>;
  return *all;
}

Shape shape_of(Dim3 grid, Dim3 block, size_t shared) {
  return {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared};
}

constexpr int attribute_dynamic_shared = 8, last_attribute = 16;
constexpr int invalid_function = 98, no_image = 209;

struct Allowed {
  std::mutex mutex;
  std::unordered_map<const void *, int> dynamic_shared;  // where cudaFuncSetAttribute raised it
};
Allowed &allowed() {
  static Allowed &all = *new Allowed;
  return all;
}

int dynamic_shared_of(const void *function) {
  std::lock_guard<std::mutex> guard(allowed().mutex);
  auto found = allowed().dynamic_shared.find(function);
  return found == allowed().dynamic_shared.end() ? 48 << 10 : found->second;
}

int image_version(const void *function, ImageVersion *version) {
  auto &d = settings().description;
  const FatBinary *code = find_registered(function).code;
  if (!code) return invalid_function;
  *version = code->version_for(d.major, d.minor);
  return version->ptx ? 0 : no_image;
}

int set_attribute(const void *function, int attribute, int value) {
  if (attribute < attribute_dynamic_shared || attribute >= last_attribute) return CARD_INVALID_VALUE;
  if (attribute != attribute_dynamic_shared) return 0;
  if (value < 0 || value > settings().description.shared_per_block_bytes) return CARD_INVALID_VALUE;
  std::lock_guard<std::mutex> guard(allowed().mutex);
  allowed().dynamic_shared[function] = value;
  return 0;
}

}  // namespace

// ---- called while a library is loaded: these touch no card

CARD_API FatBinary *__cudaRegisterFatBinary(const void *wrapper) { return new FatBinary(wrapper); }
CARD_API void __cudaRegisterFatBinaryEnd(FatBinary *) {}
CARD_API void __cudaUnregisterFatBinary(FatBinary *) {}
CARD_API char __cudaInitModule(FatBinary *) { return 1; }

CARD_API void __cudaRegisterFunction(FatBinary *code, const char *host, char *, const char *name, int, void *, void *,
                                     void *, void *, int *) {
  register_kernel(code, host, name);
}

// ---- launches

CARD_API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, Stream_t stream) {
  configurations().push_back({grid, block, shared, stream});
  return 0;
}

CARD_API int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void *stream) {
  auto &all = configurations();
  if (all.empty()) return last_error = 52;  // missing configuration
  auto &last = all.back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  memcpy(stream, &last.stream, sizeof last.stream);
  all.pop_back();
  return 0;
}

CARD_API int cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                              Stream_t stream) {
  return runtime_call([&] { return launch_host(function, shape_of(grid, block, shared), stream, arguments); });
}

CARD_API int cudaLaunchCooperativeKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                                         Stream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

CARD_API int cudaLaunchKernelExC(const LaunchConfig *config, const void *function, void **arguments) {
  if (!config) return last_error = CARD_INVALID_VALUE;
  return cudaLaunchKernel(function, config->grid, config->block, arguments, config->shared, config->stream);
}

// A cudaKernel_t is the host function of a registered kernel, or a Kernel of a library.
CARD_API int __cudaGetKernel(const void **kernel, const void *function) {
  *kernel = function;
  return 0;
}

CARD_API int __cudaLaunchKernel(const void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                                Stream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

CARD_API int cudaGetKernel(const void **kernel, const void *function) {
  return runtime_call([&]() -> int { return find_registered(function).name ? tell(kernel, function) : CARD_INVALID_VALUE; });
}

CARD_API int cudaFuncGetName(const char **name, const void *function) {
  return runtime_call([&]() -> int {
    int status = tell(name, find_registered(function).name);
    return status || *name ? status : invalid_function;
  });
}

// ---- what is asked of kernels

CARD_API int cudaFuncGetAttributes(FunctionAttributes *attributes, const void *function) {
  return runtime_call([&]() -> int {
    if (!attributes) return CARD_INVALID_VALUE;
    memset(attributes, 0, sizeof *attributes);
    // CUB takes the tuning for this PTX version, and fails where it is none that it was compiled for.
    ImageVersion version{};
    if (int status = image_version(function, &version)) return status;
    attributes->max_threads_per_block = 1024;
    attributes->registers = plausible_registers;
    attributes->ptx_version = version.ptx;
    attributes->binary_version = version.binary;
    attributes->max_dynamic_shared_bytes = dynamic_shared_of(function);
    attributes->preferred_carveout = -1;
    return 0;
  });
}

CARD_API int cudaFuncSetAttribute(const void *function, int attribute, int value) {
  return runtime_call([&] { return set_attribute(function, attribute, value); });
}

CARD_API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                    size_t shared, unsigned) {
  return runtime_call([&]() -> int {
    if (!blocks || threads <= 0) return CARD_INVALID_VALUE;
    *blocks = occupancy_of(function, threads, shared);
    return 0;
  });
}

CARD_API int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *shared, const void *, int blocks, int threads) {
  return runtime_call([&]() -> int {
    if (!shared || blocks <= 0 || threads <= 0) return CARD_INVALID_VALUE;
    auto &d = settings().description;
    int each = d.shared_per_multiprocessor_bytes / blocks - 1024;
    *shared = static_cast<size_t>(std::clamp(each, 0, d.shared_per_block_bytes));
    return 0;
  });
}

CARD_API int cudaOccupancyMaxActiveClusters(int *clusters, const void *, const LaunchConfig *) {
  auto &d = settings().description;
  return runtime_call([&] { return tell(clusters, d.major >= 9 ? d.multiprocessors / 2 : 0); });
}

CARD_API int cudaOccupancyMaxPotentialClusterSize(int *size, const void *, const LaunchConfig *) {
  return runtime_call([&] { return tell(size, settings().description.major >= 9 ? 8 : 0); });
}
