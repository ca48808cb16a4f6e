// What a compiled module (cubin: an ELF file for a GPU) says of its kernels.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

namespace card {

struct Signature {
  bool is_known = false;
  std::vector<uint32_t> bytes;  // of each parameter
};

struct CubinKernel {
  std::string name;
  Signature signature;
  int registers = 0, static_shared = 0, max_threads = 1024;
};

// Empty where the image is something else: PTX, a fat binary, or nothing that can be read.
std::vector<CubinKernel> kernels_of_cubin(const void *image, size_t bytes = SIZE_MAX);

}  // namespace card
