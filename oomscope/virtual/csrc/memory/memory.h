// What programs allocate: cudaMalloc, host memory, mapped physical memory, and pools.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "memory/allocations.h"

namespace card {

// ---- cudaMalloc: memory of one device at fresh addresses
//
// The driver takes physical memory in pages of 2 MiB. Requests of at most 1 MiB share pages, at multiples of 512 bytes;
// larger ones are rounded up to whole pages of their own. (Seen on cards through cudaMemGetInfo; NVIDIA documents only
// an alignment of at least 256 bytes.)
int device_malloc(int device, void **pointer, size_t bytes);
int device_free(void *pointer);

// ---- page-locked host memory: ordinary memory that costs nothing before it is touched
int pinned_malloc(void **pointer, size_t bytes, unsigned flags);
int pinned_free(void *pointer);
int host_register(void *pointer, size_t bytes, unsigned flags);
int host_unregister(void *pointer);
// Whether it lies in page-locked memory of this process.
bool is_page_locked(uintptr_t address);

// Managed memory lies on the host until a device touches it, which nothing does here: it takes no device memory.
int managed_malloc(void **pointer, size_t bytes, unsigned flags);
int managed_free(void *pointer);

// ---- virtual memory management: physical memory of its own (cuMemCreate), and reserved addresses that it is mapped to
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

// ---- cudaMallocAsync: pools of memory of one device
//
// A pool reserves physical memory in steps of 32 MiB and keeps what was freed, until a synchronisation gives back what
// is above its release threshold. Where blocks lie inside a pool is not modelled: freed bytes serve any later request.
struct Pool {
  // Attributes by the numbers of CUmemPool_attribute; the first three are flags on which nothing depends.
  enum { reuse_follow_events = 1, reuse_internal_dependencies = 3, release_threshold, reserved, reserved_high, used,
         used_high, attribute_count };
  int device = 0;
  bool is_default = false;
  uint64_t of[attribute_count] = {0, 1, 1, 1};
};

Pool *default_pool(int device);
Pool *current_pool(int device);  // where cudaMallocAsync allocates
int set_current_pool(int device, Pool *pool);
Pool *new_pool(int device);
int destroy_pool(Pool *pool);
bool is_pool(Pool *pool);

int pool_malloc(Pool *pool, void **pointer, size_t bytes);
int pool_trim(Pool *pool, uint64_t keep);
int pool_attribute(Pool *pool, int attribute, void *value);
int set_pool_attribute(Pool *pool, int attribute, const void *value);

// A synchronisation: pools of the device give back what is above their thresholds.
void trim_pools(int device);

// Frees a pooled range, with memory_mutex held.
int give_pooled(Range &range);

}  // namespace card
