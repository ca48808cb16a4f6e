#include "work/arguments.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "card.h"
#include "core/stack.h"
#include "memory/allocations.h"
#include "memory/space.h"
#include "memory/values.h"

namespace card {
namespace {

constexpr size_t argument_limit = 4096;  // of a guessed argument
constexpr int count_limit = 128;
constexpr uintptr_t word = sizeof(uintptr_t);

// The kernel does not let this process read its own memory by process_vm_readv, as some containers' filters do not:
// arguments cannot be looked at, and every launch may write anywhere.
std::atomic<bool> is_blind{false};

// Copies what is readable of [from, from + bytes), page by page; returns how many bytes that were. Never faults.
size_t read_safely(void *to, uintptr_t from, size_t bytes) {
  constexpr uintptr_t page = 4096;
  iovec pieces[argument_limit / page + 2];
  int count = 0;
  for (uintptr_t at = from; at < from + bytes; count++) {
    uintptr_t end = std::min(from + bytes, (at / page + 1) * page);
    pieces[count] = {reinterpret_cast<void *>(at), end - at};
    at = end;
  }
  iovec local = {to, bytes};
  ssize_t got = process_vm_readv(getpid(), &local, 1, pieces, static_cast<unsigned long>(count), 0);
  if (got < 0 && errno != EFAULT) is_blind = true;
  return got > 0 ? static_cast<size_t>(got) : 0;
}

uintptr_t aligned(uintptr_t address) { return (address + word - 1) & ~(word - 1); }

template <class Visit>
void visit_words(uintptr_t first, uintptr_t end, Visit visit) {
  for (uintptr_t at = aligned(first); at + word <= end; at += word) visit(*reinterpret_cast<const uintptr_t *>(at));
}

struct Argument {
  uintptr_t address;
  size_t bytes;
};

class Reader {
 public:
  // Without a signature: a guess.
  Reader(void **arguments, const Signature *signature)
      : array_(reinterpret_cast<uintptr_t>(arguments)),
        frame_(reinterpret_cast<uintptr_t>(__builtin_frame_address(0))),
        stack_(own_stack()) {
    if (signature) {
      collect(*signature);
    } else {
      guess();
    }
  }

  template <class Visit>
  void visit(Visit visit) const {
    for (int i = 0; i < count_; i++) {
      auto [address, bytes] = arguments_[i];
      if (is_on_stack(address)) {
        visit_words(address, std::min(address + bytes, stack_.high), visit);
        continue;
      }
      alignas(word) char copy[argument_limit];
      for (size_t done = 0; done < bytes; done += sizeof copy) {
        size_t got = read_safely(copy, (address & ~(word - 1)) + done, std::min(bytes - done, sizeof copy));
        visit_words(reinterpret_cast<uintptr_t>(copy), reinterpret_cast<uintptr_t>(copy) + got, visit);
      }
    }
  }

 private:
  bool is_on_stack(uintptr_t address) const {
    return address >= frame_ && frame_ >= stack_.low && address < stack_.high;
  }

  void collect(const Signature &signature) {
    size_t count = std::min<size_t>(signature.bytes.size(), count_limit);
    uintptr_t entries[count_limit];
    if (is_on_stack(array_) && array_ + count * word <= stack_.high) {
      memcpy(entries, reinterpret_cast<const void *>(array_), count * word);
    } else {
      count = read_safely(entries, array_, count * word) / word;
    }
    for (; count_ < static_cast<int>(count); count_++)
      arguments_[count_] = {entries[count_], signature.bytes[static_cast<size_t>(count_)]};
  }

  // Entries up to the first that cannot be the address of an argument. The array and the arguments do not overlap.
  void guess() {
    uintptr_t end = array_ + count_limit * word, entries[count_limit];
    bool on_stack = is_on_stack(array_);
    if (!on_stack) end = array_ + read_safely(entries, array_, count_limit * word) / word * word;
    for (uintptr_t slot = array_; slot + word <= end && (!on_stack || slot + word <= stack_.high); slot += word) {
      uintptr_t address = on_stack ? *reinterpret_cast<const uintptr_t *>(slot) : entries[count_];
      if (on_stack ? !is_on_stack(address) : address < 4096) break;
      arguments_[count_++] = {address, 0};
      if (address > array_) end = std::min(end, address & ~(word - 1));
    }
    for (int i = 0; i < count_; i++) arguments_[i].bytes = room_of(arguments_[i].address);
  }

  size_t room_of(uintptr_t address) const {
    uintptr_t end = address + argument_limit;
    if (array_ > address) end = std::min(end, array_);
    for (int i = 0; i < count_; i++)
      if (arguments_[i].address > address) end = std::min(end, arguments_[i].address);
    return end - address;
  }

  uintptr_t array_, frame_;
  Stack stack_;
  Argument arguments_[count_limit];
  int count_ = 0;
};

bool is_held(uintptr_t value) {
  if (!might_be_held(value)) return false;
  MemoryLock lock(memory_mutex());
  return meets_held(value);
}

void unhold_word(uintptr_t value) {
  if (might_be_held(value)) card_written(reinterpret_cast<const void *>(value));
}

}  // namespace

void unhold_all_if_blind() {
  if (!is_blind.load(std::memory_order_relaxed)) return;
  MemoryLock lock(memory_mutex());
  unhold(0, UINTPTR_MAX);
}

// Not inlined: its frame is the lower end of what is read.
__attribute__((noinline)) void unhold_arguments(void **arguments, Signer sign, const void *kernel) {
  if (!arguments || !anything_held()) return;
  const Signature *signature = sign(kernel, false);
  if (!signature) {
    Reader guess(arguments, nullptr);
    bool is_hit = false;
    guess.visit([&](uintptr_t value) { is_hit = is_hit || is_held(value); });
    if (!is_hit) return unhold_all_if_blind();
    signature = sign(kernel, true);
    if (!signature) {
      guess.visit(unhold_word);
      return unhold_all_if_blind();
    }
  }
  Reader(arguments, signature).visit(unhold_word);
  unhold_all_if_blind();
}

void unhold_buffer(const void *buffer, size_t bytes) {
  auto first = reinterpret_cast<uintptr_t>(buffer);
  if (buffer) visit_words(first, first + bytes, unhold_word);
}

__attribute__((noinline)) std::vector<uintptr_t> pointers_in_arguments(void **arguments, Signer sign,
                                                                       const void *kernel) {
  std::vector<uintptr_t> found;
  if (!arguments) return found;
  Reader(arguments, sign(kernel, true)).visit([&](uintptr_t value) {
    if (in_device_space(value)) found.push_back(value);
  });
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<uintptr_t> pointers_in_buffer(const void *buffer, size_t bytes) {
  std::vector<uintptr_t> found;
  auto first = reinterpret_cast<uintptr_t>(buffer);
  if (buffer)
    visit_words(first, first + bytes, [&](uintptr_t value) {
      if (in_device_space(value)) found.push_back(value);
    });
  return found;
}

}  // namespace card
