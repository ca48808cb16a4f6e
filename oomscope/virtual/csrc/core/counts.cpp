#include "core/counts.h"

#include <string.h>

#include <mutex>
#include <string>
#include <unordered_set>

namespace card {

Counts counts;

namespace {

std::atomic<void (*)(uint64_t)> on_unknown_read{nullptr};

struct Names {
  std::mutex mutex;
  std::unordered_set<std::string> seen;
  std::string text;
};
Names &names() {
  static Names &all = *new Names;
  return all;
}

}  // namespace

void report_unknown_read(uint64_t bytes) {
  add(counts.unknown_reads, 1);
  add(counts.unknown_read_bytes, bytes);
  if (auto callback = on_unknown_read.load()) callback(bytes);
}

}  // namespace card

int card_unsupported(const char *name) {
  auto &names = card::names();
  std::lock_guard<std::mutex> guard(names.mutex);
  if (names.seen.insert(name).second) {
    names.text += names.text.empty() ? "" : "\n";
    names.text += name;
    card::add(card::counts.unsupported, 1);
  }
  return CARD_NOT_SUPPORTED;
}

CARD_API int oomscope_card_version(void) { return OOMSCOPE_CARD_VERSION; }

CARD_API size_t oomscope_card_counters(oomscope_card_counts *out, size_t bytes) {
  oomscope_card_counts now;
  auto *from = reinterpret_cast<const std::atomic<uint64_t> *>(&card::counts);
  auto *to = reinterpret_cast<uint64_t *>(&now);
  for (size_t i = 0; i < sizeof now / sizeof *to; i++) to[i] = from[i].load(std::memory_order_relaxed);
  memcpy(out, &now, bytes < sizeof now ? bytes : sizeof now);
  return sizeof now;
}

CARD_API size_t oomscope_card_unsupported(char *buffer, size_t bytes) {
  auto &names = card::names();
  std::lock_guard<std::mutex> guard(names.mutex);
  if (bytes) {
    size_t kept = names.text.size() < bytes ? names.text.size() : bytes - 1;
    memcpy(buffer, names.text.data(), kept);
    buffer[kept] = 0;
  }
  return names.text.size();
}

CARD_API void oomscope_card_on_unknown_read(void (*callback)(uint64_t bytes)) { card::on_unknown_read = callback; }
