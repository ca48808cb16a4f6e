// How much of each device's memory is left. Every function is called with memory_mutex held.
#pragma once
#include <stdint.h>

#include <mutex>

namespace card {

constexpr uint64_t device_page = 2 << 20;  // physical memory is handed out in pages of 2 MiB

inline uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Guards all bookkeeping of memory: budget, addresses, ranges and values.
std::mutex &memory_mutex();
using MemoryLock = std::lock_guard<std::mutex>;

// Takes bytes of a device, or counts a refusal and returns false.
bool take(int device, uint64_t bytes);
void give(int device, uint64_t bytes);
uint64_t free_bytes(int device);

}  // namespace card
