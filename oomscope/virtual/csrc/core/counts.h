// What the card counts in this process, and the names of calls that it does not support.
#pragma once
#include <atomic>

#include "card.h"

namespace card {

struct Counts {  // the fields of oomscope_card_counts, in its order
  std::atomic<uint64_t> entered, used_bytes, launches, unknown_reads, unknown_read_bytes, unsupported;
};
static_assert(sizeof(Counts) == sizeof(oomscope_card_counts), "one field of Counts for each of the published struct");

extern Counts counts;

inline void add(std::atomic<uint64_t> &count, uint64_t bytes) { count.fetch_add(bytes, std::memory_order_relaxed); }

// Counts a read of unknown bytes and calls back; no lock is held.
void report_unknown_read(uint64_t bytes);

}  // namespace card
