// Virtual memory management: physical memory of its own (cuMemCreate), and reserved addresses that it is mapped to.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

int create_physical(int device, uint64_t bytes, uint64_t *handle);
int release_physical(uint64_t handle);
int physical_device(uint64_t handle, int *device);
int reserve_addresses(uint64_t bytes, uint64_t alignment, uintptr_t hint, int device, uintptr_t *address);
int free_addresses(uintptr_t address, uint64_t bytes);
int map_physical(uintptr_t address, uint64_t bytes, uint64_t handle);
int unmap_physical(uintptr_t address, uint64_t bytes);
// Whether all of the range is mapped, for cuMemSetAccess.
int check_mapped(uintptr_t address, uint64_t bytes);
// The handle that is mapped around the address, with one more reference.
int retain_physical(uintptr_t address, uint64_t *handle);

// With memory_mutex held.
bool is_mapped(uintptr_t address, uint64_t bytes);

}  // namespace card
