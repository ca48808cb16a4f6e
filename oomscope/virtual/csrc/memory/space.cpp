#include "memory/space.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "core/settings.h"
#include "memory/allocations.h"
#include "memory/spans.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace card {
namespace {

struct Place {
  uint64_t bytes;
  bool is_of_span;
};
std::map<uintptr_t, Place> &taken() {  // by address
  static auto &all = *new std::map<uintptr_t, Place>;
  return all;
}

uintptr_t next_up = device_low;
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
  return next == taken().begin() || (--next, next->first + next->second.bytes <= address);
}

uintptr_t first_gap(uint64_t bytes, uint64_t alignment) {
  uintptr_t address = round_up(device_low, alignment);
  for (auto &[start, place] : taken()) {
    if (start >= address + bytes) break;
    address = std::max(address, static_cast<uintptr_t>(round_up(start + place.bytes, alignment)));
  }
  return is_free(address, bytes) ? address : 0;
}

uintptr_t choose(uint64_t bytes, uint64_t alignment) {
  constexpr uint64_t space = device_high - device_low;
  if (bytes > space) return 0;
  uintptr_t address = round_up(next_up, alignment);
  if (settings().order == AddressOrder::scattered) {
    address = 0;
    for (int attempt = 0; attempt < 64 && !is_free(address, bytes); attempt++)
      address = device_low + next_random() % space / alignment * alignment;
  }
  return is_free(address, bytes) ? address : first_gap(bytes, alignment);
}

// What is never written costs no host memory either way.
int protection() { return settings().is_computed ? PROT_READ | PROT_WRITE : PROT_NONE; }

// A small copy costs a page of 4 KiB then, not of 2 MiB.
void keep_pages_small(void *address, uint64_t bytes) {
  madvise(address, bytes, settings().is_computed ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

// Keeps the place for us; false where something else lies there.
bool occupy(uintptr_t address, uint64_t bytes) {
  void *wanted = reinterpret_cast<void *>(address);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void *got = mmap(wanted, bytes, protection(), flags, -1, 0);
  if (got == MAP_FAILED) return false;
  if (got != wanted) {  // a kernel that does not know the flag took the address as a hint
    munmap(got, bytes);
    return false;
  }
  keep_pages_small(got, bytes);
  return true;
}

}  // namespace

uintptr_t take_addresses(uint64_t bytes, uint64_t alignment, uintptr_t hint) {
  alignment = std::max(alignment, device_page);
  if (hint && hint % alignment == 0 && is_free(hint, bytes) && occupy(hint, bytes)) {
    taken()[hint] = {bytes, false};
    return hint;
  }
  for (int attempt = 0; attempt < 256; attempt++) {
    uintptr_t address = choose(bytes, alignment);
    if (!address) return 0;
    if (settings().order != AddressOrder::scattered) next_up = std::max(next_up, address + bytes);
    if (occupy(address, bytes)) {
      taken()[address] = {bytes, false};
      return address;
    }
  }
  return 0;
}

uintptr_t take_segment(int device, uint64_t bytes) {
  if (settings().order != AddressOrder::spans) return take_addresses(bytes);
  uintptr_t address = take_from_spans(device, bytes);
  if (address && is_free(address, bytes) && occupy(address, bytes)) {
    taken()[address] = {bytes, true};
    return address;
  }
  if (address) give_to_spans(address, bytes);
  return take_addresses(bytes);
}

void give_addresses(uintptr_t address) {
  auto found = taken().find(address);
  if (found == taken().end()) return;
  Place place = found->second;
  forget_content(address, place.bytes);
  if (place.is_of_span) give_to_spans(address, place.bytes);
  munmap(reinterpret_cast<void *>(address), place.bytes);
  taken().erase(found);
}

namespace {

std::set<uintptr_t> &open_pages() {
  static auto &all = *new std::set<uintptr_t>;
  return all;
}

uintptr_t page_of(uintptr_t address) { return address / device_page * device_page; }
void *at(uintptr_t address) { return reinterpret_cast<void *>(address); }

bool open_for_writing(uintptr_t address, size_t bytes) {
  if (settings().is_computed) return true;
  for (uintptr_t page = page_of(address); page < address + bytes; page += device_page) {
    if (open_pages().count(page)) continue;
    if (mprotect(at(page), device_page, PROT_READ | PROT_WRITE)) return false;
    open_pages().insert(page);
  }
  return true;
}

bool any_open(uintptr_t address, size_t bytes) {
  if (settings().is_computed) return true;
  auto page = open_pages().lower_bound(page_of(address));
  return page != open_pages().end() && *page < address + bytes;
}

}  // namespace

bool write_content(uintptr_t to, const void *from, size_t bytes) {
  if (!open_for_writing(to, bytes)) return false;
  memcpy(at(to), from, bytes);
  return true;
}

bool fill_content(uintptr_t to, int byte, size_t bytes) {
  if (byte == 0 && !any_open(to, bytes)) return true;
  if (!open_for_writing(to, bytes)) return false;
  memset(at(to), byte, bytes);
  return true;
}

void read_content(void *to, uintptr_t from, size_t bytes) {
  auto *out = static_cast<char *>(to);
  while (bytes) {
    size_t part = std::min<size_t>(bytes, page_of(from) + device_page - from);
    if (any_open(from, part)) {
      memcpy(out, at(from), part);
    } else {
      memset(out, 0, part);
    }
    out += part, from += part, bytes -= part;
  }
}

bool move_content(uintptr_t to, uintptr_t from, size_t bytes) {
  if (!any_open(from, bytes)) return fill_content(to, 0, bytes);
  std::vector<char> between(bytes);
  read_content(between.data(), from, bytes);
  return write_content(to, between.data(), bytes);
}

void forget_content(uintptr_t address, uint64_t bytes) {
  auto &pages = open_pages();
  pages.erase(pages.lower_bound(address), pages.lower_bound(address + bytes));
}

void clear_content(uintptr_t address, uint64_t bytes) {
  if (!any_open(address, bytes)) return;
  forget_content(address, bytes);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  mmap(at(address), bytes, protection(), flags, -1, 0);
  keep_pages_small(at(address), bytes);
}

}  // namespace card

int card_is_device(const void *pointer) { return card::in_device_space(pointer); }
