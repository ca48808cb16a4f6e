// The runtime's calls about devices.
#include "core/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "core/process.h"
#include "core/stack.h"

using namespace card;

namespace {

// cudaDeviceProp behind name, UUID and LUID: for each int the attribute that it tells (core/device.cpp), 0 for nothing.
constexpr int wide = 1000, old = 2000;  // a size_t; a field that only CUDA 12 has
constexpr int total = 999;              // the memory of the device
constexpr int first_field = 256 + 16 + 8, texture_and_surface_sizes = 39;
const int fields[] = {
    0, wide + total, wide + 8, 12, 10, wide + 11,                     // memory, registers, warp, pitch
    1, 2, 3, 4, 5, 6, 7, old + 13, wide + 9, 75, 76,                  // block, grid, constants, capability
    wide + 14, wide + 51, old + 15, 16, old, 0, 19, old,              // alignments, multiprocessors, host memory
    -texture_and_surface_sizes, wide + 14,                            //
    31, 32, 33, 0, 0, 0, 40, 41, old + 36, 37, 38, 108, 39,           // ECC, bus, copy engines, caches, threads
    78, 79, 80, wide + 81, 82, 83, 0, 0, 0, old + 87, 0, 89, 90, 91,  // priorities, shared and managed memory
    95, old + 96, wide + 97, 0, 0, 106, 109, wide + 111,              // cooperative launch, blocks, reserved memory
    99, 112, 0, 114, 115, 0, 0, 0, 0, 121, 125, 120, 129,             // registering, pools, events, clusters
    0, 0, 0, 134,                                                     // NUMA node of the host, of CUDA 13 only
};

// By the memory of the device torch's allocator reserves addresses for expandable segments, and applies a memory
// fraction: it is told what the card gives, programs what the card tells.
bool is_allocator(const void *caller) {
  Dl_info found;
  return dladdr(caller, &found) && found.dli_fname && strstr(found.dli_fname, "/libc10_cuda.so");
}

int write_properties(char *out, size_t bytes, bool is_old, int device, const void *caller) {
  if (!out) return CARD_INVALID_VALUE;
  if (!valid_device(device)) return CARD_INVALID_DEVICE;
  auto &d = settings().description;
  size_t memory = is_allocator(caller) ? settings().budget_bytes : d.total_bytes;
  memset(out, 0, bytes);
  snprintf(out, 256, "%s", d.name);
  device_uuid_bytes(settings().visible[static_cast<size_t>(device)], reinterpret_cast<unsigned char *>(out) + 256);
  size_t at = first_field;
  for (int field : fields) {
    if (field < 0) at += sizeof(int) * static_cast<size_t>(-field);
    if (field < 0 || (field >= old && !is_old)) continue;
    bool is_wide = field / wide == 1;
    int value = 0, attribute = field % wide;
    if (attribute && attribute != total) device_attribute(attribute, device, &value);
    if (is_wide) {
      size_t number = attribute == total ? memory : static_cast<size_t>(value);
      at = (at + 7) / 8 * 8;
      memcpy(out + at, &number, sizeof number);
    } else {
      memcpy(out + at, &value, sizeof value);
    }
    at += is_wide ? sizeof(size_t) : sizeof(int);
  }
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

CARD_API int cudaGetDeviceProperties(char *properties, int device) {
  const void *caller = __builtin_return_address(0);
  return runtime_call([&] { return write_properties(properties, 1008, false, device, caller); });
}

// What programs built for CUDA 12 call.
CARD_API int cudaGetDeviceProperties_v2(char *properties, int device) {
  const void *caller = __builtin_return_address(0);
  return runtime_call([&] { return write_properties(properties, 1032, true, device, caller); });
}

CARD_API int cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return runtime_call([&]() -> int { return valid_device(peer) && peer != current_device ? 0 : CARD_INVALID_DEVICE; });
}

