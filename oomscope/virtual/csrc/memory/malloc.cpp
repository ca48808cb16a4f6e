#include "memory/memory.h"

#include <sys/mman.h>

#include <map>

#include "core/process.h"
#include "memory/allocations.h"
#include "memory/space.h"
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
  uintptr_t address = take_segment(device, bytes);
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

namespace {

constexpr uint64_t host_page = 4096;
constexpr int already_registered = 712, not_registered = 713;

int map_host(void **pointer, size_t bytes, Kind kind, unsigned flags) {
  if (!pointer) return CARD_INVALID_VALUE;
  *pointer = nullptr;
  if (!bytes) return kind == Kind::managed ? CARD_INVALID_VALUE : 0;
  uint64_t rounded = round_up(bytes, host_page);
  if (rounded < bytes) return CARD_OUT_OF_MEMORY;
  void *at = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CARD_OUT_OF_MEMORY;
  MemoryLock lock(memory_mutex());
  add_range(address_of(at), rounded, kind, current_device).flags = flags;
  *pointer = at;
  return 0;
}

int unmap_host(void *pointer, Kind kind) {
  if (!pointer) return 0;
  MemoryLock lock(memory_mutex());
  Range *range = range_at(address_of(pointer));
  if (!range || range->kind != kind) return CARD_INVALID_VALUE;
  munmap(pointer, range->bytes);
  remove_range(range->address);
  return 0;
}

}  // namespace

int pinned_malloc(void **pointer, size_t bytes, unsigned flags) {
  return map_host(pointer, bytes, Kind::pinned, flags);
}
int pinned_free(void *pointer) { return unmap_host(pointer, Kind::pinned); }
int managed_malloc(void **pointer, size_t bytes, unsigned flags) {
  return map_host(pointer, bytes, Kind::managed, flags);
}
int managed_free(void *pointer) { return unmap_host(pointer, Kind::managed); }

int host_register(void *pointer, size_t bytes, unsigned flags) {
  if (!pointer || !bytes) return CARD_INVALID_VALUE;
  MemoryLock lock(memory_mutex());
  if (range_around(address_of(pointer)) || range_around(address_of(pointer) + bytes - 1)) return already_registered;
  add_range(address_of(pointer), bytes, Kind::registered, current_device).flags = flags;
  return 0;
}

int host_unregister(void *pointer) {
  MemoryLock lock(memory_mutex());
  Range *range = range_at(address_of(pointer));
  if (!range || range->kind != Kind::registered) return not_registered;
  remove_range(range->address);
  return 0;
}

bool is_page_locked(uintptr_t address) {
  MemoryLock lock(memory_mutex());
  Range *range = range_around(address);
  return range && is_host(range->kind);
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
