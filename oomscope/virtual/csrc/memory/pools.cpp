#include "memory/memory.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <vector>

#include "core/process.h"
#include "memory/space.h"
#include "memory/allocations.h"
#include "memory/values.h"

namespace card {
namespace {

constexpr uint64_t step = 32 << 20, unit = 512;

struct Pools {
  std::set<Pool *> all;
  std::vector<Pool *> defaults, current;
};
Pools &pools() {
  static auto &all = *new Pools;
  return all;
}
std::atomic<bool> any_pooled{false};

Pool *add_pool(int device, bool is_default) {
  Pool *pool = new Pool;
  pool->device = device;
  pool->is_default = is_default;
  pools().all.insert(pool);
  return pool;
}

void prepare_defaults() {
  for (int device = static_cast<int>(pools().defaults.size()); device < settings().description.devices; device++) {
    pools().defaults.push_back(add_pool(device, true));
    pools().current.push_back(pools().defaults.back());
  }
}

// Lowers what the pool reserves to `keep`, but not below what is used.
void shrink(Pool &pool, uint64_t keep) {
  keep = round_up(std::max(keep, pool.used), device_page);
  if (keep >= pool.reserved) return;
  give(pool.device, pool.reserved - keep);
  pool.reserved = keep;
}

bool grow(Pool &pool, uint64_t needed) {
  uint64_t missing = needed - pool.reserved;
  for (uint64_t bytes : {round_up(missing, step), round_up(missing, device_page)}) {
    if (!take(pool.device, bytes)) continue;
    pool.reserved += bytes;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return true;
  }
  return false;
}

enum Attribute {
  reuse_follow_events = 1,
  reuse_opportunistic = 2,
  reuse_internal_dependencies = 3,
  release_threshold = 4,
  reserved_now = 5,
  reserved_high = 6,
  used_now = 7,
  used_high = 8
};

}  // namespace

Pool *default_pool(int device) {
  MemoryLock lock(memory_mutex());
  prepare_defaults();
  return pools().defaults[device];
}

Pool *current_pool(int device) {
  MemoryLock lock(memory_mutex());
  prepare_defaults();
  return pools().current[device];
}

int set_current_pool(int device, Pool *pool) {
  MemoryLock lock(memory_mutex());
  prepare_defaults();
  if (!pools().all.count(pool) || pool->device != device) return CARD_INVALID_VALUE;
  pools().current[device] = pool;
  return 0;
}

Pool *new_pool(int device) {
  MemoryLock lock(memory_mutex());
  return add_pool(device, false);
}

int destroy_pool(Pool *pool) {
  MemoryLock lock(memory_mutex());
  if (!pools().all.count(pool) || pool->is_default) return CARD_INVALID_VALUE;
  std::replace(pools().current.begin(), pools().current.end(), pool, pools().defaults[pool->device]);
  pools().all.erase(pool);
  shrink(*pool, 0);  // what is still used is given back when it is freed; the pool stays for it
  return 0;
}

bool is_pool(Pool *pool) {
  MemoryLock lock(memory_mutex());
  prepare_defaults();
  return pools().all.count(pool) != 0;
}

int pool_malloc(Pool *pool, void **pointer, size_t bytes) {
  if (!pointer) return CARD_INVALID_VALUE;
  *pointer = nullptr;
  if (!bytes) return 0;
  if (bytes > device_high - device_low) return CARD_OUT_OF_MEMORY;
  MemoryLock lock(memory_mutex());
  if (!pools().all.count(pool)) return CARD_INVALID_VALUE;
  uint64_t rounded = round_up(bytes, unit);
  if (pool->used + rounded > pool->reserved && !grow(*pool, pool->used + rounded)) return CARD_OUT_OF_MEMORY;
  uintptr_t address = take_addresses(round_up(rounded, device_page));
  if (!address) return CARD_OUT_OF_MEMORY;
  pool->used += rounded;
  pool->used_high = std::max(pool->used_high, pool->used);
  add_range(address, rounded, Kind::pooled, pool->device).pool = pool;
  any_pooled = true;
  *pointer = reinterpret_cast<void *>(address);
  return 0;
}

int give_pooled(Range &range) {
  Pool *pool = static_cast<Pool *>(range.pool);
  pool->used -= range.bytes;
  unhold(range.address, range.bytes);
  give_addresses(range.address);
  remove_range(range.address);
  if (!pools().all.count(pool)) shrink(*pool, 0);
  return 0;
}

int pool_trim(Pool *pool, uint64_t keep) {
  MemoryLock lock(memory_mutex());
  if (!pools().all.count(pool)) return CARD_INVALID_VALUE;
  shrink(*pool, keep);
  return 0;
}

void trim_pools(int device) {
  if (!any_pooled) return;
  MemoryLock lock(memory_mutex());
  for (Pool *pool : pools().all)
    if (pool->device == device) shrink(*pool, pool->threshold);
}

int pool_attribute(Pool *pool, int attribute, void *value) {
  MemoryLock lock(memory_mutex());
  prepare_defaults();
  if (!value || !pools().all.count(pool)) return CARD_INVALID_VALUE;
  auto *number = static_cast<uint64_t *>(value);
  auto *flag = static_cast<int *>(value);
  switch (attribute) {
    case reuse_follow_events: *flag = pool->reuse_follow_events; break;
    case reuse_opportunistic: *flag = pool->reuse_opportunistic; break;
    case reuse_internal_dependencies: *flag = pool->reuse_internal_dependencies; break;
    case release_threshold: *number = pool->threshold; break;
    case reserved_now: *number = pool->reserved; break;
    case reserved_high: *number = pool->reserved_high; break;
    case used_now: *number = pool->used; break;
    case used_high: *number = pool->used_high; break;
    default: return CARD_INVALID_VALUE;
  }
  return 0;
}

int set_pool_attribute(Pool *pool, int attribute, const void *value) {
  MemoryLock lock(memory_mutex());
  prepare_defaults();
  if (!value || !pools().all.count(pool)) return CARD_INVALID_VALUE;
  uint64_t number = attribute >= release_threshold ? *static_cast<const uint64_t *>(value) : 0;
  int flag = attribute < release_threshold ? *static_cast<const int *>(value) : 0;
  switch (attribute) {
    case reuse_follow_events: pool->reuse_follow_events = flag; break;
    case reuse_opportunistic: pool->reuse_opportunistic = flag; break;
    case reuse_internal_dependencies: pool->reuse_internal_dependencies = flag; break;
    case release_threshold: pool->threshold = number; break;
    case reserved_high:
      if (number) return CARD_INVALID_VALUE;
      pool->reserved_high = pool->reserved;
      break;
    case used_high:
      if (number) return CARD_INVALID_VALUE;
      pool->used_high = pool->used;
      break;
    default: return CARD_INVALID_VALUE;
  }
  return 0;
}

}  // namespace card
