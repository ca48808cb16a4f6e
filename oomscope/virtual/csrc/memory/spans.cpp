#include "memory/spans.h"

#include <list>
#include <map>

#include "core/counts.h"
#include "memory/allocations.h"
#include "memory/space.h"

namespace card {
namespace {

constexpr uint64_t MiB = 1 << 20, unit = 32 * MiB;

using Ranges = std::map<uintptr_t, uint64_t>;  // address -> bytes

struct Span {
  uintptr_t start;
  uint64_t bytes;
  Ranges holes;
};

struct Device {
  std::list<Span> spans;  // the newest first
  Span after_a_launch;    // joins them as the oldest once this process has launched a kernel; empty: it did
};

Ranges &regions() {  // all that is taken, of all devices
  static auto &all = *new Ranges;
  return all;
}

// The start of the highest gap; one above a region must be larger than what is asked.
uintptr_t highest_gap(uint64_t bytes) {
  uintptr_t end = device_high;
  for (auto region = regions().rbegin(); region != regions().rend(); ++region) {
    if (end - (region->first + region->second) > bytes) break;
    end = region->first;
  }
  return end - device_low >= bytes ? end - bytes : 0;
}

Span span_at(uintptr_t start, uint64_t bytes) { return {start, bytes, {{start, bytes}}}; }

// A context takes 512 MiB and leaves two holes. Its lowest 384 MiB served requests too in programs, but not in plays of
// allocator traces, which launch no kernel.
Device with_context() {
  uint64_t unused = 384 * MiB, rest = 128 * MiB;
  uintptr_t start = highest_gap(unused + rest), middle = start + unused, last = middle + rest - unit;
  regions()[start] = unused;
  regions()[middle] = last - middle;
  regions()[last] = unit;
  Span newest{middle, unit, {{middle + 30 * MiB, 2 * MiB}}}, oldest{last, unit, {{last + 8 * MiB, 24 * MiB}}};
  return {{newest, oldest}, span_at(start, unused)};
}

std::map<int, Device> &devices() {
  static auto &all = *new std::map<int, Device>;
  return all;
}

std::list<Span> &spans_of(int index) {
  auto [found, is_new] = devices().try_emplace(index);
  Device &device = found->second;
  if (is_new) device = with_context();
  if (device.after_a_launch.bytes && counts.launches.load(std::memory_order_relaxed)) {
    device.spans.push_back(device.after_a_launch);
    device.after_a_launch = {};
  }
  return device.spans;
}

uintptr_t take_hole(Span &span, uint64_t bytes) {
  auto best = span.holes.end();
  for (auto hole = span.holes.begin(); hole != span.holes.end(); ++hole)
    if (hole->second >= bytes && (best == span.holes.end() || hole->second < best->second)) best = hole;
  if (best == span.holes.end()) return 0;
  auto [address, left] = *best;
  span.holes.erase(best);
  if (left > bytes) span.holes[address + bytes] = left - bytes;
  return address;
}

void add_hole(Span &span, uintptr_t address, uint64_t bytes) {
  auto after = span.holes.upper_bound(address);
  if (after != span.holes.end() && after->first == address + bytes) {
    bytes += after->second;
    after = span.holes.erase(after);
  }
  auto before = after == span.holes.begin() ? span.holes.end() : std::prev(after);
  if (before != span.holes.end() && before->first + before->second == address) {
    before->second += bytes;
  } else {
    span.holes[address] = bytes;
  }
}

}  // namespace

uintptr_t take_from_spans(int device, uint64_t bytes) {
  auto &spans = spans_of(device);
  for (auto &span : spans)
    if (uintptr_t address = take_hole(span, bytes)) return address;
  uint64_t whole = round_up(bytes, unit);
  uintptr_t start = highest_gap(whole);
  if (!start) return 0;
  regions()[start] = whole;
  spans.push_front(span_at(start, whole));
  return take_hole(spans.front(), bytes);
}

void give_to_spans(uintptr_t address, uint64_t bytes) {
  for (auto &[index, device] : devices()) {
    for (auto span = device.spans.begin(); span != device.spans.end(); ++span) {
      if (address < span->start || address >= span->start + span->bytes) continue;
      add_hole(*span, address, bytes);
      if (span->holes.begin()->second == span->bytes) {
        regions().erase(span->start);
        device.spans.erase(span);
      }
      return;
    }
  }
}

}  // namespace card
