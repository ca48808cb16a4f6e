// The driver's calls that allocate memory and tell of it. Sharing between processes is not supported.
#include "memory/memory.h"

#include <string.h>

#include "core/process.h"
#include "driver/types.h"
#include "memory/space.h"
#include "work/streams.h"

using namespace card;

namespace {

constexpr int location_device = 1, fabric_handle = 8, read_and_write = 3;

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
    case 14: *static_cast<uint64_t *>(data) = 0; break;  // handle types
    case 16: *static_cast<unsigned *>(data) = range ? read_and_write : 0; break;
    case 17: *static_cast<void **>(data) = range ? range->pool : nullptr; break;
    default: return CARD_INVALID_VALUE;
  }
  return range ? 0 : CARD_INVALID_VALUE;
}

// Calls `body` with the page-locked range around a pointer.
template <class Body>
int host_call(const void *pointer, Body body) {
  return driver_call([&]() -> int {
    MemoryLock lock(memory_mutex());
    Range *range = range_around(reinterpret_cast<uintptr_t>(pointer));
    return range && is_host(range->kind) ? body(*range) : static_cast<int>(CARD_INVALID_VALUE);
  });
}

// A call in the order of a stream. What is allocated while it captures would belong to the graph: not supported.
template <class Body>
int pool_call(void *stream, const char *name, Body body) {
  return driver_call([&]() -> int {
    if (!find_stream(stream)) return CARD_INVALID_HANDLE;
    return card_is_capturing(stream) ? card_unsupported(name) : body();
  });
}

}  // namespace

CARD_API int cuMemGetInfo_v2(size_t *free, size_t *total) {
  if (free) *free = 0;
  if (total) *total = 0;
  return driver_call([&] {
    MemoryLock lock(memory_mutex());
    if (free) *free = free_bytes(current_device);
    if (total) *total = settings().description.total_bytes;
    return 0;
  });
}

CARD_API int cuMemAlloc_v2(void **pointer, size_t bytes) {
  return driver_call([&]() -> int {
    return bytes ? device_malloc(current_device, pointer, bytes) : static_cast<int>(CARD_INVALID_VALUE);
  });
}

CARD_API int cuMemAllocPitch_v2(void **pointer, size_t *pitch, size_t width, size_t height, unsigned) {
  int status = tell(pitch, round_up(width, pitch_unit));
  return status ? status : cuMemAlloc_v2(pointer, *pitch * height);
}

CARD_API int cuMemFree_v2(void *pointer) {
  return is_forked() ? 0 : driver_call([&] { return device_free(pointer); });
}

CARD_API int cuMemAllocManaged(void **pointer, size_t bytes, unsigned flags) {
  return driver_call([&] { return managed_malloc(pointer, bytes, flags); });
}

// ---- pools

CARD_API int cuMemAllocFromPoolAsync(void **pointer, size_t bytes, Pool *pool, void *stream) {
  if (pointer) *pointer = nullptr;
  return pool_call(stream, "cudaMallocAsync (in a graph)", [&] { return pool_malloc(pool, pointer, bytes); });
}

CARD_API int cuMemAllocAsync(void **pointer, size_t bytes, void *stream) {
  int status = enter();
  return cuMemAllocFromPoolAsync(pointer, bytes, status ? nullptr : current_pool(current_device), stream);
}

CARD_API int cuMemFreeAsync(void *pointer, void *stream) {
  return is_forked() ? 0 : pool_call(stream, "cudaFreeAsync (in a graph)", [&]() -> int {
    return pointer ? device_free(pointer) : static_cast<int>(CARD_INVALID_VALUE);
  });
}

CARD_API int cuDeviceGetDefaultMemPool(Pool **pool, int device) {
  return device_call(device, [&] { return tell(pool, default_pool(device)); });
}

CARD_API int cuDeviceGetMemPool(Pool **pool, int device) {
  return device_call(device, [&] { return tell(pool, current_pool(device)); });
}

CARD_API int cuDeviceSetMemPool(int device, Pool *pool) {
  return device_call(device, [&] { return set_current_pool(device, pool); });
}

CARD_API int cuMemPoolCreate(Pool **pool, const PoolProperties *properties) {
  return driver_call([&]() -> int {
    if (!pool || !properties) return CARD_INVALID_VALUE;
    if (properties->location.type != location_device) return card_unsupported("cudaMemPoolCreate (on the host)");
    if (!valid_device(properties->location.id)) return CARD_INVALID_DEVICE;
    return tell(pool, new_pool(properties->location.id));
  });
}

