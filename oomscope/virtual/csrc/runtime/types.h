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

struct DeviceProperties {
  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_node_mask;
  size_t total_bytes, shared_per_block;
  int registers_per_block, warp;
  size_t max_pitch;
  int max_threads_per_block, max_block[3], max_grid[3];
  size_t constant_bytes;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int multiprocessors, integrated, can_map_host;
  int textures[25], surfaces[14];
  size_t surface_alignment;
  int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, copy_engines, unified_addressing, bus_bits,
      l2_bytes, persisting_l2_bytes, threads_per_multiprocessor, stream_priorities, global_l1, local_l1;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor, managed, multi_gpu_board, multi_gpu_group, host_atomics, pageable_access,
      concurrent_managed, compute_preemption, host_pointer_for_registered, cooperative_launch;
  size_t shared_per_block_optin;
  int pageable_by_host_tables, direct_managed_from_host, blocks_per_multiprocessor, access_window_bytes;
  size_t reserved_shared_per_block;
  int host_register, sparse_arrays, read_only_register, timeline_semaphores, pools, rdma;
  unsigned rdma_flush_options;
  int rdma_ordering;
  unsigned pool_handle_types;
  int deferred_mapping, ipc_events, cluster_launch, unified_function_pointers, numa_config, numa_id, mps, host_numa_id;
  unsigned pci_device_id, pci_subsystem_id;
  int multinode_ipc;
  int reserved[56];
};

// The same in CUDA 12.
struct DeviceProperties12 {
  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_node_mask;
  size_t total_bytes, shared_per_block;
  int registers_per_block, warp;
  size_t max_pitch;
  int max_threads_per_block, max_block[3], max_grid[3], clock;
  size_t constant_bytes;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int overlap, multiprocessors, timeout, integrated, can_map_host, compute_mode;
  int textures[25], surfaces[14];
  size_t surface_alignment;
  int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, copy_engines, unified_addressing, memory_clock,
      bus_bits, l2_bytes, persisting_l2_bytes, threads_per_multiprocessor, stream_priorities, global_l1, local_l1;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor, managed, multi_gpu_board, multi_gpu_group, host_atomics, double_ratio,
      pageable_access, concurrent_managed, compute_preemption, host_pointer_for_registered, cooperative_launch,
      cooperative_multi_launch;
  size_t shared_per_block_optin;
  int pageable_by_host_tables, direct_managed_from_host, blocks_per_multiprocessor, access_window_bytes;
  size_t reserved_shared_per_block;
  int host_register, sparse_arrays, read_only_register, timeline_semaphores, pools, rdma;
  unsigned rdma_flush_options;
  int rdma_ordering;
  unsigned pool_handle_types;
  int deferred_mapping, ipc_events, cluster_launch, unified_function_pointers, reserved[63];
};
static_assert(sizeof(DeviceProperties12) == 1032, "as CUDA 12 has it");

}  // namespace card
