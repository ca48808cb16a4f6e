// NVML: beginning and end, versions, and the handles of devices.
#include <stdio.h>
#include <string.h>

#include <atomic>
#include <string>

#include "core/identity.h"
#include "nvml/state.h"

using namespace card;

namespace {

std::atomic<int> users{0};
constexpr uintptr_t handle_mark = 0x6f6f6d00;

int copy_text(const std::string &text, char *out, unsigned size) {
  if (!out) return nvml_invalid_argument;
  if (size <= text.size()) return nvml_insufficient_size;
  memcpy(out, text.c_str(), text.size() + 1);
  return nvml_success;
}

template <class Same>
int find_device(NvmlDevice **handle, Same same) {
  if (!nvml_is_initialized()) return nvml_uninitialized;
  if (!handle) return nvml_invalid_argument;
  for (int device = 0; device < settings().installed; device++) {
    if (!same(device)) continue;
    *handle = nvml_handle(device);
    return nvml_success;
  }
  *handle = nullptr;
  return nvml_not_found;
}

}  // namespace

NvmlDevice *card::nvml_handle(int device) {
  return reinterpret_cast<NvmlDevice *>(handle_mark + static_cast<uintptr_t>(device));
}

int card::nvml_index(const NvmlDevice *handle) {
  uintptr_t index = reinterpret_cast<uintptr_t>(handle) - handle_mark;
  return index < static_cast<uintptr_t>(settings().installed) ? static_cast<int>(index) : -1;
}

bool card::nvml_is_initialized() { return users.load() > 0; }

CARD_API int nvmlInit_v2(void) {
  users++;
  return nvml_success;
}
CARD_API int nvmlInit(void) { return nvmlInit_v2(); }
CARD_API int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

CARD_API int nvmlShutdown(void) {
  if (!nvml_is_initialized()) return nvml_uninitialized;
  users--;
  return nvml_success;
}

CARD_API const char *nvmlErrorString(int status) {
  switch (status) {
    case nvml_success: return "Success";
    case nvml_uninitialized: return "Uninitialized";
    case nvml_invalid_argument: return "Invalid Argument";
    case nvml_not_supported: return "Not Supported";
    case nvml_not_found: return "Not Found";
    case nvml_insufficient_size: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

CARD_API int nvmlSystemGetDriverVersion(char *text, unsigned size) { return copy_text(driver_release, text, size); }

CARD_API int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
  return copy_text(std::string("13.") + driver_release, text, size);
}

CARD_API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  if (!version) return nvml_invalid_argument;
  *version = driver_version;
  return nvml_success;
}
CARD_API int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

CARD_API int nvmlDeviceGetCount_v2(unsigned *count) {
  if (!nvml_is_initialized()) return nvml_uninitialized;
  if (!count) return nvml_invalid_argument;
  *count = static_cast<unsigned>(settings().installed);
  return nvml_success;
}
CARD_API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

CARD_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice **handle) {
  int status = find_device(handle, [&](int device) { return static_cast<unsigned>(device) == index; });
  return status == nvml_not_found ? static_cast<int>(nvml_invalid_argument) : status;
}
CARD_API int nvmlDeviceGetHandleByIndex(unsigned index, NvmlDevice **handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

CARD_API int nvmlDeviceGetHandleByUUID(const char *uuid, NvmlDevice **handle) {
  if (!uuid) return nvml_invalid_argument;
  return find_device(handle, [&](int device) { return device_uuid(device) == uuid; });
}

CARD_API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, NvmlDevice **handle) {
  unsigned domain, bus, slot;
  if (!text || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return nvml_invalid_argument;
  return find_device(handle, [&](int device) { return static_cast<unsigned>(device_bus(device)) == bus; });
}
CARD_API int nvmlDeviceGetHandleByPciBusId(const char *text, NvmlDevice **handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, handle);
}

CARD_API int nvmlDeviceGetIndex(NvmlDevice *handle, unsigned *index) {
  return nvml_call(handle, [&](int device) {
    if (!index) return nvml_invalid_argument;
    *index = static_cast<unsigned>(device);
    return nvml_success;
  });
}
CARD_API int nvmlDeviceGetMinorNumber(NvmlDevice *handle, unsigned *minor) { return nvmlDeviceGetIndex(handle, minor); }

CARD_API int nvmlDeviceGetName(NvmlDevice *handle, char *text, unsigned size) {
  return nvml_call(handle, [&](int) { return copy_text(settings().description.name, text, size); });
}

CARD_API int nvmlDeviceGetUUID(NvmlDevice *handle, char *text, unsigned size) {
  return nvml_call(handle, [&](int device) { return copy_text(device_uuid(device), text, size); });
}
