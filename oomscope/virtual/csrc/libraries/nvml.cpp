// NVML tells of all installed devices, whatever CUDA_VISIBLE_DEVICES says, and never makes a process one that uses the
// card: it may be asked before a fork. How idle a device is stands in names/nvml.txt.
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "core/device.h"
#include "core/ledger.h"
#include "core/settings.h"
#include "libraries/library.h"

using namespace card;

namespace {

enum Status { success, uninitialized, invalid_argument, not_supported, not_found = 6, insufficient_size };

struct Device;  // opaque: the handle is the device's index and a mark
constexpr uintptr_t handle_mark = 0x6f6f6d00;

std::atomic<int> users{0};

int index_of(const void *handle) {  // -1: no handle of ours
  uintptr_t index = reinterpret_cast<uintptr_t>(handle) - handle_mark;
  return index < static_cast<uintptr_t>(settings().installed) ? static_cast<int>(index) : -1;
}

// Runs the body with the index of the device.
template <class Body>
int device_call(const void *handle, Body body) {
  if (!users) return uninitialized;
  int device = index_of(handle);
  return device < 0 ? static_cast<int>(invalid_argument) : static_cast<int>(body(device));
}

template <class Out, class Value>
int tell(Out *out, Value value) {
  if (!out) return invalid_argument;
  *out = static_cast<Out>(value);
  return success;
}

int tell_text(char *out, unsigned size, const std::string &text) {
  if (!out) return invalid_argument;
  if (size <= text.size()) return insufficient_size;
  memcpy(out, text.c_str(), text.size() + 1);
  return success;
}

template <class Same>
int find_device(Device **handle, Same same) {
  if (!users) return uninitialized;
  if (!handle) return invalid_argument;
  *handle = nullptr;
  for (int device = 0; device < settings().installed; device++)
    if (same(device)) return tell(handle, reinterpret_cast<Device *>(handle_mark + static_cast<uintptr_t>(device)));
  return not_found;
}

struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};

struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

Memory memory_of(int device) {
  auto &d = settings().description;
  unsigned long long used = d.used_bytes;
  for (auto &holder : ledger_holders(settings().ledger, device)) used += holder.bytes;
  used = std::min<unsigned long long>(used, d.total_bytes);
  return {d.total_bytes, d.total_bytes - used, used};
}

struct Process1 {
  unsigned process;
  unsigned long long bytes;
};
struct Process {
  unsigned process;
  unsigned long long bytes;
  unsigned gpu_instance = 0xffffffff, compute_instance = 0xffffffff;  // none
};

// A process is listed with what it allocated, without its context: that is part of the settings' used bytes.
template <class Entry>
int list_processes(Device *handle, unsigned *count, Entry *entries) {
  return device_call(handle, [&](int device) {
    if (!count) return invalid_argument;
    auto holders = ledger_holders(settings().ledger, device);
    unsigned room = *count;
    *count = static_cast<unsigned>(holders.size());
    if (*count > room || (*count && !entries)) return insufficient_size;
    for (size_t i = 0; i < holders.size(); i++) {
      entries[i] = Entry{};
      entries[i].process = static_cast<unsigned>(holders[i].process);
      entries[i].bytes = holders[i].bytes;
    }
    return success;
  });
}

}  // namespace

int nvml_check(const void *device) {
  return device_call(device, [](int) { return success; });
}

// ---- beginning and end, versions, handles

CARD_API int nvmlInit_v2(void) {
  users++;
  return success;
}
CARD_API int nvmlShutdown(void) {
  if (!users) return uninitialized;
  users--;
  return success;
}

CARD_API const char *nvmlErrorString(int status) {
  switch (status) {
    case success: return "Success";
    case uninitialized: return "Uninitialized";
    case invalid_argument: return "Invalid Argument";
    case not_supported: return "Not Supported";
    case not_found: return "Not Found";
    case insufficient_size: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

CARD_API int nvmlSystemGetDriverVersion(char *text, unsigned size) { return tell_text(text, size, driver_release); }
CARD_API int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
  return tell_text(text, size, std::string("13.") + driver_release);
}
CARD_API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return tell(version, driver_version); }

