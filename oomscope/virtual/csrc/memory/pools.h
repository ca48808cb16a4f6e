// cudaMallocAsync: pools of memory of one device.
//
// A pool reserves physical memory in steps of 32 MiB and keeps what was freed, until a synchronisation gives back what
// is above its release threshold. Where blocks lie inside a pool is not modelled: freed bytes serve any later request.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "memory/ranges.h"

namespace card {

struct Pool {
  int device = 0;
  bool is_default = false;
  uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0, threshold = 0;
  int reuse_follow_events = 1, reuse_opportunistic = 1, reuse_internal_dependencies = 1;
};

Pool *default_pool(int device);
Pool *current_pool(int device);  // where cudaMallocAsync allocates
int set_current_pool(int device, Pool *pool);
Pool *new_pool(int device);
int destroy_pool(Pool *pool);
bool is_pool(Pool *pool);

int pool_malloc(Pool *pool, void **pointer, size_t bytes);
int pool_trim(Pool *pool, uint64_t keep);
int pool_attribute(Pool *pool, int attribute, void *value);
int set_pool_attribute(Pool *pool, int attribute, const void *value);

// A synchronisation: pools of the device give back what is above their thresholds.
void trim_pools(int device);

// Frees a pooled range, with memory_mutex held.
int give_pooled(Range &range);

}  // namespace card
