#pragma once
#include <stdint.h>

namespace card {

struct Stack {
  uintptr_t low, high;
};

// The calling thread's stack; {0, 0} where it is not known. Its lowest part may not be mapped yet.
Stack own_stack();

}  // namespace card