CARD_API int cuMemPoolDestroy(Pool *pool) {
  return is_forked() ? 0 : driver_call([&] { return destroy_pool(pool); });
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

CARD_API int cuMemPoolSetAccess(Pool *pool, const void *, size_t) {
  return driver_call([&]() -> int { return is_pool(pool) ? 0 : CARD_INVALID_VALUE; });
}

CARD_API int cuMemPoolGetAccess(int *flags, Pool *pool, MemoryLocation *) {
  return driver_call([&]() -> int { return is_pool(pool) ? tell(flags, read_and_write) : static_cast<int>(CARD_INVALID_VALUE); });
}

// ---- host memory

CARD_API int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  return driver_call([&] { return pinned_malloc(pointer, bytes, flags); });
}

CARD_API int cuMemAllocHost_v2(void **pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

CARD_API int cuMemFreeHost(void *pointer) {
  return is_forked() ? 0 : driver_call([&] { return pinned_free(pointer); });
}

CARD_API int cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
  return driver_call([&] { return host_register(pointer, bytes, flags); });
}

CARD_API int cuMemHostUnregister(void *pointer) {
  return is_forked() ? 0 : driver_call([&] { return host_unregister(pointer); });
}

CARD_API int cuMemHostGetDevicePointer_v2(void **device, void *host, unsigned) {
  if (device) *device = nullptr;
  return host_call(host, [&](Range &) { return tell(device, host); });
}

CARD_API int cuMemHostGetFlags(unsigned *flags, void *host) {
  if (flags) *flags = 0;
  return host_call(host, [&](Range &range) { return tell(flags, range.flags); });
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

// ---- virtual memory management

CARD_API int cuMemGetAllocationGranularity(size_t *bytes, const AllocationProperties *, int) {
  return driver_call([&] { return tell(bytes, device_page); });
}

CARD_API int cuMemAddressReserve(Address *address, size_t bytes, size_t alignment, Address hint, unsigned long long) {
  if (address) *address = 0;
  return driver_call([&] { return reserve_addresses(bytes, alignment, hint, current_device, address); });
}

CARD_API int cuMemAddressFree(Address address, size_t bytes) {
  return is_forked() ? 0 : driver_call([&] { return free_addresses(address, bytes); });
}

CARD_API int cuMemCreate(uint64_t *handle, size_t bytes, const AllocationProperties *properties, unsigned long long) {
  if (handle) *handle = 0;
  return driver_call([&]() -> int {
    if (!properties) return CARD_INVALID_VALUE;
    if (properties->location.type != location_device) return card_unsupported("cuMemCreate (on the host)");
    if (!valid_device(properties->location.id)) return CARD_INVALID_DEVICE;
    if (properties->handle_types & fabric_handle) return card_unsupported("cuMemCreate (for a fabric)");
    return create_physical(properties->location.id, bytes, handle);
  });
}

CARD_API int cuMemRelease(uint64_t handle) {
  return is_forked() ? 0 : driver_call([&] { return release_physical(handle); });
}

CARD_API int cuMemMap(Address address, size_t bytes, size_t offset, uint64_t handle, unsigned long long) {
  return driver_call([&]() -> int { return offset ? CARD_INVALID_VALUE : map_physical(address, bytes, handle); });
}

CARD_API int cuMemUnmap(Address address, size_t bytes) {
  return is_forked() ? 0 : driver_call([&] { return unmap_physical(address, bytes); });
}

CARD_API int cuMemSetAccess(Address address, size_t bytes, const void *, size_t) {
  return driver_call([&] { return check_mapped(address, bytes); });
}

CARD_API int cuMemGetAccess(unsigned long long *flags, const MemoryLocation *, Address address) {
  if (flags) *flags = 0;
  return driver_call([&]() -> int {
    int status = check_mapped(address, 1);
    return status ? status : tell(flags, read_and_write);
  });
}

CARD_API int cuMemRetainAllocationHandle(uint64_t *handle, Address address) {
  return driver_call([&]() -> int { return handle ? retain_physical(address, handle) : CARD_INVALID_VALUE; });
}

CARD_API int cuMemGetAllocationPropertiesFromHandle(AllocationProperties *properties, uint64_t handle) {
  return driver_call([&]() -> int {
    if (!properties) return CARD_INVALID_VALUE;
    memset(properties, 0, sizeof *properties);
    properties->type = 1;  // pinned
    properties->location.type = location_device;
    return physical_device(handle, &properties->location.id);
  });
}
