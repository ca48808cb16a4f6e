// What the card counts in this process, and the names of calls that it does not support.
#pragma once
#include <atomic>

#include "card.h"

namespace card {

struct Counts {  // the fields of oomscope_card_counts, in its order
  std::atomic<uint64_t> entered, used_bytes, peak_used_bytes, pinned_bytes, peak_pinned_bytes, registered_bytes,
      peak_registered_bytes, managed_bytes, launches, h2d_bytes, d2h_bytes, d2d_bytes, unknown_reads,
      unknown_read_bytes, refused_allocations, unsupported;
};
static_assert(sizeof(Counts) == sizeof(oomscope_card_counts), "one field of Counts for each of the published struct");

extern Counts counts;

inline void add(std::atomic<uint64_t> &count, uint64_t bytes) { count.fetch_add(bytes, std::memory_order_relaxed); }

// Adds to a count and raises its peak; calls for the same count are made under one lock.
inline void raise(std::atomic<uint64_t> &count, std::atomic<uint64_t> &peak, uint64_t bytes) {
  uint64_t now = count.load(std::memory_order_relaxed) + bytes;
  count.store(now, std::memory_order_relaxed);
  if (now > peak.load(std::memory_order_relaxed)) peak.store(now, std::memory_order_relaxed);
}

// Counts a read of unknown bytes and calls back; no lock is held.
void report_unknown_read(uint64_t bytes);

}  // namespace card
