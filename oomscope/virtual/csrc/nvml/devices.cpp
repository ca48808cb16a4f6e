// NVML: what a device is, and how it fares. It is always idle: nothing is computed.
#include <stdio.h>
#include <string.h>

#include "core/identity.h"
#include "nvml/state.h"

using namespace card;

namespace {

struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};

// The versioned structs carry their size in the lower 24 bits of their first word.
size_t stated_bytes(const void *record) {
  unsigned version;
  memcpy(&version, record, sizeof version);
  return version & 0xffffff;
}

}  // namespace

CARD_API int nvmlDeviceGetCudaComputeCapability(NvmlDevice *handle, int *major, int *minor) {
  return nvml_call(handle, [&](int) {
    if (!major || !minor) return nvml_invalid_argument;
    *major = settings().description.major;
    *minor = settings().description.minor;
    return nvml_success;
  });
}

CARD_API int nvmlDeviceGetArchitecture(NvmlDevice *handle, unsigned *architecture) {
  auto &d = settings().description;
  unsigned known = d.major >= 10             ? 10
                   : d.major == 9            ? 9
                   : d.minor == 9            ? 8
                   : d.major == 8            ? 7
                   : d.major == 7 && d.minor ? 6
                                             : 5;
  return nvml_value(handle, architecture, known);
}

CARD_API int nvmlDeviceGetPciInfo_v3(NvmlDevice *handle, PciInfo *info) {
  return nvml_call(handle, [&](int device) {
    if (!info) return nvml_invalid_argument;
    memset(info, 0, sizeof *info);
    info->bus = static_cast<unsigned>(device_bus(device));
    snprintf(info->id, sizeof info->id, "%s", device_bus_id(device).c_str());
    snprintf(info->legacy_id, sizeof info->legacy_id, "%s", device_bus_id(device).c_str() + 4);
    return nvml_success;
  });
}
CARD_API int nvmlDeviceGetPciInfo_v2(NvmlDevice *handle, PciInfo *info) {
  return nvmlDeviceGetPciInfo_v3(handle, info);
}
CARD_API int nvmlDeviceGetPciInfo(NvmlDevice *handle, PciInfo *info) { return nvmlDeviceGetPciInfo_v3(handle, info); }

CARD_API int nvmlDeviceGetMemoryBusWidth(NvmlDevice *handle, unsigned *bits) {
  return nvml_value(handle, bits, static_cast<unsigned>(settings().description.bus_bits));
}

CARD_API int nvmlDeviceGetUtilizationRates(NvmlDevice *handle, unsigned percent[2]) {
  return nvml_call(handle, [&](int) {
    if (!percent) return nvml_invalid_argument;
    percent[0] = percent[1] = 0;
    return nvml_success;
  });
}

CARD_API int nvmlDeviceGetTemperature(NvmlDevice *handle, int, unsigned *celsius) {
  return nvml_value(handle, celsius, 30u);
}
CARD_API int nvmlDeviceGetPowerUsage(NvmlDevice *handle, unsigned *milliwatts) {
  return nvml_value(handle, milliwatts, 70000u);
}
CARD_API int nvmlDeviceGetPowerManagementLimit(NvmlDevice *handle, unsigned *milliwatts) {
  return nvml_value(handle, milliwatts, 700000u);
}
CARD_API int nvmlDeviceGetEnforcedPowerLimit(NvmlDevice *handle, unsigned *milliwatts) {
  return nvml_value(handle, milliwatts, 700000u);
}
CARD_API int nvmlDeviceGetClockInfo(NvmlDevice *handle, int, unsigned *megahertz) {
  return nvml_value(handle, megahertz, 1980u);
}
CARD_API int nvmlDeviceGetMaxClockInfo(NvmlDevice *handle, int, unsigned *megahertz) {
  return nvml_value(handle, megahertz, 1980u);
}
CARD_API int nvmlDeviceGetPerformanceState(NvmlDevice *handle, int *state) { return nvml_value(handle, state, 0); }
CARD_API int nvmlDeviceGetPersistenceMode(NvmlDevice *handle, int *mode) { return nvml_value(handle, mode, 1); }
CARD_API int nvmlDeviceGetComputeMode(NvmlDevice *handle, int *mode) { return nvml_value(handle, mode, 0); }

CARD_API int nvmlDeviceGetMigMode(NvmlDevice *handle, unsigned *current, unsigned *pending) {
  return nvml_call(handle, [&](int) {
    if (!current || !pending) return nvml_invalid_argument;
    *current = *pending = 0;
    return nvml_success;
  });
}
CARD_API int nvmlDeviceIsMigDeviceHandle(NvmlDevice *handle, unsigned *is_part) {
  return nvml_value(handle, is_part, 0u);
}
CARD_API int nvmlDeviceGetMaxMigDeviceCount(NvmlDevice *handle, unsigned *count) {
  return nvml_value(handle, count, 0u);
}

// No fabric: its state is 0, "not supported", which torch takes for an answer; an error it does not.
CARD_API int nvmlDeviceGetGpuFabricInfoV(NvmlDevice *handle, void *info) {
  return nvml_call(handle, [&](int) {
    if (!info || stated_bytes(info) < 32 || stated_bytes(info) > 256) return nvml_invalid_argument;
    memset(static_cast<char *>(info) + sizeof(unsigned), 0, stated_bytes(info) - sizeof(unsigned));
    return nvml_success;
  });
}

// No NVLink: what NCCL and torch ask in order to find a topology.
CARD_API int nvmlDeviceGetNvLinkState(NvmlDevice *, unsigned, int *active) {
  if (active) *active = 0;
  return nvml_not_supported;
}
CARD_API int nvmlDeviceGetNvLinkRemoteDeviceType(NvmlDevice *, unsigned, int *type) {
  if (type) *type = 255;  // unknown
  return nvml_not_supported;
}
CARD_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(NvmlDevice *, unsigned, PciInfo *info) {
  if (info) memset(info, 0, sizeof *info);
  return nvml_not_supported;
}
CARD_API int nvmlDeviceGetNvLinkCapability(NvmlDevice *, unsigned, int, unsigned *capability) {
  if (capability) *capability = 0;
  return nvml_not_supported;
}
CARD_API int nvmlDeviceGetP2PStatus(NvmlDevice *handle, NvmlDevice *, int, int *status) {
  return nvml_value(handle, status, 0);
}
