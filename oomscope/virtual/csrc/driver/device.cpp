// The driver's calls about devices and contexts. A context is a device: each thread has one current device.
#include "core/device.h"

#include <stdio.h>

#include <vector>

#include "core/process.h"
#include "driver/types.h"
#include "work/streams.h"

using namespace card;

namespace {

constexpr int unsupported_limit = 215;

// By CUlimit: stack, printf buffer, heap, depth, launches, L2 fetch, persisting L2.
constexpr size_t limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};
bool is_limit(int limit) { return limit >= 0 && limit < static_cast<int>(sizeof limits / sizeof *limits); }

std::vector<int> &pushed_devices() {
  static thread_local auto *all = new std::vector<int>;
  return *all;
}

int push(int device) {
  pushed_devices().push_back(current_device);
  current_device = device;
  return 0;
}

int installed(int device) { return settings().visible[static_cast<size_t>(device)]; }

int write_text(char *out, int room, int least, const std::string &text) {
  if (!out || room < least) return CARD_INVALID_VALUE;
  snprintf(out, static_cast<size_t>(room), "%s", text.c_str());
  return 0;
}

}  // namespace

Context *card::primary_context(int device) {
  static Context *all = [] {
    auto *contexts = new Context[max_devices];
    for (int i = 0; i < max_devices; i++) contexts[i] = {i, true};
    return contexts;
  }();
  return &all[device];
}

Context *card::current_context() { return primary_context(current_device); }

CARD_API int cuInit(unsigned) { return enter(); }

CARD_API int cuDriverGetVersion(int *version) { return tell(version, driver_version); }

CARD_API int cuDeviceGetCount(int *count) {
  if (count) *count = 0;
  return driver_call([&] { return tell(count, settings().description.devices); });
}

CARD_API int cuDeviceGet(int *device, int ordinal) {
  return device_call(ordinal, [&] { return tell(device, ordinal); });
}

CARD_API int cuDeviceGetName(char *name, int size, int device) {
  return device_call(device, [&] { return write_text(name, size, 1, settings().description.name); });
}

CARD_API int cuDeviceGetPCIBusId(char *text, int size, int device) {
  return device_call(device, [&] { return write_text(text, size, 13, device_bus_id(installed(device)).substr(4)); });
}

CARD_API int cuDeviceGetByPCIBusId(int *device, const char *text) {
  return driver_call([&]() -> int {
    unsigned domain, bus, slot;
    if (!device || !text || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return CARD_INVALID_VALUE;
    for (*device = 0; *device < settings().description.devices; ++*device)
      if (bus == static_cast<unsigned>(device_bus(installed(*device)))) return 0;
    *device = 0;
    return CARD_INVALID_DEVICE;
  });
}

CARD_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  return device_call(device, [&] { return tell(bytes, settings().description.total_bytes); });
}

CARD_API int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  return device_call(device, [&]() -> int {
    if (!uuid) return CARD_INVALID_VALUE;
    device_uuid_bytes(installed(device), uuid);
    return 0;
  });
}

CARD_API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return driver_call([&] { return device_attribute(attribute, device, value); });
}

CARD_API int cuDeviceComputeCapability(int *major, int *minor, int device) {
  return device_call(device, [&]() -> int {
    auto &d = settings().description;
    return tell(major, d.major) || tell(minor, d.minor);
  });
}

CARD_API int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  if (can) *can = 0;
  return device_call(device, [&]() -> int {
    return valid_device(peer) ? tell(can, device != peer) : static_cast<int>(CARD_INVALID_DEVICE);
  });
}

CARD_API int cuDeviceGetP2PAttribute(int *value, int attribute, int from, int to) {
  if (value) *value = 0;
  return device_call(from, [&]() -> int {
    if (attribute < 1 || attribute > 4) return CARD_INVALID_VALUE;
    if (!valid_device(to) || from == to) return CARD_INVALID_DEVICE;
    return tell(value, attribute == 2 || attribute == 3);  // access and atomics; rank 0, no arrays
  });
}

// ---- contexts

CARD_API int cuDevicePrimaryCtxRetain(Context **context, int device) {
  return device_call(device, [&] { return tell(context, primary_context(device)); });
}

CARD_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return is_forked() ? 0 : card_check_device(device);
}

CARD_API int cuCtxCreate_v2(Context **context, unsigned, int device) {
  return device_call(device, [&]() -> int {
    if (!context) return CARD_INVALID_VALUE;
    *context = new Context{device, false};
    return push(device);
  });
}

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

CARD_API int cuCtxGetCurrent(Context **context) {
  return driver_call([&] { return tell(context, current_context()); });
}

CARD_API int cuCtxSetCurrent(Context *context) {
  return driver_call([&] {
    if (context) current_device = context->device;
    return 0;
  });
}

CARD_API int cuCtxPushCurrent_v2(Context *context) {
  return driver_call([&]() -> int { return context ? push(context->device) : CARD_INVALID_VALUE; });
}

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

CARD_API int cuCtxGetDevice(int *device) {
  return driver_call([&] { return tell(device, current_device); });
}

CARD_API int cuCtxGetDevice_v2(int *device, Context *context) {
  return driver_call([&] { return tell(device, context ? context->device : current_device); });
}

CARD_API int cuCtxGetId(Context *context, unsigned long long *id) {
  return driver_call([&] { return tell(id, (context ? context->device : current_device) + 1); });
}

CARD_API int cuCtxSynchronize(void) {
  return driver_call([] { return synchronize_device(); });
}

CARD_API int cuCtxSynchronize_v2(Context *context) {
  return driver_call([&] {
    int before = current_device;
    if (context) current_device = context->device;
    int status = synchronize_device();
    current_device = before;
    return status;
  });
}

CARD_API int cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
  if (lowest) *lowest = 0;
  if (highest) *highest = highest_priority;
  return enter();
}

CARD_API int cuCtxGetLimit(size_t *value, int limit) {
  if (value) *value = 0;
  return driver_call([&] { return is_limit(limit) ? tell(value, limits[limit]) : unsupported_limit; });
}

CARD_API int cuCtxSetLimit(int limit, size_t) {
  return driver_call([&] { return is_limit(limit) ? 0 : unsupported_limit; });
}
