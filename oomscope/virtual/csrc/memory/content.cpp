#include "memory/content.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <set>
#include <vector>

#include "memory/budget.h"

namespace card {
namespace {

std::set<uintptr_t> &open_pages() {
  static auto &all = *new std::set<uintptr_t>;
  return all;
}

uintptr_t page_of(uintptr_t address) { return address / device_page * device_page; }
void *at(uintptr_t address) { return reinterpret_cast<void *>(address); }

bool open_for_writing(uintptr_t address, size_t bytes) {
  for (uintptr_t page = page_of(address); page < address + bytes; page += device_page) {
    if (open_pages().count(page)) continue;
    if (mprotect(at(page), device_page, PROT_READ | PROT_WRITE)) return false;
    open_pages().insert(page);
  }
  return true;
}

bool any_open(uintptr_t address, size_t bytes) {
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
    if (open_pages().count(page_of(from))) {
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
  mmap(at(address), bytes, PROT_NONE, flags, -1, 0);
  madvise(at(address), bytes, MADV_NOHUGEPAGE);
}

}  // namespace card
