#include "memory/allocations.h"

#include <map>

#include "core/counts.h"
#include "core/ledger.h"
#include "core/settings.h"
#include "memory/memory.h"

namespace card {
namespace {

uint64_t less_used(uint64_t bytes) {
  uint64_t used = settings().description.used_bytes;
  return used >= bytes ? 0 : bytes - used;
}

}  // namespace

std::mutex &memory_mutex() {
  static std::mutex &mutex = *new std::mutex;
  return mutex;
}

bool take(int device, uint64_t bytes) {
  if (!ledger_take(settings().visible[device], bytes, less_used(settings().budget_bytes))) return false;
  add(counts.used_bytes, bytes);
  return true;
}

void give(int device, uint64_t bytes) {
  ledger_give(settings().visible[device], bytes);
  counts.used_bytes -= bytes;
}

uint64_t free_bytes(int device) {
  uint64_t held = ledger_total(settings().visible[device]);
  uint64_t told = less_used(settings().description.total_bytes);
  return held >= told ? 0 : told - held;
}

namespace {

std::map<uintptr_t, Range> &ranges() {
  static auto &all = *new std::map<uintptr_t, Range>;
  return all;
}
uint64_t last_id = 0;

}  // namespace

Range &add_range(uintptr_t address, uint64_t bytes, Kind kind, int device) {
  return ranges()[address] = {address, bytes, kind, device, ++last_id, nullptr, 0};
}

void remove_range(uintptr_t address) { ranges().erase(address); }

Range *range_at(uintptr_t address) {
  auto range = ranges().find(address);
  return range == ranges().end() ? nullptr : &range->second;
}

Range *range_around(uintptr_t address) {
  auto range = ranges().upper_bound(address);
  if (range == ranges().begin()) return nullptr;
  --range;
  return address - range->first < range->second.bytes ? &range->second : nullptr;
}

bool is_allocated(uintptr_t address, uint64_t bytes) {
  Range *range = range_around(address);
  if (!range || bytes > range->address + range->bytes - address) return false;
  return range->kind != Kind::reservation || is_mapped(address, bytes);
}

}  // namespace card
