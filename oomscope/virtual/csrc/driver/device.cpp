// The driver's calls about devices and contexts. A context is a device: each thread has one current device.
#include <stdio.h>
#include <string.h>

#include <atomic>
#include <vector>

#include "core/attributes.h"
#include "core/identity.h"
#include "core/process.h"
#include "driver/types.h"
#include "work/streams.h"

using namespace card;

namespace {

constexpr int max_devices = 64, unsupported_limit = 215;

Context *primary_context(int device) {
  static Context *all = [] {
    auto *contexts = new Context[max_devices];
    for (int i = 0; i < max_devices; i++) contexts[i] = {i, true};
    return contexts;
  }();
  return &all[device];
}

std::vector<int> &pushed_devices() {
  static thread_local auto *all = new std::vector<int>;
  return *all;
}

template <class Body>
int device_call(int device, Body body) {
  return driver_call([&]() -> int { return valid_device(device) ? body() : CARD_INVALID_DEVICE; });
}

int installed(int device) { return settings().visible[static_cast<size_t>(device)]; }

}  // namespace

Context *card::current_context() { return primary_context(current_device); }

CARD_API int cuInit(unsigned) { return enter(); }

CARD_API int cuDriverGetVersion(int *version) {
  if (!version) return CARD_INVALID_VALUE;
  *version = driver_version;
  return 0;
}

CARD_API int cuDeviceGetCount(int *count) {
  if (count) *count = 0;
  return driver_call([&]() -> int {
    if (!count) return CARD_INVALID_VALUE;
    *count = settings().description.devices;
    return 0;
  });
}

CARD_API int cuDeviceGet(int *device, int ordinal) {
  return device_call(ordinal, [&]() -> int {
    if (!device) return CARD_INVALID_VALUE;
    *device = ordinal;
    return 0;
  });
}

CARD_API int cuDeviceGetName(char *name, int size, int device) {
  return device_call(device, [&]() -> int {
    if (!name || size <= 0) return CARD_INVALID_VALUE;
    snprintf(name, static_cast<size_t>(size), "%s", settings().description.name);
    return 0;
  });
}

CARD_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  return device_call(device, [&]() -> int {
    if (!bytes) return CARD_INVALID_VALUE;
    *bytes = settings().description.total_bytes;
    return 0;
  });
}
CARD_ALIAS(cuDeviceTotalMem_v2) int cuDeviceTotalMem(size_t *, int);

CARD_API int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  return device_call(device, [&]() -> int {
    if (!uuid) return CARD_INVALID_VALUE;
    device_uuid_bytes(installed(device), uuid);
    return 0;
  });
}
CARD_ALIAS(cuDeviceGetUuid_v2) int cuDeviceGetUuid(unsigned char *, int);

CARD_API int cuDeviceGetPCIBusId(char *text, int size, int device) {
  return device_call(device, [&]() -> int {
    if (!text || size < 13) return CARD_INVALID_VALUE;
    snprintf(text, static_cast<size_t>(size), "%s", device_bus_id(installed(device)).c_str() + 4);
    return 0;
  });
}

CARD_API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return driver_call([&] { return device_attribute(attribute, device, value); });
}

CARD_API int cuDeviceComputeCapability(int *major, int *minor, int device) {
  return device_call(device, [&]() -> int {
    if (!major || !minor) return CARD_INVALID_VALUE;
    *major = settings().description.major;
    *minor = settings().description.minor;
    return 0;
  });
}

CARD_API int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  return device_call(device, [&]() -> int {
    if (!can) return CARD_INVALID_VALUE;
    *can = valid_device(peer) && device != peer;
    return 0;
  });
}

// ---- contexts

CARD_API int cuDevicePrimaryCtxRetain(Context **context, int device) {
  return device_call(device, [&]() -> int {
    if (!context) return CARD_INVALID_VALUE;
    *context = primary_context(device);
    return 0;
  });
}

CARD_API int cuDevicePrimaryCtxRelease_v2(int device) {
  return device_call(device, [] { return 0; });
}
CARD_ALIAS(cuDevicePrimaryCtxRelease_v2) int cuDevicePrimaryCtxRelease(int);

CARD_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return is_forked() ? 0 : device_call(device, [] { return 0; });
}

CARD_API int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) {
  return device_call(device, [] { return 0; });
}
CARD_ALIAS(cuDevicePrimaryCtxSetFlags_v2) int cuDevicePrimaryCtxSetFlags(int, unsigned);

