#include "work/stale_stack.h"

#include <stdint.h>
#include <string.h>

#include "work/own_stack.h"

namespace card {
namespace {

constexpr size_t wiped_bytes = 24 << 10, spared_bytes = 64 << 10;

}  // namespace

std::atomic<unsigned> copies_made{0};
__thread unsigned copies_heeded = 0;
__thread int stack_wipes_left = 0;

__attribute__((noinline)) void wipe_stack() {
  stack_wipes_left--;
  auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  Stack stack = own_stack();
  if (frame <= stack.low || frame >= stack.high || frame - stack.low < wiped_bytes + spared_bytes) return;
  char unused[wiped_bytes];
  memset(unused, 0, sizeof unused);
  __asm__ volatile("" : : "r"(unused) : "memory");  // it is read by nobody, and written all the same
}

}  // namespace card
