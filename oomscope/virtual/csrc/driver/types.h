// The structs of the driver's interface that are read or written here, as CUDA 13 lays them out.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

using Address = uintptr_t;  // CUdeviceptr
inline void *pointer_of(Address address) { return reinterpret_cast<void *>(address); }

constexpr size_t pitch_unit = 512;  // rows of pitched memory begin at multiples of it

struct Context {
  int device;
  bool is_primary;
};

Context *primary_context(int device);
// The context of the calling thread's device.
Context *current_context();

// The driver's function of that name in that version of CUDA (major * 1000 + minor * 10); null: there is none.
void *cuda_entry_point(const char *name, int version);

struct MemoryLocation {
  int type;  // 1 device, 2 host, 3 NUMA node
  int id;
};

struct AllocationProperties {
  int type, handle_types;
  MemoryLocation location;
  void *security;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};

struct PoolProperties {
  int allocation_type, handle_types;
  MemoryLocation location;
  void *security;
  size_t max_bytes;
  unsigned short usage;
  unsigned char reserved[54];
};

struct KernelConfig {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned attribute_count;
};

struct DriverCopy2D {
  size_t from_x, from_y;
  int from_type;
  const void *from_host;
  Address from_device;
  void *from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  int to_type;
  void *to_host;
  Address to_device;
  void *to_array;
  size_t to_pitch;
  size_t width, height;
};

struct DriverCopy3D {
  size_t from_x, from_y, from_z, from_level;
  int from_type;
  const void *from_host;
  Address from_device;
  void *from_array, *reserved_from;
  size_t from_pitch, from_height;
  size_t to_x, to_y, to_z, to_level;
  int to_type;
  void *to_host;
  Address to_device;
  void *to_array, *reserved_to;
  size_t to_pitch, to_height;
  size_t width, height, depth;
};

}  // namespace card
