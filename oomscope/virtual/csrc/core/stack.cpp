#include "core/stack.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

namespace card {

Stack own_stack() {
  static __thread Stack stack{0, 0};
  if (stack.high) return stack;
  pthread_attr_t attributes;
  void *low = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &low, &bytes);
    pthread_attr_destroy(&attributes);
  }
  stack = {reinterpret_cast<uintptr_t>(low), reinterpret_cast<uintptr_t>(low) + bytes};
  return stack;
}

namespace {

// A kernel's arguments have up to 32 KiB, and lie below what called it.
constexpr size_t wiped_bytes = 48 << 10, spared_bytes = 64 << 10;

}  // namespace

std::atomic<unsigned> copies_made{0};
__thread unsigned copies_heeded = 0;
__thread int stack_wipes_left = 0;

__attribute__((noinline)) void wipe_stack() {
  auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  Stack stack = own_stack();
  if (frame <= stack.low || frame >= stack.high || frame - stack.low < wiped_bytes + spared_bytes) return;
  char unused[wiped_bytes];
  memset(unused, 0, sizeof unused);
  __asm__ volatile("" : : "r"(unused) : "memory");  // it is read by nobody, and written all the same
}

}  // namespace card
