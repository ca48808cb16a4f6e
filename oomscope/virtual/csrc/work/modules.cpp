#include "work/kernels.h"

#include <stdio.h>

#include <algorithm>
#include <vector>

#include "code/cubin.h"
#include "core/process.h"
#include "memory/allocations.h"
#include "memory/space.h"

namespace card {
namespace {

constexpr int file_not_found = 301;
constexpr size_t unknown_variable_bytes = 4096;

Module *valid(Module *module) { return module && module->mark == Module::live ? module : nullptr; }

Kernel *add_kernel(Module *module, const std::string &name) {
  auto *kernel = new Kernel;
  kernel->name = name;
  kernel->module = module;
  module->kernels[name] = kernel;
  return kernel;
}

}  // namespace

int load_module(Module **module, const void *image) {
  if (!module || !image) return CARD_INVALID_VALUE;
  auto *loaded = new Module;
  for (auto &found : kernels_of_cubin(image)) {
    Kernel *kernel = add_kernel(loaded, found.name);
    kernel->signature = found.signature;
    kernel->registers = std::max(found.registers, 1);
    kernel->static_shared = found.static_shared;
    kernel->max_threads = found.max_threads;
    loaded->is_readable = true;
  }
  *module = loaded;
  return 0;
}

int load_module_file(Module **module, const char *path) {
  if (!module || !path) return CARD_INVALID_VALUE;
  FILE *file = fopen(path, "rbe");
  if (!file) return file_not_found;
  std::vector<char> image;
  char part[1 << 16];
  for (size_t got; (got = fread(part, 1, sizeof part, file)) > 0;) image.insert(image.end(), part, part + got);
  fclose(file);
  image.resize(std::max<size_t>(image.size(), 64));  // at least a header to look at
  return load_module(module, image.data());
}

// Kernels stay: a launch on another thread may hold one.
int unload_module(Module *module) {
  if (!valid(module)) return CARD_INVALID_HANDLE;
  module->mark = 0;
  return 0;
}

int module_kernel(Module *module, const char *name, Kernel **kernel) {
  if (!valid(module)) return CARD_INVALID_HANDLE;
  if (!name || !kernel) return CARD_INVALID_VALUE;
  std::lock_guard<std::mutex> guard(module->mutex);
  auto found = module->kernels.find(name);
  if (found == module->kernels.end() && module->is_readable) return CARD_NOT_FOUND;
  *kernel = found == module->kernels.end() ? add_kernel(module, name) : found->second;
  return 0;
}

int module_variable(Module *module, const char *name, Variable *variable) {
  if (!valid(module)) return CARD_INVALID_HANDLE;
  if (!name) return CARD_INVALID_VALUE;
  std::lock_guard<std::mutex> guard(module->mutex);
  auto &found = module->variables[name];
  if (!found.address) found = {variable_memory(unknown_variable_bytes), unknown_variable_bytes};
  *variable = found;
  return found.address ? 0 : CARD_OUT_OF_MEMORY;
}

uintptr_t variable_memory(size_t bytes) {
  MemoryLock lock(memory_mutex());
  uintptr_t address = take_addresses(round_up(std::max<size_t>(bytes, 1), device_page));
  if (address) add_range(address, bytes, Kind::variable, current_device);
  return address;
}

int kernel_attribute(const Kernel &kernel, int attribute, int *value) {
  if (!value) return CARD_INVALID_VALUE;
  auto &d = settings().description;
  switch (attribute) {
    case 0: *value = kernel.max_threads; break;
    case 1: *value = kernel.static_shared; break;
    case 4: *value = kernel.registers; break;
    case 5:
    case 6: *value = d.major * 10 + d.minor; break;
    case 8: *value = kernel.max_dynamic_shared; break;
    case 9: *value = -1; break;
    default: *value = 0; return attribute < 0 || attribute > 16 ? CARD_INVALID_VALUE : 0;
  }
  return 0;
}

int set_kernel_attribute(Kernel &kernel, int attribute, int value) {
  constexpr int max_dynamic_shared = 8;
  if (attribute < max_dynamic_shared || attribute > 16) return CARD_INVALID_VALUE;
  if (attribute != max_dynamic_shared) return 0;
  if (value < 0 || value + kernel.static_shared > settings().description.shared_per_block_bytes)
    return CARD_INVALID_VALUE;
  kernel.max_dynamic_shared = value;
  return 0;
}

}  // namespace card
