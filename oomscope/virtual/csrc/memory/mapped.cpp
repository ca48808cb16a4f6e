#include "memory/memory.h"

#include <map>
#include <unordered_map>

#include "core/process.h"
#include "memory/allocations.h"
#include "memory/space.h"
#include "memory/values.h"

namespace card {
namespace {

struct Physical {
  uint64_t bytes;
  int device;
  int references;  // of the program, and one for each place where it is mapped
};
struct Mapping {
  uint64_t bytes, handle;
};

std::unordered_map<uint64_t, Physical> &physical() {
  static auto &all = *new std::unordered_map<uint64_t, Physical>;
  return all;
}
std::map<uintptr_t, Mapping> &mappings() {
  static auto &all = *new std::map<uintptr_t, Mapping>;
  return all;
}
uint64_t last_handle = 0;

int drop_reference(uint64_t handle) {
  auto found = physical().find(handle);
  if (found == physical().end()) return CARD_INVALID_VALUE;
  if (--found->second.references == 0) {
    give(found->second.device, found->second.bytes);
    physical().erase(found);
  }
  return 0;
}

// The mapping that holds the address, or the next one.
std::map<uintptr_t, Mapping>::iterator mapping_after(uintptr_t address) {
  auto mapping = mappings().upper_bound(address);
  if (mapping != mappings().begin()) {
    auto previous = std::prev(mapping);
    if (previous->first + previous->second.bytes > address) return previous;
  }
  return mapping;
}

}  // namespace

int create_physical(int device, uint64_t bytes, uint64_t *handle) {
  if (!handle || !bytes || bytes % device_page) return CARD_INVALID_VALUE;
  MemoryLock lock(memory_mutex());
  if (!take(device, bytes)) return CARD_OUT_OF_MEMORY;
  *handle = ++last_handle;
  physical()[*handle] = {bytes, device, 1};
  return 0;
}

int release_physical(uint64_t handle) {
  MemoryLock lock(memory_mutex());
  return drop_reference(handle);
}

int physical_device(uint64_t handle, int *device) {
  MemoryLock lock(memory_mutex());
  auto found = physical().find(handle);
  if (found == physical().end()) return CARD_INVALID_VALUE;
  *device = found->second.device;
  return 0;
}

int reserve_addresses(uint64_t bytes, uint64_t alignment, uintptr_t hint, int device, uintptr_t *address) {
  if (!address || !bytes || bytes % device_page || (alignment & (alignment - 1))) return CARD_INVALID_VALUE;
  MemoryLock lock(memory_mutex());
  *address = take_addresses(bytes, alignment, hint);
  if (!*address) return CARD_OUT_OF_MEMORY;
  add_range(*address, bytes, Kind::reservation, device);
  return 0;
}

int free_addresses(uintptr_t address, uint64_t bytes) {
  MemoryLock lock(memory_mutex());
  Range *range = range_at(address);
  if (!range || range->kind != Kind::reservation || range->bytes != bytes) return CARD_INVALID_VALUE;
  auto mapping = mapping_after(address);
  if (mapping != mappings().end() && mapping->first < address + bytes) return CARD_INVALID_VALUE;
  remove_range(address);
  give_addresses(address);
  return 0;
}

int map_physical(uintptr_t address, uint64_t bytes, uint64_t handle) {
  MemoryLock lock(memory_mutex());
  auto found = physical().find(handle);
  Range *range = range_around(address);
  bool fits = found != physical().end() && bytes == found->second.bytes && range && range->kind == Kind::reservation &&
              address % device_page == 0 && bytes <= range->address + range->bytes - address;
  if (!fits) return CARD_INVALID_VALUE;
  auto next = mapping_after(address);
  if (next != mappings().end() && next->first < address + bytes) return CARD_INVALID_VALUE;
  mappings()[address] = {bytes, handle};
  found->second.references++;
  return 0;
}

int unmap_physical(uintptr_t address, uint64_t bytes) {
  MemoryLock lock(memory_mutex());
  auto first = mappings().find(address);
  auto end = first;
  uint64_t covered = 0;
  for (; end != mappings().end() && covered < bytes && end->first == address + covered; ++end)
    covered += end->second.bytes;
  if (!bytes || covered != bytes) return CARD_INVALID_VALUE;
  for (auto mapping = first; mapping != end; ++mapping) drop_reference(mapping->second.handle);
  mappings().erase(first, end);
  unhold(address, bytes);
  clear_content(address, bytes);
  return 0;
}

int check_mapped(uintptr_t address, uint64_t bytes) {
  MemoryLock lock(memory_mutex());
  return is_mapped(address, bytes) ? 0 : CARD_INVALID_VALUE;
}

int retain_physical(uintptr_t address, uint64_t *handle) {
  MemoryLock lock(memory_mutex());
  auto mapping = mapping_after(address);
  if (mapping == mappings().end() || mapping->first > address) return CARD_INVALID_VALUE;
  *handle = mapping->second.handle;
  physical()[*handle].references++;
  return 0;
}

bool is_mapped(uintptr_t address, uint64_t bytes) {
  uintptr_t end = address + bytes;
  for (auto mapping = mapping_after(address); address < end; ++mapping) {
    if (mapping == mappings().end() || mapping->first > address) return false;
    address = mapping->first + mapping->second.bytes;
  }
  return true;
}

}  // namespace card
