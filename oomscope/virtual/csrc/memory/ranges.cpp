#include "memory/ranges.h"

#include <map>

#include "memory/mapped.h"

namespace card {
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
