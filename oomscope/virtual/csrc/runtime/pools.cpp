// cudaMallocAsync and memory pools.
#include "memory/pools.h"

#include <string.h>

#include "core/process.h"
#include "memory/device_memory.h"
#include "runtime/types.h"
#include "work/capture.h"

using namespace card;

namespace {

// An allocation in a graph belongs to the graph: not supported yet.
bool is_capturing(Stream_t stream) { return card_is_capturing(stream) != 0; }

}  // namespace

CARD_API int cudaMallocFromPoolAsync(void **pointer, size_t bytes, Pool *pool, Stream_t stream) {
  if (pointer) *pointer = nullptr;
  return runtime_call([&]() -> int {
    if (!find_stream(stream)) return CARD_INVALID_HANDLE;
    if (is_capturing(stream)) return card_unsupported("cudaMallocAsync (in a graph)");
    return pool_malloc(pool, pointer, bytes);
  });
}

CARD_API int cudaMallocAsync(void **pointer, size_t bytes, Stream_t stream) {
  int status = enter();
  return cudaMallocFromPoolAsync(pointer, bytes, status ? nullptr : current_pool(current_device), stream);
}

CARD_API int cudaFreeAsync(void *pointer, Stream_t stream) {
  return is_forked() ? 0 : runtime_call([&]() -> int {
    if (!find_stream(stream)) return CARD_INVALID_HANDLE;
    if (is_capturing(stream)) return card_unsupported("cudaFreeAsync (in a graph)");
    return pointer ? device_free(pointer) : CARD_INVALID_VALUE;
  });
}

CARD_API int cudaDeviceGetDefaultMemPool(Pool **pool, int device) {
  return runtime_call([&]() -> int {
    if (!pool) return CARD_INVALID_VALUE;
    if (!valid_device(device)) return CARD_INVALID_DEVICE;
    *pool = default_pool(device);
    return 0;
  });
}

CARD_API int cudaDeviceGetMemPool(Pool **pool, int device) {
  return runtime_call([&]() -> int {
    if (!pool) return CARD_INVALID_VALUE;
    if (!valid_device(device)) return CARD_INVALID_DEVICE;
    *pool = current_pool(device);
    return 0;
  });
}

CARD_API int cudaDeviceSetMemPool(int device, Pool *pool) {
  return runtime_call(
      [&]() -> int { return valid_device(device) ? set_current_pool(device, pool) : CARD_INVALID_DEVICE; });
}

CARD_API int cudaMemPoolCreate(Pool **pool, const PoolProperties *properties) {
  return runtime_call([&]() -> int {
    constexpr int on_device = 1;
    if (!pool || !properties) return CARD_INVALID_VALUE;
    if (properties->location.type != on_device) return card_unsupported("cudaMemPoolCreate (on the host)");
    if (!valid_device(properties->location.id)) return CARD_INVALID_DEVICE;
    *pool = new_pool(properties->location.id);
    return 0;
  });
}

CARD_API int cudaMemPoolDestroy(Pool *pool) {
  return is_forked() ? 0 : runtime_call([&] { return destroy_pool(pool); });
}

CARD_API int cudaMemPoolTrimTo(Pool *pool, size_t keep) {
  return runtime_call([&] { return pool_trim(pool, keep); });
}

CARD_API int cudaMemPoolGetAttribute(Pool *pool, int attribute, void *value) {
  return runtime_call([&] { return pool_attribute(pool, attribute, value); });
}

CARD_API int cudaMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
  return runtime_call([&] { return set_pool_attribute(pool, attribute, value); });
}

CARD_API int cudaMemPoolSetAccess(Pool *pool, const void *, size_t) {
  return runtime_call([&]() -> int { return is_pool(pool) ? 0 : CARD_INVALID_VALUE; });
}

CARD_API int cudaMemPoolGetAccess(int *flags, Pool *pool, Location *) {
  return runtime_call([&]() -> int {
    if (!flags || !is_pool(pool)) return CARD_INVALID_VALUE;
    *flags = 3;  // read and write
    return 0;
  });
}

// Memory of allocations inside graphs: there are none.
CARD_API int cudaDeviceGetGraphMemAttribute(int device, int, void *value) {
  return runtime_call([&]() -> int {
    if (!value) return CARD_INVALID_VALUE;
    memset(value, 0, sizeof(uint64_t));
    return valid_device(device) ? 0 : CARD_INVALID_DEVICE;
  });
}

CARD_API int cudaDeviceSetGraphMemAttribute(int device, int, void *) {
  return runtime_call([&]() -> int { return valid_device(device) ? 0 : CARD_INVALID_DEVICE; });
}

CARD_API int cudaDeviceGraphMemTrim(int device) {
  return runtime_call([&]() -> int { return valid_device(device) ? 0 : CARD_INVALID_DEVICE; });
}
