// Modules that are loaded at run time: where kernels and variables are found by name.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <map>
#include <mutex>
#include <string>

#include "work/kernels.h"

namespace card {

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
