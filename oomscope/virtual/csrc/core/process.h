// Whether this process may use the card, and what each of its threads has chosen.
//
// A process settles on its card at its first CUDA call, not when the library is loaded: a fork before that chooses its
// own. After it, a fork is as dead to the card as on a real one: every call in the child fails.
#pragma once
#include <atomic>

#include "card.h"
#include "core/settings.h"

namespace card {

constexpr int process_ready = 1, process_forked = 3;
extern std::atomic<int> process_state;
extern __thread int current_device;  // ordinal among the visible devices
extern __thread int last_error;      // of the runtime

int enter_slowly();

inline int enter() {
  return __builtin_expect(process_state.load(std::memory_order_acquire) == process_ready, 1) ? 0 : enter_slowly();
}

inline bool valid_device(int device) { return device >= 0 && device < settings().description.devices; }

// Runs the body of a call of the driver.
template <class Body>
inline int driver_call(Body body) {
  int status = enter();
  return status ? status : body();
}

// The same of a call about one of the visible devices.
template <class Body>
inline int device_call(int device, Body body) {
  return driver_call([&]() -> int { return valid_device(device) ? body() : CARD_INVALID_DEVICE; });
}

// Runs the body of a call of the runtime.
template <class Body>
inline int runtime_call(Body body) {
  return card_runtime_status(driver_call(body));
}

// Answers a question where the caller has room for the answer.
template <class Out, class Value>
inline int tell(Out *out, Value value) {
  if (!out) return CARD_INVALID_VALUE;
  *out = static_cast<Out>(value);
  return 0;
}

// In a fork of a process that had used the card there is nothing to give back, and calls that give something back
// succeed: destructors that end such a process make them.
inline bool is_forked() { return __builtin_expect(process_state.load(std::memory_order_acquire) == process_forked, 0); }

}  // namespace card