CARD_API int cuCtxCreate_v2(Context **context, unsigned, int device) {
  return device_call(device, [&]() -> int {
    if (!context) return CARD_INVALID_VALUE;
    *context = new Context{device, false};
    pushed_devices().push_back(current_device);
    current_device = device;
    return 0;
  });
}
CARD_ALIAS(cuCtxCreate_v2) int cuCtxCreate(Context **, unsigned, int);

CARD_API int cuCtxCreate_v4(Context **context, void *, unsigned flags, int device) {
  return cuCtxCreate_v2(context, flags, device);
}

CARD_API int cuCtxDestroy_v2(Context *context) {
  return driver_call([&]() -> int {
    if (!context || context->is_primary) return CARD_INVALID_VALUE;
    delete context;
    return 0;
  });
}
CARD_ALIAS(cuCtxDestroy_v2) int cuCtxDestroy(Context *);

CARD_API int cuCtxGetCurrent(Context **context) {
  return driver_call([&]() -> int {
    if (!context) return CARD_INVALID_VALUE;
    *context = current_context();
    return 0;
  });
}

CARD_API int cuCtxSetCurrent(Context *context) {
  return driver_call([&] {
    if (context) current_device = context->device;
    return 0;
  });
}

CARD_API int cuCtxPushCurrent_v2(Context *context) {
  return driver_call([&]() -> int {
    if (!context) return CARD_INVALID_VALUE;
    pushed_devices().push_back(current_device);
    current_device = context->device;
    return 0;
  });
}
CARD_ALIAS(cuCtxPushCurrent_v2) int cuCtxPushCurrent(Context *);

CARD_API int cuCtxPopCurrent_v2(Context **context) {
  return driver_call([&] {
    if (context) *context = current_context();
    if (!pushed_devices().empty()) {
      current_device = pushed_devices().back();
      pushed_devices().pop_back();
    }
    return 0;
  });
}
CARD_ALIAS(cuCtxPopCurrent_v2) int cuCtxPopCurrent(Context **);

CARD_API int cuCtxGetDevice(int *device) {
  return driver_call([&]() -> int {
    if (!device) return CARD_INVALID_VALUE;
    *device = current_device;
    return 0;
  });
}

CARD_API int cuCtxGetFlags(unsigned *flags) {
  return driver_call([&]() -> int {
    if (!flags) return CARD_INVALID_VALUE;
    *flags = 0;
    return 0;
  });
}

CARD_API int cuCtxGetApiVersion(Context *, unsigned *version) {
  return driver_call([&]() -> int {
    if (!version) return CARD_INVALID_VALUE;
    *version = 3020;
    return 0;
  });
}

CARD_API int cuCtxGetId(Context *context, unsigned long long *id) {
  return driver_call([&]() -> int {
    if (!id) return CARD_INVALID_VALUE;
    *id = static_cast<unsigned long long>(context ? context->device : current_device) + 1;
    return 0;
  });
}

CARD_API int cuCtxSynchronize(void) {
  return driver_call([] { return synchronize_device(); });
}

CARD_API int cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
  return driver_call([&] {
    if (lowest) *lowest = 0;
    if (highest) *highest = highest_priority;
    return 0;
  });
}

CARD_API int cuCtxGetLimit(size_t *value, int limit) {
  constexpr size_t limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};  // as in runtime/device.cpp
  return driver_call([&]() -> int {
    if (!value) return CARD_INVALID_VALUE;
    *value = 0;
    if (limit < 0 || limit > 6) return unsupported_limit;
    *value = limits[limit];
    return 0;
  });
}

// Accepted: tuning on which no memory depends here.
CARD_API int cuCtxSetLimit(int limit, size_t) {
  return driver_call([&] { return limit < 0 || limit > 6 ? unsupported_limit : 0; });
}
CARD_API int cuCtxSetCacheConfig(int) {
  return driver_call([] { return 0; });
}
CARD_API int cuCtxResetPersistingL2Cache(void) {
  return driver_call([] { return 0; });
}
CARD_API int cuCtxEnablePeerAccess(Context *, unsigned) {
  return driver_call([] { return 0; });
}
CARD_API int cuCtxDisablePeerAccess(Context *) {
  return driver_call([] { return 0; });
}
CARD_API int cuProfilerStart(void) {
  return driver_call([] { return 0; });
}
CARD_API int cuProfilerStop(void) {
  return driver_call([] { return 0; });
}
