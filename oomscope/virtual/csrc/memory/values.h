// Which bytes of device memory are held: known to be what the program would read on a real card.
//
// Held are bytes that a host-to-device copy or a memset wrote, or a device-to-device copy of held bytes. They stop
// being held when their memory is freed, when a copy above the limit covers them, or when a kernel or a library call is
// given a pointer into their range. A range is what one copy wrote; ranges that meet inside a unit of 512 bytes, the
// granularity of PyTorch's allocator, are one, since they belong to the same tensor. All other bytes are unknown.
//
// A kernel that is given a tensor may only read it, so what was copied there is remembered by its place and length. A
// tensor that takes over the memory seldom has both, and its reader must not be given the leftovers.
//
// Every function but might_be_held is called with memory_mutex held.
#pragma once
#include <stdint.h>

#include <atomic>
#include <utility>
#include <vector>

namespace card {

constexpr uintptr_t values_unit = 512;

void hold(uintptr_t address, uint64_t bytes);
// The same of what the host computed in place of a kernel: once a pointer to it is handed out the program's reads are not
// answered by it, because small results come and go at the same places.
void hold_computed(uintptr_t address, uint64_t bytes);
bool was_computed(uintptr_t address);  // whether a range begins there that is held, or was held, and was computed
void unhold(uintptr_t address, uint64_t bytes);
// The same of a tensor with memory of its own that is new: ranges that meet it are of tensors that are gone, and become
// unknown whole. PyTorch does not tell when it frees a tensor.
void unhold_new(uintptr_t address, uint64_t bytes);
// Ranges that are not held any more, but were until a pointer to them was handed out, count as never held.
void forget_once_held(uintptr_t address, uint64_t bytes);
// A tensor is just that range: what touches it is another's. Forgotten when something is held or unheld there.
void hold_apart(uintptr_t address, uint64_t bytes);
bool is_held_apart(uintptr_t address, uint64_t bytes);
// Whole ranges that meet the pointer's unit, from the pointer on, become unknown, and those that touch one of them
// and are not held apart.
void unhold_at(uintptr_t pointer);
// What unhold_at makes unknown on this thread in between is held again from restore_held on. Calls may nest.
void keep_held();
void restore_held();
bool meets_held(uintptr_t pointer);  // whether unhold_at would find one
// Whether one earlier copy wrote just this range, a pointer to it was handed out since, and nothing else was copied
// over it.
bool was_held(uintptr_t address, uint64_t bytes);
// The destination becomes held where the source is, and unknown elsewhere.
void move_held(uintptr_t to, uintptr_t from, uint64_t bytes);
// The held parts of a range, in order: (address, bytes).
std::vector<std::pair<uintptr_t, uint64_t>> held_parts(uintptr_t address, uint64_t bytes);
uint64_t count_unknown(uintptr_t address, uint64_t bytes);

// The least range that surrounds everything held, and a filter of its blocks: a quick no, without a lock.
constexpr unsigned filter_bits = 16, filter_block_bits = 16;
extern std::atomic<uintptr_t> held_low, held_high;
extern std::atomic<uint16_t> held_filter[1 << filter_bits];

inline unsigned filter_slot(uintptr_t address) {
  return static_cast<unsigned>(((address >> filter_block_bits) * 0x9e3779b97f4a7c15) >> (64 - filter_bits));
}

inline bool anything_held() { return held_high.load(std::memory_order_relaxed) != 0; }

inline bool might_be_held(uintptr_t pointer) {
  uintptr_t low = held_low.load(std::memory_order_relaxed), high = held_high.load(std::memory_order_relaxed);
  return pointer - low < high - low && held_filter[filter_slot(pointer)].load(std::memory_order_relaxed) != 0;
}

}  // namespace card
