// The parameters of a kernel, as its machine code declares them.
#pragma once
#include <stdint.h>

#include <vector>

namespace card {

struct Signature {
  bool is_known = false;
  std::vector<uint32_t> bytes;  // of each parameter
};

}  // namespace card
