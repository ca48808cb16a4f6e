// The driver's calls that allocate memory and tell of it.
#include <string.h>

#include "core/process.h"
#include "driver/types.h"
#include "memory/addresses.h"
#include "memory/budget.h"
#include "memory/device_memory.h"
#include "memory/host_memory.h"
#include "memory/pools.h"
#include "memory/ranges.h"

using namespace card;

namespace {

void *pointer_of(Address address) { return reinterpret_cast<void *>(address); }

enum MemoryType { on_host = 1, on_device = 2 };

// Writes one attribute of a pointer, by the numbers of CUpointer_attribute; memory_mutex is held.
int write_attribute(void *data, int attribute, Address address) {
  if (!data) return CARD_INVALID_VALUE;
  Range *range = range_around(address);
  constexpr int is_capable = 10;  // of the old way to share memory between processes
  switch (attribute) {
    case 1: *static_cast<void **>(data) = range ? current_context() : nullptr; break;
    case 2: *static_cast<unsigned *>(data) = range ? (in_device_space(address) ? on_device : on_host) : 0; break;
    case 3: *static_cast<Address *>(data) = range ? address : 0; break;
    case 4: *static_cast<void **>(data) = range && !in_device_space(address) ? pointer_of(address) : nullptr; break;
    case 6:
    case 15: *static_cast<int *>(data) = 0; break;  // synchronous operations, no access from other devices
    case 7: *static_cast<uint64_t *>(data) = range ? range->id : 0; break;
    case 8: *static_cast<unsigned *>(data) = range && range->kind == Kind::managed; break;
    case 9: *static_cast<int *>(data) = range ? range->device : -2; break;
    case is_capable: *static_cast<int *>(data) = 0; break;
    case 11: *static_cast<Address *>(data) = range ? range->address : 0; break;
    case 12: *static_cast<size_t *>(data) = range ? range->bytes : 0; break;
    case 13: *static_cast<int *>(data) = range && (range->kind != Kind::reservation || is_allocated(address, 1)); break;
    case 14: *static_cast<uint64_t *>(data) = 0; break;              // handle types
    case 16: *static_cast<unsigned *>(data) = range ? 3 : 0; break;  // read and write
    case 17: *static_cast<void **>(data) = range ? range->pool : nullptr; break;
    default: return CARD_INVALID_VALUE;
  }
  return range ? 0 : CARD_INVALID_VALUE;
}

}  // namespace

CARD_API int cuMemGetInfo_v2(size_t *free, size_t *total) {
  return driver_call([&] {
    MemoryLock lock(memory_mutex());
    if (free) *free = free_bytes(current_device);
    if (total) *total = settings().description.total_bytes;
    return 0;
  });
}
CARD_ALIAS(cuMemGetInfo_v2) int cuMemGetInfo(size_t *, size_t *);

CARD_API int cuMemAlloc_v2(Address *address, size_t bytes) {
  return driver_call([&]() -> int {
    if (!address || !bytes) return CARD_INVALID_VALUE;
    return device_malloc(current_device, reinterpret_cast<void **>(address), bytes);
  });
}
CARD_ALIAS(cuMemAlloc_v2) int cuMemAlloc(Address *, size_t);

CARD_API int cuMemAllocPitch_v2(Address *address, size_t *pitch, size_t width, size_t height, unsigned) {
  if (!pitch) return CARD_INVALID_VALUE;
  *pitch = round_up(width, 512);
  return cuMemAlloc_v2(address, *pitch * height);
}
CARD_ALIAS(cuMemAllocPitch_v2) int cuMemAllocPitch(Address *, size_t *, size_t, size_t, unsigned);

CARD_API int cuMemFree_v2(Address address) {
  return is_forked() ? 0 : driver_call([&] { return device_free(pointer_of(address)); });
}
CARD_ALIAS(cuMemFree_v2) int cuMemFree(Address);

CARD_API int cuMemAllocManaged(Address *address, size_t bytes, unsigned flags) {
  return driver_call([&] { return managed_malloc(reinterpret_cast<void **>(address), bytes, flags); });
}

CARD_API int cuMemAllocAsync(Address *address, size_t bytes, void *) {
  return driver_call(
      [&] { return pool_malloc(current_pool(current_device), reinterpret_cast<void **>(address), bytes); });
}

CARD_API int cuMemAllocFromPoolAsync(Address *address, size_t bytes, Pool *pool, void *) {
  return driver_call([&] { return pool_malloc(pool, reinterpret_cast<void **>(address), bytes); });
}

CARD_API int cuMemFreeAsync(Address address, void *) { return cuMemFree_v2(address); }

