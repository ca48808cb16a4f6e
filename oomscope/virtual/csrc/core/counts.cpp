#include "core/counts.h"

#include <string.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_set>

#include "core/ledger.h"
#include "core/settings.h"

namespace card {

Counts counts;

namespace {

std::atomic<void (*)(uint64_t)> on_unknown_read{nullptr};

// What was noted, once by name.
class Names {
 public:
  bool note(const char *name) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!seen_.insert(name).second) return false;
    text_ += text_.empty() ? "" : "\n";
    text_ += name;
    return true;
  }

  size_t write(char *buffer, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (bytes) {
      size_t kept = std::min(text_.size(), bytes - 1);
      memcpy(buffer, text_.data(), kept);
      buffer[kept] = 0;
    }
    return text_.size();
  }

 private:
  std::mutex mutex_;
  std::unordered_set<std::string> seen_;
  std::string text_;
};
Names &unsupported = *new Names, &unknown_workspaces = *new Names;  // never destroyed: threads outlive main

}  // namespace

void report_unknown_read(uint64_t bytes) {
  add(counts.unknown_reads, 1);
  add(counts.unknown_read_bytes, bytes);
  if (auto callback = on_unknown_read.load()) callback(bytes);
}

}  // namespace card

int card_unsupported(const char *name) {
  if (card::unsupported.note(name)) card::add(card::counts.unsupported, 1);
  return CARD_NOT_SUPPORTED;
}

void card_unknown_workspace(const char *name) { card::unknown_workspaces.note(name); }

CARD_API int oomscope_card_version(void) { return OOMSCOPE_CARD_VERSION; }

CARD_API size_t oomscope_card_counters(oomscope_card_counts *out, size_t bytes) {
  oomscope_card_counts now;
  auto *from = reinterpret_cast<const std::atomic<uint64_t> *>(&card::counts);
  auto *to = reinterpret_cast<uint64_t *>(&now);
  for (size_t i = 0; i < sizeof now / sizeof *to; i++) to[i] = from[i].load(std::memory_order_relaxed);
  memcpy(out, &now, bytes < sizeof now ? bytes : sizeof now);
  return sizeof now;
}

CARD_API uint64_t oomscope_card_most_held(int device) { return card::ledger_most(card::settings().visible[device]); }

CARD_API size_t oomscope_card_unsupported(char *buffer, size_t bytes) {
  return card::unsupported.write(buffer, bytes);
}
CARD_API size_t oomscope_card_unknown_workspaces(char *buffer, size_t bytes) {
  return card::unknown_workspaces.write(buffer, bytes);
}

CARD_API void oomscope_card_on_unknown_read(void (*callback)(uint64_t bytes)) { card::on_unknown_read = callback; }
