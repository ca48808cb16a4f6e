// What lies where: every allocation that CUDA knows of, on the device and on the host.
// Every function is called with memory_mutex held.
#pragma once
#include <stdint.h>

namespace card {

enum class Kind { device, pooled, reservation, variable, pinned, registered, managed };

struct Range {
  uintptr_t address;
  uint64_t bytes;
  Kind kind;
  int device;      // that was current, or on which it lies
  uint64_t id;     // differs between all allocations of this process
  void *pool;      // of a pooled allocation
  unsigned flags;  // as the caller gave them
};

inline bool is_host(Kind kind) { return kind == Kind::pinned || kind == Kind::registered; }

Range &add_range(uintptr_t address, uint64_t bytes, Kind kind, int device);
void remove_range(uintptr_t address);
// The range that begins there; the one that holds the address; null: none.
Range *range_at(uintptr_t address);
Range *range_around(uintptr_t address);

// Whether a copy may touch these bytes of device memory: they are allocated, or mapped where they are reserved.
bool is_allocated(uintptr_t address, uint64_t bytes);

}  // namespace card
