// How much of each device's memory is left, and every allocation that CUDA knows of, on the device and on the host.
// Every function is called with memory_mutex held.
#pragma once
#include <stdint.h>

#include <mutex>

namespace card {

constexpr uint64_t device_page = 2 << 20;  // physical memory is handed out in pages of 2 MiB

inline uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Guards all bookkeeping of memory: budget, addresses, ranges and values.
std::mutex &memory_mutex();
using MemoryLock = std::lock_guard<std::mutex>;

// Takes bytes of a device, or returns false.
bool take(int device, uint64_t bytes);
void give(int device, uint64_t bytes);
uint64_t free_bytes(int device);  // as programs are told

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
