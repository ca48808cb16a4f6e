#include "work/own_stack.h"

#include <pthread.h>

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

}  // namespace card
