// The addresses of device memory: a part of this process's address space that nothing else uses.
//
// They repeat from run to run and follow AddressOrder: ascending and descending ones are not used twice, until the part
// is used up; scattered ones are pseudo-random. Pages are not accessible until something is written there (content.h).
// Every function is called with memory_mutex held.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

constexpr uintptr_t device_low = 0x200000000000, device_high = 0x500000000000;  // Python's heap lies above

inline bool in_device_space(uintptr_t address) { return address - device_low < device_high - device_low; }
inline bool in_device_space(const void *pointer) { return in_device_space(reinterpret_cast<uintptr_t>(pointer)); }

// Takes `bytes`, a multiple of 2 MiB, at `hint` where it is free, else by the order; 0 where there is no room.
uintptr_t take_addresses(uint64_t bytes, uint64_t alignment = 0, uintptr_t hint = 0);
void give_addresses(uintptr_t address);

}  // namespace card
