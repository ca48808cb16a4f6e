// The bytes of device memory that were ever copied there. A page of 2 MiB becomes accessible when something is written
// to it, and host memory is used for what was written only. Every function is called with memory_mutex held, on ranges
// that are allocated.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

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
