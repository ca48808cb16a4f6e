#include "memory/budget.h"

#include "core/counts.h"
#include "core/ledger.h"
#include "core/settings.h"

namespace card {
namespace {

uint64_t budget() {
  auto &d = settings().description;
  return d.used_bytes >= d.total_bytes ? 0 : d.total_bytes - d.used_bytes;
}

}  // namespace

std::mutex &memory_mutex() {
  static std::mutex &mutex = *new std::mutex;
  return mutex;
}

bool take(int device, uint64_t bytes) {
  if (!ledger_take(settings().visible[device], bytes, budget())) {
    add(counts.refused_allocations, 1);
    return false;
  }
  raise(counts.used_bytes, counts.peak_used_bytes, bytes);
  return true;
}

void give(int device, uint64_t bytes) {
  ledger_give(settings().visible[device], bytes);
  counts.used_bytes -= bytes;
}

uint64_t free_bytes(int device) {
  uint64_t held = ledger_total(settings().visible[device]);
  return held >= budget() ? 0 : budget() - held;
}

}  // namespace card
