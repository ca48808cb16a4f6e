// The machine code that a compiled program registers for all its kernels: one image for each GPU that it was built for.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>

#include "code/cubin.h"

namespace card {

// The compute capabilities, as major * 10 + minor, of the code that runs on a card.
struct ImageVersion {
  int ptx;     // what it was compiled for
  int binary;  // of the machine code; the card's own where PTX is compiled by the driver
};

class FatBinary {
 public:
  // `wrapper` is what the compiler passes when the program is loaded; it is read when first asked for.
  explicit FatBinary(const void *wrapper);

  // Chooses as the driver does: machine code of the same major and the highest minor that is not above the card's, else
  // the highest PTX not above the card. {0, 0}: nothing runs on this card.
  ImageVersion version_for(int major, int minor) const;

  // What the code for a card says of one of its kernels; null where it cannot be read. The first call for a kernel of
  // this program decompresses the code. Not thread-safe.
  const CubinKernel *kernel(const std::string &name, int major, int minor);

 private:
  struct Choice;
  Choice choose(int major, int minor) const;

  const void *wrapper_;
  std::unique_ptr<std::unordered_map<std::string, CubinKernel>> kernels_;
};

}  // namespace card
