// The address space of device memory: a part of this process's that nothing else uses, and the bytes copied there.
//
// Addresses repeat from run to run and follow AddressOrder: ascending ones are not used twice, until the part is used
// up; scattered ones are pseudo-random; spans (memory/spans.h) are for cudaMalloc, and all else is ascending then. A
// page of 2 MiB becomes accessible when something is written to it, and host memory is used for what was written only.
// Every function is called with memory_mutex held.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

constexpr uintptr_t device_low = 0x200000000000, device_high = 0x500000000000;  // Python's heap lies above

inline uintptr_t address_of(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }

inline bool in_device_space(uintptr_t address) { return address - device_low < device_high - device_low; }
inline bool in_device_space(const void *pointer) { return in_device_space(address_of(pointer)); }

// Takes `bytes`, a multiple of 2 MiB, at `hint` where it is free, else by the order; 0 where there is no room.
uintptr_t take_addresses(uint64_t bytes, uint64_t alignment = 0, uintptr_t hint = 0);
// The same for cudaMalloc.
uintptr_t take_segment(int device, uint64_t bytes);
void give_addresses(uintptr_t address);

// False: the kernel denies a further mapping, and the bytes are what they were.
bool write_content(uintptr_t to, const void *from, size_t bytes);
bool fill_content(uintptr_t to, int byte, size_t bytes);
void read_content(void *to, uintptr_t from, size_t bytes);  // what was never written is 0
bool move_content(uintptr_t to, uintptr_t from, size_t bytes);

// The pages are unmapped by the caller.
void forget_content(uintptr_t address, uint64_t bytes);
// Makes the pages unwritten again.
void clear_content(uintptr_t address, uint64_t bytes);

}  // namespace card