CARD_API int nvmlDeviceGetCount_v2(unsigned *count) {
  return users ? tell(count, settings().installed) : static_cast<int>(uninitialized);
}
CARD_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **handle) {
  int status = find_device(handle, [&](int device) { return static_cast<unsigned>(device) == index; });
  return status == not_found ? static_cast<int>(invalid_argument) : status;
}
CARD_API int nvmlDeviceGetHandleByUUID(const char *uuid, Device **handle) {
  return find_device(handle, [&](int device) { return uuid && device_uuid(device) == uuid; });
}
CARD_API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, Device **handle) {
  unsigned domain, bus, slot;
  if (!text || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return invalid_argument;
  return find_device(handle, [&](int device) { return static_cast<unsigned>(device_bus(device)) == bus; });
}

// ---- what a device is

CARD_API int nvmlDeviceGetIndex(Device *handle, unsigned *index) {
  return device_call(handle, [&](int device) { return tell(index, device); });
}
CARD_API int nvmlDeviceGetName(Device *handle, char *text, unsigned size) {
  return device_call(handle, [&](int) { return tell_text(text, size, settings().description.name); });
}
CARD_API int nvmlDeviceGetUUID(Device *handle, char *text, unsigned size) {
  return device_call(handle, [&](int device) { return tell_text(text, size, device_uuid(device)); });
}
CARD_API int nvmlDeviceGetPciInfo_v3(Device *handle, PciInfo *info) {
  return device_call(handle, [&](int device) {
    if (!info) return invalid_argument;
    memset(info, 0, sizeof *info);
    info->bus = static_cast<unsigned>(device_bus(device));
    snprintf(info->id, sizeof info->id, "%s", device_bus_id(device).c_str());
    snprintf(info->legacy_id, sizeof info->legacy_id, "%s", device_bus_id(device).c_str() + 4);
    return success;
  });
}

CARD_API int nvmlDeviceGetArchitecture(Device *handle, unsigned *architecture) {
  auto &d = settings().description;
  unsigned known = d.major >= 10             ? 10
                   : d.major == 9            ? 9
                   : d.minor == 9            ? 8
                   : d.major == 8            ? 7
                   : d.major == 7 && d.minor ? 6
                                             : 5;
  return device_call(handle, [&](int) { return tell(architecture, known); });
}

// No fabric: its state is 0, "not supported", which torch takes for an answer; an error it does not. The first word of
// the struct carries its size in the lower 24 bits.
CARD_API int nvmlDeviceGetGpuFabricInfoV(Device *handle, unsigned *info) {
  return device_call(handle, [&](int) {
    size_t bytes = info ? *info & 0xffffff : 0;
    if (bytes < 32 || bytes > 256) return invalid_argument;
    memset(info + 1, 0, bytes - sizeof *info);
    return success;
  });
}

// ---- its memory, and who holds it

CARD_API int nvmlDeviceGetMemoryInfo(Device *handle, Memory *memory) {
  return device_call(handle, [&](int device) { return tell(memory, memory_of(device)); });
}
CARD_API int nvmlDeviceGetMemoryInfo_v2(Device *handle, Memory2 *memory) {
  return device_call(handle, [&](int device) {
    if (!memory) return invalid_argument;
    Memory now = memory_of(device);
    *memory = {memory->version, now.total, 0, now.free, now.used};
    return success;
  });
}
CARD_API int nvmlDeviceGetBAR1MemoryInfo(Device *handle, Memory *memory) {
  unsigned long long total = settings().description.total_bytes;
  return device_call(handle, [&](int) { return tell(memory, Memory{total, total, 0}); });
}

CARD_API int nvmlDeviceGetComputeRunningProcesses_v3(Device *handle, unsigned *count, Process *entries) {
  return list_processes(handle, count, entries);
}
CARD_API int nvmlDeviceGetComputeRunningProcesses(Device *handle, unsigned *count, Process1 *entries) {
  return list_processes(handle, count, entries);
}
