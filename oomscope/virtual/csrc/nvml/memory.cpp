// NVML: the memory of a device and the processes that hold it. A process is listed with what it allocated, without its
// context: that is part of the settings' used bytes.
#include <string.h>

#include <algorithm>

#include "nvml/state.h"

using namespace card;

namespace {

struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Process1 {
  unsigned process;
  unsigned long long bytes;
};
struct Process {
  unsigned process;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

constexpr unsigned no_instance = 0xffffffff;

Memory memory_of(int device) {
  auto &d = settings().description;
  unsigned long long used = d.used_bytes;
  for (auto &holder : ledger_holders(settings().ledger, device)) used += holder.bytes;
  used = std::min<unsigned long long>(used, d.total_bytes);
  return {d.total_bytes, d.total_bytes - used, used};
}

void write(const Holder &holder, Process1 *out) { *out = {static_cast<unsigned>(holder.process), holder.bytes}; }
void write(const Holder &holder, Process *out) {
  *out = {static_cast<unsigned>(holder.process), holder.bytes, no_instance, no_instance};
}

template <class Entry>
int list_processes(NvmlDevice *handle, unsigned *count, Entry *entries) {
  return nvml_call(handle, [&](int device) {
    if (!count) return nvml_invalid_argument;
    auto holders = ledger_holders(settings().ledger, device);
    unsigned room = *count;
    *count = static_cast<unsigned>(holders.size());
    if (*count > room || (*count && !entries)) return nvml_insufficient_size;
    for (size_t i = 0; i < holders.size(); i++) write(holders[i], &entries[i]);
    return nvml_success;
  });
}

}  // namespace

CARD_API int nvmlDeviceGetMemoryInfo(NvmlDevice *handle, Memory *memory) {
  return nvml_call(handle, [&](int device) {
    if (!memory) return nvml_invalid_argument;
    *memory = memory_of(device);
    return nvml_success;
  });
}

CARD_API int nvmlDeviceGetMemoryInfo_v2(NvmlDevice *handle, Memory2 *memory) {
  return nvml_call(handle, [&](int device) {
    if (!memory) return nvml_invalid_argument;
    Memory now = memory_of(device);
    *memory = {memory->version, now.total, 0, now.free, now.used};
    return nvml_success;
  });
}

CARD_API int nvmlDeviceGetBAR1MemoryInfo(NvmlDevice *handle, Memory *memory) {
  return nvml_call(handle, [&](int) {
    if (!memory) return nvml_invalid_argument;
    unsigned long long total = settings().description.total_bytes;
    *memory = {total, total, 0};
    return nvml_success;
  });
}

CARD_API int nvmlDeviceGetComputeRunningProcesses_v3(NvmlDevice *handle, unsigned *count, Process *entries) {
  return list_processes(handle, count, entries);
}
CARD_API int nvmlDeviceGetComputeRunningProcesses_v2(NvmlDevice *handle, unsigned *count, Process *entries) {
  return list_processes(handle, count, entries);
}
CARD_API int nvmlDeviceGetComputeRunningProcesses(NvmlDevice *handle, unsigned *count, Process1 *entries) {
  return list_processes(handle, count, entries);
}

CARD_API int nvmlDeviceGetGraphicsRunningProcesses_v3(NvmlDevice *handle, unsigned *count, Process *) {
  return nvml_value(handle, count, 0u);
}
CARD_API int nvmlDeviceGetGraphicsRunningProcesses_v2(NvmlDevice *handle, unsigned *count, Process *) {
  return nvml_value(handle, count, 0u);
}
CARD_API int nvmlDeviceGetGraphicsRunningProcesses(NvmlDevice *handle, unsigned *count, Process1 *) {
  return nvml_value(handle, count, 0u);
}
