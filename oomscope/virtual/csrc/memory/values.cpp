#include "memory/values.h"

#include <algorithm>
#include <map>
#include <set>

namespace card {

std::atomic<uintptr_t> held_low{0}, held_high{0};
std::atomic<uint16_t> held_filter[1 << filter_bits];

namespace {

using Ranges = std::map<uintptr_t, uintptr_t>;  // first byte -> the byte after the last

Ranges &held() {
  static auto &all = *new Ranges;
  return all;
}

// Ranges that were held until a pointer to them was handed out.
Ranges &once_held() {
  static auto &all = *new Ranges;
  return all;
}

// Where ranges begin, held or once held, that the host computed in place of a kernel.
std::set<uintptr_t> &computed() {
  static auto &all = *new std::set<uintptr_t>;
  return all;
}

// Where tensors are known to begin or end: ranges that touch there are different ones'.
std::set<uintptr_t> &borders() {
  static auto &all = *new std::set<uintptr_t>;
  return all;
}

// Ranges begin anywhere in a unit, and a pointer before them meets them: the limits are those of whole units.
uintptr_t unit_of(uintptr_t address) { return address / values_unit * values_unit; }
uintptr_t unit_after(uintptr_t address) { return unit_of(address + values_unit - 1); }

void mark(uintptr_t first, uintptr_t end, int change) {
  uintptr_t block = unit_of(first) >> filter_block_bits, last = (unit_after(end) - 1) >> filter_block_bits;
  for (; block <= last; block++)
    held_filter[filter_slot(block << filter_block_bits)].fetch_add(static_cast<uint16_t>(change),
                                                                   std::memory_order_relaxed);
}

void insert(uintptr_t first, uintptr_t end) {
  held()[first] = end;
  mark(first, end, 1);
  uintptr_t low = held_low.load(), high = held_high.load();
  if (!high || unit_of(first) < low) held_low = unit_of(first);
  if (unit_after(end) > high) held_high = unit_after(end);
}

Ranges::iterator erase(Ranges::iterator range) {
  mark(range->first, range->second, -1);
  auto next = held().erase(range);
  if (held().empty()) held_low = 0, held_high = 0;
  return next;
}

// The first of the ranges that ends after the address.
Ranges::iterator range_after(Ranges &ranges, uintptr_t address) {
  auto range = ranges.upper_bound(address);
  if (range != ranges.begin() && std::prev(range)->second > address) --range;
  return range;
}

std::vector<std::pair<uintptr_t, uint64_t>> parts_of(Ranges &ranges, uintptr_t address, uint64_t bytes) {
  std::vector<std::pair<uintptr_t, uint64_t>> parts;
  uintptr_t end = address + bytes;
  for (auto range = range_after(ranges, address); range != ranges.end() && range->first < end; ++range) {
    uintptr_t first = std::max(range->first, address);
    parts.emplace_back(first, std::min(range->second, end) - first);
  }
  return parts;
}

Ranges::iterator range_after(uintptr_t address) { return range_after(held(), address); }

// What became unknown because this thread handed out pointers to it, since the calls of keep_held that are open: one list
// for each.
thread_local std::vector<std::vector<std::pair<uintptr_t, uintptr_t>>> to_restore;

}  // namespace

void forget_once_held(uintptr_t address, uint64_t bytes) {
  auto range = range_after(once_held(), address);
  for (; range != once_held().end() && range->first < address + bytes; range = once_held().erase(range)) {
    computed().erase(range->first);
  }
}

void unhold(uintptr_t address, uint64_t bytes) {
  uintptr_t end = address + bytes;
  forget_once_held(address, bytes);
  computed().erase(computed().lower_bound(address), computed().lower_bound(end));
  borders().erase(borders().lower_bound(address), borders().upper_bound(end));
  for (auto range = range_after(address); range != held().end() && range->first < end;) {
    auto [first, last] = *range;
    range = erase(range);
    if (first < address) insert(first, address);
    if (last > end) {
      insert(end, last);
      break;
    }
  }
}

void unhold_new(uintptr_t address, uint64_t bytes) {
  uintptr_t first = address, end = address + bytes;
  for (auto range = range_after(address); range != held().end() && range->first < address + bytes; ++range) {
    first = std::min(first, range->first);
    end = std::max(end, range->second);
  }
  unhold(first, end - first);
}

void hold(uintptr_t address, uint64_t bytes) {
  if (!bytes) return;
  uintptr_t first = address, end = address + bytes;
  unhold(address, bytes);
  auto next = held().lower_bound(first);
  if (next != held().end() && next->first == end && end % values_unit) {
    // Only up to the unit's end: what follows may be left from an earlier, longer tensor at this place.
    uintptr_t last = next->second;
    next = erase(next);
    if (last > unit_after(end)) insert(unit_after(end), last);
    end = std::min(last, unit_after(end));
    next = held().lower_bound(end);
  }
  if (next != held().begin() && first % values_unit) {
    auto previous = std::prev(next);
    if (previous->second == first) {
      first = previous->first;
      erase(previous);
    }
  }
  insert(first, end);
}

void hold_computed(uintptr_t address, uint64_t bytes) {
  hold(address, bytes);
  computed().insert(address);
}

bool was_computed(uintptr_t address) { return computed().count(address) != 0; }

void hold_apart(uintptr_t address, uint64_t bytes) { borders().insert({address, address + bytes}); }

bool is_held_apart(uintptr_t address, uint64_t bytes) {
  return borders().count(address) && borders().count(address + bytes);
}

void unhold_at(uintptr_t pointer) {
  uintptr_t end = unit_after(pointer + 1);
  for (auto range = range_after(pointer); range != held().end() && range->first < end;) {
    once_held()[range->first] = range->second;
    if (!to_restore.empty()) to_restore.back().push_back(*range);
    // What touches it may be a further part of the same tensor.
    end = std::max(end, range->second + (borders().count(range->second) ? 0 : 1));
    range = erase(range);
  }
}

void keep_held() { to_restore.emplace_back(); }

void restore_held() {
  auto ranges = std::move(to_restore.back());
  to_restore.pop_back();
  for (auto &[first, end] : ranges) {
    bool is_computed = was_computed(first), is_apart = is_held_apart(first, end - first);
    is_computed ? hold_computed(first, end - first) : hold(first, end - first);
    if (is_apart) hold_apart(first, end - first);
  }
}

bool was_held(uintptr_t address, uint64_t bytes) {
  auto range = once_held().find(address);
  return range != once_held().end() && range->second == address + bytes && !was_computed(address);
}

bool meets_held(uintptr_t pointer) {
  auto range = range_after(pointer);
  return range != held().end() && range->first < unit_after(pointer + 1);
}

std::vector<std::pair<uintptr_t, uint64_t>> held_parts(uintptr_t address, uint64_t bytes) {
  return parts_of(held(), address, bytes);
}

uint64_t count_unknown(uintptr_t address, uint64_t bytes) {
  uint64_t unknown = bytes;
  for (auto &part : held_parts(address, bytes)) unknown -= part.second;
  return unknown;
}

void move_held(uintptr_t to, uintptr_t from, uint64_t bytes) {
  auto parts = held_parts(from, bytes);
  unhold(to, bytes);
  for (auto &[address, size] : parts) hold(address - from + to, size);
}

}  // namespace card
