// The runtime's calls that allocate memory and tell of it.
#include <string.h>

#include "core/process.h"
#include "memory/addresses.h"
#include "memory/budget.h"
#include "memory/device_memory.h"
#include "memory/host_memory.h"
#include "memory/ranges.h"
#include "runtime/types.h"

using namespace card;

namespace {

constexpr size_t pitch_unit = 512;

PointerAttributes describe(const Range *range, const void *pointer) {
  constexpr int host = 1, device = 2, managed = 3;
  PointerAttributes a{};
  a.device = range ? range->device : -2;
  if (!range) return a;
  a.type = range->kind == Kind::managed ? managed : is_host(range->kind) ? host : device;
  a.device_pointer = const_cast<void *>(pointer);
  if (a.type != device) a.host_pointer = const_cast<void *>(pointer);
  return a;
}

}  // namespace

CARD_API int cudaMemGetInfo(size_t *free, size_t *total) {
  if (free) *free = 0;
  if (total) *total = 0;
  return runtime_call([&] {
    MemoryLock lock(memory_mutex());
    if (free) *free = free_bytes(current_device);
    if (total) *total = settings().description.total_bytes;
    return 0;
  });
}

CARD_API int cudaMalloc(void **pointer, size_t bytes) {
  return runtime_call([&] { return device_malloc(current_device, pointer, bytes); });
}

CARD_API int cudaFree(void *pointer) {
  return is_forked() ? 0 : runtime_call([&] { return device_free(pointer); });
}

CARD_API int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
  return runtime_call([&]() -> int {
    if (!pitch) return CARD_INVALID_VALUE;
    *pitch = round_up(width, pitch_unit);
    return device_malloc(current_device, pointer, *pitch * height);
  });
}

CARD_API int cudaMalloc3D(PitchedPointer *pointer, Extent extent) {
  return runtime_call([&]() -> int {
    if (!pointer) return CARD_INVALID_VALUE;
    *pointer = {nullptr, round_up(extent.width, pitch_unit), extent.width, extent.height};
    return device_malloc(current_device, &pointer->pointer, pointer->pitch * extent.height * extent.depth);
  });
}

CARD_API int cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
  return runtime_call([&] { return managed_malloc(pointer, bytes, flags); });
}

CARD_API int cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  return runtime_call([&] { return pinned_malloc(pointer, bytes, flags); });
}

CARD_API int cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

CARD_API int cudaFreeHost(void *pointer) {
  return is_forked() ? 0 : runtime_call([&] { return pinned_free(pointer); });
}

CARD_API int cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
  return runtime_call([&] { return host_register(pointer, bytes, flags); });
}

CARD_API int cudaHostUnregister(void *pointer) {
  return is_forked() ? 0 : runtime_call([&] { return host_unregister(pointer); });
}

CARD_API int cudaHostGetDevicePointer(void **device, void *host, unsigned) {
  if (device) *device = nullptr;
  return runtime_call([&]() -> int {
    MemoryLock lock(memory_mutex());
    Range *range = range_around(reinterpret_cast<uintptr_t>(host));
    if (!device || !range || !is_host(range->kind)) return CARD_INVALID_VALUE;
    *device = host;
    return 0;
  });
}

CARD_API int cudaHostGetFlags(unsigned *flags, void *host) {
  if (flags) *flags = 0;
  return runtime_call([&]() -> int {
    MemoryLock lock(memory_mutex());
    Range *range = range_around(reinterpret_cast<uintptr_t>(host));
    if (!flags || !range || !is_host(range->kind)) return CARD_INVALID_VALUE;
    *flags = range->flags;
    return 0;
  });
}

CARD_API int cudaPointerGetAttributes(PointerAttributes *attributes, const void *pointer) {
  return runtime_call([&]() -> int {
    if (!attributes) return CARD_INVALID_VALUE;
    MemoryLock lock(memory_mutex());
    *attributes = describe(range_around(reinterpret_cast<uintptr_t>(pointer)), pointer);
    return 0;
  });
}

// Accepted: hints about managed memory, which stays on the host here (host_memory.h).
CARD_API int cudaMemAdvise(const void *, size_t, int, Location) {
  return runtime_call([] { return 0; });
}
CARD_API int cudaMemPrefetchAsync(const void *, size_t, Location, unsigned, Stream_t) {
  return runtime_call([] { return 0; });
}
CARD_API int cudaStreamAttachMemAsync(Stream_t, void *, size_t, unsigned) {
  return runtime_call([] { return 0; });
}
