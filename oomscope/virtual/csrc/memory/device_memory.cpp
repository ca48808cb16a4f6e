#include "memory/device_memory.h"

#include <algorithm>
#include <map>

#include "core/process.h"
#include "memory/addresses.h"
#include "memory/budget.h"
#include "memory/host_memory.h"
#include "memory/pools.h"
#include "memory/ranges.h"
#include "memory/values.h"

namespace card {
namespace {

constexpr uint64_t small_limit = 1 << 20, small_unit = 512;

struct SharedPage {
  int device;
  std::map<uint64_t, uint64_t> used;  // offset -> bytes
};
std::map<uintptr_t, SharedPage> &shared_pages() {
  static auto &all = *new std::map<uintptr_t, SharedPage>;
  return all;
}

// The first gap of a page that is large enough; device_page: none.
uint64_t gap_of(const SharedPage &page, uint64_t bytes) {
  uint64_t offset = 0;
  for (auto &[start, size] : page.used) {
    if (start - offset >= bytes) return offset;
    offset = start + size;
  }
  return device_page - offset >= bytes ? offset : device_page;
}

// Whole pages; 0: the device has no more.
uintptr_t take_pages(int device, uint64_t bytes) {
  if (!take(device, bytes)) return 0;
  uintptr_t address = take_addresses(bytes);
  if (!address) give(device, bytes);
  return address;
}

uintptr_t take_shared(int device, uint64_t bytes) {
  for (auto &[address, page] : shared_pages()) {
    uint64_t offset = page.device == device ? gap_of(page, bytes) : device_page;
    if (offset == device_page) continue;
    page.used[offset] = bytes;
    return address + offset;
  }
  uintptr_t address = take_pages(device, device_page);
  if (address) shared_pages()[address] = {device, {{0, bytes}}};
  return address;
}

void give_shared(uintptr_t address) {
  auto page = shared_pages().find(address / device_page * device_page);
  page->second.used.erase(address - page->first);
  if (!page->second.used.empty()) return;
  give(page->second.device, device_page);
  give_addresses(page->first);
  shared_pages().erase(page);
}

}  // namespace

int device_malloc(int device, void **pointer, size_t bytes) {
  if (!pointer) return CARD_INVALID_VALUE;
  *pointer = nullptr;
  if (!bytes) return 0;
  if (bytes > device_high - device_low) return CARD_OUT_OF_MEMORY;
  MemoryLock lock(memory_mutex());
  bool is_small = bytes <= small_limit;
  uint64_t rounded = round_up(bytes, is_small ? small_unit : device_page);
  uintptr_t address = is_small ? take_shared(device, rounded) : take_pages(device, rounded);
  if (!address) return CARD_OUT_OF_MEMORY;
  add_range(address, rounded, Kind::device, device);
  *pointer = reinterpret_cast<void *>(address);
  return 0;
}

int device_free(void *pointer) {
  if (!in_device_space(pointer)) return managed_free(pointer);
  MemoryLock lock(memory_mutex());
  auto address = reinterpret_cast<uintptr_t>(pointer);
  Range *range = range_at(address);
  if (!range) return CARD_INVALID_VALUE;
  if (range->kind == Kind::pooled) return give_pooled(*range);
  if (range->kind != Kind::device) return CARD_INVALID_VALUE;
  unhold(address, range->bytes);
  if (range->bytes <= small_limit) {
    give_shared(address);
  } else {
    give(range->device, range->bytes);
    give_addresses(address);
  }
  remove_range(address);
  return 0;
}

}  // namespace card

int card_malloc(void **pointer, size_t bytes) {
  int status = card::enter();
  return status ? status : card::device_malloc(card::current_device, pointer, bytes);
}

int card_free(void *pointer) {
  int status = card::enter();
  return status ? status : card::device_free(pointer);
}
