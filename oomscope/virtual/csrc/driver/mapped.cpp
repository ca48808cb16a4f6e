// The driver's virtual memory management. Sharing between processes is not supported.
#include "memory/mapped.h"

#include <string.h>

#include "core/process.h"
#include "driver/types.h"
#include "memory/budget.h"

using namespace card;

namespace {

constexpr int location_device = 1;
constexpr int fabric_handle = 8;

}  // namespace

CARD_API int cuMemGetAllocationGranularity(size_t *bytes, const AllocationProperties *, int) {
  return driver_call([&]() -> int {
    if (!bytes) return CARD_INVALID_VALUE;
    *bytes = device_page;
    return 0;
  });
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

CARD_API int cuMemSetAccess(Address address, size_t bytes, const AccessDescription *, size_t) {
  return driver_call([&] { return check_mapped(address, bytes); });
}

CARD_API int cuMemGetAccess(unsigned long long *flags, const MemoryLocation *, Address address) {
  if (flags) *flags = 0;
  return driver_call([&]() -> int {
    int status = flags ? check_mapped(address, 1) : CARD_INVALID_VALUE;
    if (!status) *flags = 3;  // read and write
    return status;
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
