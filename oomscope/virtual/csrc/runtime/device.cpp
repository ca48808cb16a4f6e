// The runtime's calls about devices.
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/identity.h"
#include "core/process.h"
#include "runtime/types.h"
#include "work/stale_stack.h"
#include "work/streams.h"

using namespace card;

namespace {

int installed(int device) { return settings().visible[static_cast<size_t>(device)]; }

int attribute(int number, int device) {
  int value = 0;
  device_attribute(number, device, &value);
  return value;
}

size_t bytes(int number, int device) { return static_cast<size_t>(attribute(number, device)); }

template <class Properties>
void fill_identity(Properties *p, int device) {
  auto &d = settings().description;
  snprintf(p->name, sizeof p->name, "%s", d.name);
  device_uuid_bytes(installed(device), p->uuid);
  p->total_bytes = d.total_bytes;
  p->major = d.major;
  p->minor = d.minor;
  p->pci_bus = attribute(33, device);
}

template <class Properties>
void fill_limits(Properties *p, int device) {
  p->shared_per_block = bytes(8, device);
  p->registers_per_block = attribute(12, device);
  p->warp = attribute(10, device);
  p->max_pitch = bytes(11, device);
  p->max_threads_per_block = attribute(1, device);
  for (int i = 0; i < 3; i++) p->max_block[i] = attribute(2 + i, device), p->max_grid[i] = attribute(5 + i, device);
  p->constant_bytes = bytes(9, device);
  p->texture_alignment = p->surface_alignment = bytes(14, device);
  p->texture_pitch_alignment = bytes(51, device);
  p->multiprocessors = attribute(16, device);
  p->copy_engines = attribute(40, device);
  p->bus_bits = attribute(37, device);
  p->l2_bytes = attribute(38, device);
  p->persisting_l2_bytes = attribute(108, device);
  p->threads_per_multiprocessor = attribute(39, device);
  p->shared_per_multiprocessor = bytes(81, device);
  p->registers_per_multiprocessor = attribute(82, device);
  p->shared_per_block_optin = bytes(97, device);
  p->blocks_per_multiprocessor = attribute(106, device);
  p->access_window_bytes = attribute(109, device);
  p->reserved_shared_per_block = bytes(111, device);
}

template <class Properties>
void fill_abilities(Properties *p, int device) {
  p->can_map_host = attribute(19, device);
  p->concurrent_kernels = attribute(31, device);
  p->ecc = attribute(32, device);
  p->unified_addressing = attribute(41, device);
  p->stream_priorities = attribute(78, device);
  p->global_l1 = attribute(79, device);
  p->local_l1 = attribute(80, device);
  p->managed = attribute(83, device);
  p->concurrent_managed = attribute(89, device);
  p->compute_preemption = attribute(90, device);
  p->host_pointer_for_registered = attribute(91, device);
  p->cooperative_launch = attribute(95, device);
  p->host_register = attribute(99, device);
  p->sparse_arrays = attribute(112, device);
  p->timeline_semaphores = attribute(114, device);
  p->pools = attribute(115, device);
  p->deferred_mapping = attribute(121, device);
  p->ipc_events = attribute(125, device);
  p->cluster_launch = attribute(120, device);
  p->unified_function_pointers = attribute(129, device);
}

template <class Properties>
int fill(Properties *properties, int device) {
  if (!properties) return CARD_INVALID_VALUE;
  if (!valid_device(device)) return CARD_INVALID_DEVICE;
  memset(properties, 0, sizeof *properties);
  fill_identity(properties, device);
  fill_limits(properties, device);
  fill_abilities(properties, device);
  return 0;
}

// What cudaDeviceGetLimit answers, by cudaLimit: stack, printf buffer, heap, depth, launches, L2 fetch, persisting L2.
constexpr size_t limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};

}  // namespace

CARD_API int cudaGetDeviceCount(int *count) {
  if (count) *count = 0;
  return runtime_call([&]() -> int {
    if (!count) return CARD_INVALID_VALUE;
    *count = settings().description.devices;
    return 0;
  });
}

CARD_API int cudaGetDevice(int *device) {
  tidy_stack();
  if (device) *device = 0;
  return is_forked() ? 0 : runtime_call([&]() -> int {
    if (!device) return CARD_INVALID_VALUE;
    *device = current_device;
    return 0;
  });
}

CARD_API int cudaSetDevice(int device) {
  tidy_stack();
  return runtime_call([&]() -> int {
    if (!valid_device(device)) return CARD_INVALID_DEVICE;
    current_device = device;
    return 0;
  });
}

CARD_API int cudaInitDevice(int device, unsigned, unsigned) {
  return runtime_call([&]() -> int { return valid_device(device) ? 0 : CARD_INVALID_DEVICE; });
}

