#include "memory/addresses.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "core/settings.h"
#include "memory/budget.h"
#include "memory/content.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace card {
namespace {

std::map<uintptr_t, uint64_t> &taken() {  // address -> bytes
  static auto &all = *new std::map<uintptr_t, uint64_t>;
  return all;
}

uintptr_t next_up = device_low, next_down = device_high;
uint64_t random_state = 0x6f6f6d73636f7065;

uint64_t next_random() {  // splitmix64
  uint64_t z = random_state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

bool is_free(uintptr_t address, uint64_t bytes) {
  if (address < device_low || address > device_high || bytes > device_high - address) return false;
  auto next = taken().lower_bound(address);
  if (next != taken().end() && next->first < address + bytes) return false;
  return next == taken().begin() || (--next, next->first + next->second <= address);
}

uintptr_t first_gap(uint64_t bytes, uint64_t alignment) {
  uintptr_t address = round_up(device_low, alignment);
  for (auto &[start, size] : taken()) {
    if (start >= address + bytes) break;
    address = std::max(address, static_cast<uintptr_t>(round_up(start + size, alignment)));
  }
  return is_free(address, bytes) ? address : 0;
}

uintptr_t choose(uint64_t bytes, uint64_t alignment) {
  constexpr uint64_t space = device_high - device_low;
  if (bytes > space) return 0;
  uintptr_t address = 0;
  switch (settings().order) {
    case AddressOrder::ascending: address = round_up(next_up, alignment); break;
    case AddressOrder::descending:
      address = bytes > next_down - device_low ? 0 : (next_down - bytes) / alignment * alignment;
      break;
    case AddressOrder::scattered:
      for (int attempt = 0; attempt < 64 && !is_free(address, bytes); attempt++)
        address = device_low + next_random() % space / alignment * alignment;
      break;
  }
  return is_free(address, bytes) ? address : first_gap(bytes, alignment);
}

// Keeps the place for us; false where something else lies there.
bool occupy(uintptr_t address, uint64_t bytes) {
  void *wanted = reinterpret_cast<void *>(address);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void *got = mmap(wanted, bytes, PROT_NONE, flags, -1, 0);
  if (got == MAP_FAILED) return false;
  if (got != wanted) {  // a kernel that does not know the flag took the address as a hint
    munmap(got, bytes);
    return false;
  }
  madvise(got, bytes, MADV_NOHUGEPAGE);  // a small copy costs a page of 4 KiB, not of 2 MiB
  return true;
}

}  // namespace

uintptr_t take_addresses(uint64_t bytes, uint64_t alignment, uintptr_t hint) {
  alignment = std::max(alignment, device_page);
  if (hint && hint % alignment == 0 && is_free(hint, bytes) && occupy(hint, bytes)) {
    taken()[hint] = bytes;
    return hint;
  }
  for (int attempt = 0; attempt < 256; attempt++) {
    uintptr_t address = choose(bytes, alignment);
    if (!address) return 0;
    if (settings().order == AddressOrder::ascending) next_up = std::max(next_up, address + bytes);
    if (settings().order == AddressOrder::descending) next_down = std::min(next_down, address);
    if (occupy(address, bytes)) {
      taken()[address] = bytes;
      return address;
    }
  }
  return 0;
}

void give_addresses(uintptr_t address) {
  auto place = taken().find(address);
  if (place == taken().end()) return;
  forget_content(place->first, place->second);
  munmap(reinterpret_cast<void *>(place->first), place->second);
  taken().erase(place);
}

}  // namespace card

int card_is_device(const void *pointer) { return card::in_device_space(pointer); }
