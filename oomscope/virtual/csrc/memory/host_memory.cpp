#include "memory/host_memory.h"

#include <sys/mman.h>

#include "core/counts.h"
#include "core/process.h"
#include "memory/budget.h"
#include "memory/ranges.h"

namespace card {
namespace {

constexpr uint64_t host_page = 4096;
constexpr int already_registered = 712, not_registered = 713;

uintptr_t number(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }

int map_host(void **pointer, size_t bytes, Kind kind, unsigned flags) {
  if (!pointer) return CARD_INVALID_VALUE;
  *pointer = nullptr;
  if (!bytes) return kind == Kind::managed ? CARD_INVALID_VALUE : 0;
  uint64_t rounded = round_up(bytes, host_page);
  if (rounded < bytes) return CARD_OUT_OF_MEMORY;
  void *at = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CARD_OUT_OF_MEMORY;
  MemoryLock lock(memory_mutex());
  add_range(number(at), rounded, kind, current_device).flags = flags;
  if (kind == Kind::pinned) raise(counts.pinned_bytes, counts.peak_pinned_bytes, rounded);
  if (kind == Kind::managed) add(counts.managed_bytes, rounded);
  *pointer = at;
  return 0;
}

int unmap_host(void *pointer, Kind kind) {
  if (!pointer) return 0;
  MemoryLock lock(memory_mutex());
  Range *range = range_at(number(pointer));
  if (!range || range->kind != kind) return CARD_INVALID_VALUE;
  (kind == Kind::pinned ? counts.pinned_bytes : counts.managed_bytes) -= range->bytes;
  munmap(pointer, range->bytes);
  remove_range(range->address);
  return 0;
}

}  // namespace

int pinned_malloc(void **pointer, size_t bytes, unsigned flags) {
  return map_host(pointer, bytes, Kind::pinned, flags);
}
int pinned_free(void *pointer) { return unmap_host(pointer, Kind::pinned); }
int managed_malloc(void **pointer, size_t bytes, unsigned flags) {
  return map_host(pointer, bytes, Kind::managed, flags);
}
int managed_free(void *pointer) { return unmap_host(pointer, Kind::managed); }

int host_register(void *pointer, size_t bytes, unsigned flags) {
  if (!pointer || !bytes) return CARD_INVALID_VALUE;
  MemoryLock lock(memory_mutex());
  if (range_around(number(pointer)) || range_around(number(pointer) + bytes - 1)) return already_registered;
  add_range(number(pointer), bytes, Kind::registered, current_device).flags = flags;
  raise(counts.registered_bytes, counts.peak_registered_bytes, bytes);
  return 0;
}

int host_unregister(void *pointer) {
  MemoryLock lock(memory_mutex());
  Range *range = range_at(number(pointer));
  if (!range || range->kind != Kind::registered) return not_registered;
  counts.registered_bytes -= range->bytes;
  remove_range(range->address);
  return 0;
}

bool is_page_locked(uintptr_t address) {
  MemoryLock lock(memory_mutex());
  Range *range = range_around(address);
  return range && (range->kind == Kind::pinned || range->kind == Kind::registered);
}

}  // namespace card