CARD_API int cudaSetValidDevices(int *, int) {
  return runtime_call([] { return 0; });
}

CARD_API int cudaSetDeviceFlags(unsigned) {
  return runtime_call([] { return 0; });
}

CARD_API int cudaGetDeviceFlags(unsigned *flags) {
  return runtime_call([&]() -> int {
    if (!flags) return CARD_INVALID_VALUE;
    *flags = 8;  // host memory can be mapped
    return 0;
  });
}

CARD_API int cudaDriverGetVersion(int *version) {
  if (!version) return last_error = CARD_INVALID_VALUE;
  *version = driver_version;
  return 0;
}

CARD_API int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

CARD_API int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return runtime_call([&] { return device_attribute(attribute, device, value); });
}

CARD_API int cudaGetDeviceProperties(DeviceProperties *properties, int device) {
  return runtime_call([&]() -> int {
    if (int status = fill(properties, device)) return status;
    properties->host_numa_id = attribute(134, device);
    return 0;
  });
}

// What programs built for CUDA 12 call.
CARD_API int cudaGetDeviceProperties_v2(DeviceProperties12 *properties, int device) {
  return runtime_call([&] { return fill(properties, device); });
}

CARD_API int cudaDeviceGetPCIBusId(char *text, int size, int device) {
  return runtime_call([&]() -> int {
    if (!text || size < 13) return CARD_INVALID_VALUE;
    if (!valid_device(device)) return CARD_INVALID_DEVICE;
    snprintf(text, static_cast<size_t>(size), "%s", device_bus_id(installed(device)).c_str() + 4);
    return 0;
  });
}

CARD_API int cudaDeviceGetByPCIBusId(int *device, const char *text) {
  return runtime_call([&]() -> int {
    if (!device || !text) return CARD_INVALID_VALUE;
    unsigned domain, bus, slot;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return CARD_INVALID_VALUE;
    for (*device = 0; *device < settings().description.devices; ++*device)
      if (bus == static_cast<unsigned>(device_bus(installed(*device)))) return 0;
    *device = 0;
    return CARD_INVALID_DEVICE;
  });
}

CARD_API int cudaDeviceSynchronize(void) {
  return runtime_call([] { return synchronize_device(); });
}

CARD_API int cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
  return runtime_call([&] {
    if (lowest) *lowest = 0;
    if (highest) *highest = highest_priority;
    return 0;
  });
}

CARD_API int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  if (can) *can = 0;
  return runtime_call([&]() -> int {
    if (!can) return CARD_INVALID_VALUE;
    if (!valid_device(device) || !valid_device(peer)) return CARD_INVALID_DEVICE;
    *can = device != peer;
    return 0;
  });
}

CARD_API int cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return runtime_call([&]() -> int { return valid_device(peer) && peer != current_device ? 0 : CARD_INVALID_DEVICE; });
}

CARD_API int cudaDeviceDisablePeerAccess(int peer) { return cudaDeviceEnablePeerAccess(peer, 0); }

CARD_API int cudaDeviceGetP2PAttribute(int *value, int attribute, int from, int to) {
  if (value) *value = 0;
  return runtime_call([&]() -> int {
    if (!value || attribute < 1 || attribute > 4) return CARD_INVALID_VALUE;
    if (!valid_device(from) || !valid_device(to) || from == to) return CARD_INVALID_DEVICE;
    *value = attribute == 2 || attribute == 3;  // access and atomics; rank 0, no arrays
    return 0;
  });
}

CARD_API int cudaDeviceGetLimit(size_t *value, int limit) {
  if (value) *value = 0;
  return runtime_call([&]() -> int {
    if (!value) return CARD_INVALID_VALUE;
    if (limit < 0 || limit >= static_cast<int>(sizeof limits / sizeof *limits)) return 215;  // unsupported limit
    *value = limits[limit];
    return 0;
  });
}

// Accepted: tuning on which no memory depends here.
CARD_API int cudaDeviceSetLimit(int limit, size_t) {
  return runtime_call([&] { return limit < 0 || limit > 6 ? 215 : 0; });
}
CARD_API int cudaDeviceSetCacheConfig(int) {
  return runtime_call([] { return 0; });
}
CARD_API int cudaDeviceGetCacheConfig(int *config) {
  return runtime_call([&] { return config ? *config = 0 : static_cast<int>(CARD_INVALID_VALUE); });
}
CARD_API int cudaCtxResetPersistingL2Cache(void) {
  return runtime_call([] { return 0; });
}
CARD_API int cudaProfilerStart(void) {
  return runtime_call([] { return 0; });
}
CARD_API int cudaProfilerStop(void) {
  return runtime_call([] { return 0; });
}
