// The structs of the runtime's interface that are read or written here, as CUDA 13 lays them out.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

using Stream_t = void *;  // handles are opaque: what they point at is ours
using Event_t = void *;

struct Dim3 {
  unsigned x, y, z;
};

struct Extent {
  size_t width, height, depth;
};
struct Position {
  size_t x, y, z;
};
struct PitchedPointer {
  void *pointer;
  size_t pitch, row_bytes, rows;
};

struct Copy3D {
  void *from_array;
  Position from_position;
  PitchedPointer from;
  void *to_array;
  Position to_position;
  PitchedPointer to;
  Extent extent;
  int kind;
};
struct PeerCopy3D {
  void *from_array;
  Position from_position;
  PitchedPointer from;
  int from_device;
  void *to_array;
  Position to_position;
  PitchedPointer to;
  int to_device;
  Extent extent;
};

struct LaunchConfig {
  Dim3 grid, block;
  size_t shared;
  Stream_t stream;
  void *attributes;
  unsigned attribute_count;
};

struct FunctionAttributes {
  size_t shared_bytes, constant_bytes, local_bytes;
  int max_threads_per_block, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared_bytes,
      preferred_carveout, cluster_must_be_set, required_cluster[3], cluster_policy, non_portable_cluster;
  int reserved[16];
};

struct PointerAttributes {
  int type;  // 0 unregistered, 1 host, 2 device, 3 managed
  int device;
  void *device_pointer, *host_pointer;  // CUDA 13 has room behind these, CUDA 12 has none
};

}  // namespace card
