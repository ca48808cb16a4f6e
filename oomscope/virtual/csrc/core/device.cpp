#include "core/device.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <iterator>

#include "core/process.h"

namespace card {
namespace {

constexpr int last_attribute = 160;

// Of the device that OOMSCOPE_CARD describes.
bool described_attribute(int attribute, int device, int *value) {
  auto &d = settings().description;
  bool is_hopper = d.major >= 9;
  switch (attribute) {
    case 16: *value = d.multiprocessors; break;
    case 33: *value = device_bus(settings().visible[device]); break;
    case 37: *value = d.bus_bits; break;
    case 38: *value = d.l2_bytes; break;
    case 39: *value = d.threads_per_multiprocessor; break;
    case 75: *value = d.major; break;
    case 76: *value = d.minor; break;
    case 81: *value = d.shared_per_multiprocessor_bytes; break;
    case 97: *value = d.shared_per_block_bytes; break;
    case 106: *value = d.blocks_per_multiprocessor; break;
    case 108: *value = d.l2_bytes / 4 * 3; break;  // persisting part of L2
    case 120:                                      // clusters
    case 127: *value = is_hopper; break;           // tensor maps
    default: return false;
  }
  return true;
}

struct Value {
  int attribute, value;
};

// The same on every card since Turing.
const Value common_values[] = {
    {1, 1024},           // threads of a block
    {2, 1024},           // block
    {3, 1024},
    {4, 64},
    {5, 2147483647},     // grid
    {6, 65535},
    {7, 65535},
    {8, 48 << 10},       // shared memory of a block without opt-in
    {9, 64 << 10},       // constant memory
    {10, 32},            // warp
    {11, 2147483647},    // pitch
    {12, 65536},         // registers of a block
    {13, 1980000},       // kHz
    {14, 512},           // alignment of textures
    {21, 131072},        // extents of textures
    {22, 131072},
    {23, 65536},
    {30, 512},           // alignment of surfaces
    {36, 2619000},       // kHz of the memory
    {40, 3},             // copy engines
    {51, 32},            // alignment of pitches
    {82, 65536},         // registers of a multiprocessor
    {87, 2},             // single to double precision
    {109, 128 << 20},    // access policy window
    {111, 1024},         // shared memory that the system takes of each block
    {118, 200},          // RDMA writes are ordered for all devices
    {126, 4},            // memory synchronisation domains
    {134, -1},           // NUMA node
};

// Attributes that say yes. Those that are named nowhere say no: RDMA, fabric handles, multicast.
const int abilities[] = {
    15,  19,  31,  32,  41,        // overlap, mapped host memory, concurrent kernels, ECC, one address space
    78,  79,  80,  83,             // stream priorities, caches, managed memory
    89,  90,  91,  92,  93,  94,   // concurrent managed access, preemption, registered pointers, memory operations
    95,  96,  99,  102, 103, 112,  // cooperative launch, registering, mapped memory, file descriptors, sparse arrays
    114, 115, 121, 122, 123, 125, 129  // semaphores, pools, deferred mapping, memory operations, events, functions
};

int common_attribute(int attribute) {
  for (auto &one : common_values)
    if (one.attribute == attribute) return one.value;
  return std::count(std::begin(abilities), std::end(abilities), attribute) != 0;
}

}  // namespace

int device_attribute(int attribute, int device, int *value) {
  if (!value) return CARD_INVALID_VALUE;
  *value = 0;
  if (!valid_device(device)) return CARD_INVALID_DEVICE;
  if (attribute <= 0 || attribute > last_attribute) return CARD_INVALID_VALUE;
  if (!described_attribute(attribute, device, value)) *value = common_attribute(attribute);
  return 0;
}

void device_uuid_bytes(int device, unsigned char bytes[16]) {
  memset(bytes, 0, 16);
  memcpy(bytes, "oomscope", 8);
  bytes[15] = static_cast<unsigned char>(device);
}

std::string device_uuid(int device) {
  unsigned char bytes[16];
  device_uuid_bytes(device, bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; i++) {
    char pair[4];
    snprintf(pair, sizeof pair, "%02x", bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += pair;
  }
  return text;
}

std::string device_bus_id(int device) {
  char text[32];
  snprintf(text, sizeof text, "00000000:%02X:00.0", device_bus(device));
  return text;
}

}  // namespace card