CARD_API int cuDeviceGetDefaultMemPool(Pool **pool, int device) {
  return driver_call([&]() -> int {
    if (!pool || !valid_device(device)) return CARD_INVALID_VALUE;
    *pool = default_pool(device);
    return 0;
  });
}

CARD_API int cuDeviceGetMemPool(Pool **pool, int device) {
  return driver_call([&]() -> int {
    if (!pool || !valid_device(device)) return CARD_INVALID_VALUE;
    *pool = current_pool(device);
    return 0;
  });
}

CARD_API int cuMemPoolGetAttribute(Pool *pool, int attribute, void *value) {
  return driver_call([&] { return pool_attribute(pool, attribute, value); });
}

CARD_API int cuMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
  return driver_call([&] { return set_pool_attribute(pool, attribute, value); });
}

CARD_API int cuMemPoolTrimTo(Pool *pool, size_t keep) {
  return driver_call([&] { return pool_trim(pool, keep); });
}

// ---- host memory

CARD_API int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  return driver_call([&] { return pinned_malloc(pointer, bytes, flags); });
}

CARD_API int cuMemAllocHost_v2(void **pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }
CARD_ALIAS(cuMemAllocHost_v2) int cuMemAllocHost(void **, size_t);

CARD_API int cuMemFreeHost(void *pointer) {
  return is_forked() ? 0 : driver_call([&] { return pinned_free(pointer); });
}

CARD_API int cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
  return driver_call([&] { return host_register(pointer, bytes, flags); });
}
CARD_ALIAS(cuMemHostRegister_v2) int cuMemHostRegister(void *, size_t, unsigned);

CARD_API int cuMemHostUnregister(void *pointer) {
  return is_forked() ? 0 : driver_call([&] { return host_unregister(pointer); });
}

CARD_API int cuMemHostGetDevicePointer_v2(Address *device, void *host, unsigned) {
  if (device) *device = 0;
  return driver_call([&]() -> int {
    MemoryLock lock(memory_mutex());
    Range *range = range_around(reinterpret_cast<uintptr_t>(host));
    if (!device || !range || !is_host(range->kind)) return CARD_INVALID_VALUE;
    *device = reinterpret_cast<Address>(host);
    return 0;
  });
}
CARD_ALIAS(cuMemHostGetDevicePointer_v2) int cuMemHostGetDevicePointer(Address *, void *, unsigned);

CARD_API int cuMemHostGetFlags(unsigned *flags, void *host) {
  return driver_call([&]() -> int {
    MemoryLock lock(memory_mutex());
    Range *range = range_around(reinterpret_cast<uintptr_t>(host));
    if (!flags || !range || !is_host(range->kind)) return CARD_INVALID_VALUE;
    *flags = range->flags;
    return 0;
  });
}

// ---- pointers

CARD_API int cuMemGetAddressRange_v2(Address *base, size_t *bytes, Address address) {
  return driver_call([&]() -> int {
    MemoryLock lock(memory_mutex());
    Range *range = range_around(address);
    if (!range) return CARD_NOT_FOUND;
    if (base) *base = range->address;
    if (bytes) *bytes = range->bytes;
    return 0;
  });
}
CARD_ALIAS(cuMemGetAddressRange_v2) int cuMemGetAddressRange(Address *, size_t *, Address);

CARD_API int cuPointerGetAttribute(void *data, int attribute, Address address) {
  return driver_call([&] {
    MemoryLock lock(memory_mutex());
    return write_attribute(data, attribute, address);
  });
}

// Unlike the single call this one succeeds for pointers that CUDA does not know.
CARD_API int cuPointerGetAttributes(unsigned count, const int *attributes, void **data, Address address) {
  return driver_call([&]() -> int {
    if (!attributes || !data) return CARD_INVALID_VALUE;
    MemoryLock lock(memory_mutex());
    for (unsigned i = 0; i < count; i++) write_attribute(data[i], attributes[i], address);
    return 0;
  });
}

// Accepted: whether copies of this memory wait, and hints about managed memory.
CARD_API int cuPointerSetAttribute(const void *, int, Address) {
  return driver_call([] { return 0; });
}
CARD_API int cuMemAdvise(Address, size_t, int, int) {
  return driver_call([] { return 0; });
}
CARD_API int cuMemAdvise_v2(Address, size_t, int, MemoryLocation) {
  return driver_call([] { return 0; });
}
CARD_API int cuMemPrefetchAsync(Address, size_t, int, void *) {
  return driver_call([] { return 0; });
}
CARD_API int cuMemPrefetchAsync_v2(Address, size_t, MemoryLocation, unsigned, void *) {
  return driver_call([] { return 0; });
}
