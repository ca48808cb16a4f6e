// Keeps addresses that earlier calls have left on the stack out of the arguments of later kernels.
//
// Arguments are often structs of which only a part is set (arrays of 25 sizes, of 128 inputs). The rest is whatever
// earlier calls left on the stack, and that may be the address of what was copied meanwhile: a kernel that never saw
// that tensor would seem to be given it. So for a while after a copy the calls of the runtime clear the unused part of
// their thread's stack. Nothing depends on it but how many held bytes become unknown without need.
#pragma once
#include <stdint.h>

#include <atomic>

namespace card {

struct Stack {
  uintptr_t low, high;
};

// The calling thread's stack; {0, 0} where it is not known. Its lowest part may not be mapped yet.
Stack own_stack();

extern std::atomic<unsigned> copies_made;
extern __thread unsigned copies_heeded;
extern __thread int stack_wipes_left;

void wipe_stack();

// At a copy that holds or reads held bytes.
inline void leave_stack_dirty() { copies_made.fetch_add(1, std::memory_order_relaxed); }

// In calls that programs make often, outside of the work itself.
inline void tidy_stack() {
  unsigned made = copies_made.load(std::memory_order_relaxed);
  if (__builtin_expect(copies_heeded == made && stack_wipes_left == 0, 1)) return;
  constexpr int wipes = 256;
  if (copies_heeded != made) stack_wipes_left = wipes;
  copies_heeded = made;
  stack_wipes_left--;
  wipe_stack();
}

}  // namespace card
