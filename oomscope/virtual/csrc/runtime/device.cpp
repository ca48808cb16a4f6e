// The runtime's calls about devices.
#include <stdio.h>
#include <string.h>

#include "core/device.h"
#include "core/process.h"
#include "runtime/types.h"
#include "work/stack.h"

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

}  // namespace

CARD_API int cudaGetDevice(int *device) {
  tidy_stack();
  if (device) *device = 0;
  return is_forked() ? 0 : runtime_call([&] { return tell(device, current_device); });
}

CARD_API int cudaSetDevice(int device) {
  tidy_stack();
  int status = card_runtime_status(card_check_device(device));
  if (!status) current_device = device;
  return status;
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

CARD_API int cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return runtime_call([&]() -> int { return valid_device(peer) && peer != current_device ? 0 : CARD_INVALID_DEVICE; });
}

CARD_API int cudaDeviceDisablePeerAccess(int peer) { return cudaDeviceEnablePeerAccess(peer, 0); }
