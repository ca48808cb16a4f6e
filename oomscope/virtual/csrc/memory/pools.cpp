#include "memory/memory.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <vector>

#include "core/process.h"
#include "memory/allocations.h"
#include "memory/space.h"
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
  keep = round_up(std::max(keep, pool.of[Pool::used]), device_page);
  if (keep >= pool.of[Pool::reserved]) return;
  give(pool.device, pool.of[Pool::reserved] - keep);
  pool.of[Pool::reserved] = keep;
}

bool grow(Pool &pool, uint64_t needed) {
  uint64_t missing = needed - pool.of[Pool::reserved];
  for (uint64_t bytes : {round_up(missing, step), round_up(missing, device_page)}) {
    if (!take(pool.device, bytes)) continue;
    pool.of[Pool::reserved] += bytes;
    pool.of[Pool::reserved_high] = std::max(pool.of[Pool::reserved_high], pool.of[Pool::reserved]);
    return true;
  }
  return false;
}

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
  if (pool->of[Pool::used] + rounded > pool->of[Pool::reserved] && !grow(*pool, pool->of[Pool::used] + rounded)) return CARD_OUT_OF_MEMORY;
  uintptr_t address = take_addresses(round_up(rounded, device_page));
  if (!address) return CARD_OUT_OF_MEMORY;
  pool->of[Pool::used] += rounded;
  pool->of[Pool::used_high] = std::max(pool->of[Pool::used_high], pool->of[Pool::used]);
  add_range(address, rounded, Kind::pooled, pool->device).pool = pool;
  any_pooled = true;
  *pointer = reinterpret_cast<void *>(address);
  return 0;
}

int give_pooled(Range &range) {
  Pool *pool = static_cast<Pool *>(range.pool);
  pool->of[Pool::used] -= range.bytes;
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
    if (pool->device == device) shrink(*pool, pool->of[Pool::release_threshold]);
}

int pool_attribute(Pool *pool, int attribute, void *value) {
  MemoryLock lock(memory_mutex());
  prepare_defaults();
  if (!value || !pools().all.count(pool) || attribute < 1 || attribute >= Pool::attribute_count)
    return CARD_INVALID_VALUE;
  if (attribute < Pool::release_threshold) return tell(static_cast<int *>(value), pool->of[attribute]);
  return tell(static_cast<uint64_t *>(value), pool->of[attribute]);
}

int set_pool_attribute(Pool *pool, int attribute, const void *value) {
  MemoryLock lock(memory_mutex());
  prepare_defaults();
  if (!value || !pools().all.count(pool) || attribute < 1) return CARD_INVALID_VALUE;
  if (attribute < Pool::release_threshold) return tell(&pool->of[attribute], *static_cast<const int *>(value));
  uint64_t number = *static_cast<const uint64_t *>(value);
  if (attribute == Pool::release_threshold) return tell(&pool->of[attribute], number);
  if ((attribute != Pool::reserved_high && attribute != Pool::used_high) || number) return CARD_INVALID_VALUE;
  return tell(&pool->of[attribute], pool->of[attribute - 1]);  // a high water mark begins anew
}

}  // namespace card
