// Collectives in a world of one process: every rank is taken to hold what this one holds.
//
// So a gather repeats this rank's data, a sum is N times it, and slot j of an all-to-all is what this rank has for
// itself. A broadcast from another rank leaves what is there. What a single other rank sends is unknown, unless this
// one sends the like to itself.
#include <vector>

#include "core/settings.h"
#include "memory/allocations.h"
#include "memory/copies.h"
#include "memory/space.h"
#include "memory/values.h"
#include "nccl/communicator.h"
#include "nccl/reduction.h"

namespace nccl {
namespace {

const char *slot(const void *buffer, int index, size_t bytes) {
  return static_cast<const char *>(buffer) + static_cast<size_t>(index) * bytes;
}
char *slot(void *buffer, int index, size_t bytes) {
  return static_cast<char *>(buffer) + static_cast<size_t>(index) * bytes;
}

int copy(void *to, const void *from, size_t bytes) {
  return to == from || !bytes || !card::copy(to, from, bytes) ? success : cuda_error;
}

int repeat(const Call &call, const void *from, int ranks) {
  for (int rank = 0; rank < ranks; rank++)
    if (int status = copy(slot(call.to, rank, call.bytes()), from, call.bytes())) return status;
  return success;
}

// Reduces the held values of a slot in place; an element that is held in part becomes unknown.
void reduce_held(const Call &call, int ranks) {
  bool stays = call.operation >= maximum && call.operation <= average;
  if (ranks == 1 || stays) return;
  uintptr_t first = card::address_of(call.to);
  card::MemoryLock lock(card::memory_mutex());
  bool is_small = call.bytes() <= card::settings().description.copy_limit_bytes;
  if (!is_small || !is_computed(call.type, call.operation)) return card::unhold(first, call.bytes());
  size_t element = bytes_of_type(call.type);
  for (auto &[address, bytes] : card::held_parts(first, call.bytes())) {
    uintptr_t begin = first + (address - first + element - 1) / element * element;
    uintptr_t end = first + (address + bytes - first) / element * element;
    if (begin >= end) {
      card::unhold(address, bytes);
      continue;
    }
    card::unhold(address, begin - address);
    card::unhold(end, address + bytes - end);
    std::vector<char> values(end - begin);
    card::read_content(values.data(), begin, values.size());
    reduce_alike(values.data(), values.size() / element, call.type, call.operation, ranks);
    card::write_content(begin, values.data(), values.size());
  }
}

int reduce(const Call &call, const void *from, int ranks) {
  int status = copy(call.to, from, call.bytes());
  if (!status) reduce_held(call, ranks);
  return status;
}

}  // namespace

size_t Call::bytes() const { return count * bytes_of_type(type); }

int Call::slots_given(const Communicator &c) const {
  switch (kind) {
    case Kind::reduce_scatter:
    case Kind::all_to_all: return c.size;
    case Kind::scatter: return root == c.rank ? c.size : 0;
    case Kind::broadcast: return root == c.rank;
    case Kind::receive: return 0;
    default: return 1;
  }
}

int Call::slots_taken(const Communicator &c) const {
  switch (kind) {
    case Kind::all_gather:
    case Kind::all_to_all: return c.size;
    case Kind::gather: return root == c.rank ? c.size : 0;
    case Kind::reduce: return root == c.rank;
    case Kind::send: return 0;
    default: return 1;
  }
}

int answer_alike(const Call &call, const Communicator &c) {
  if (!call.slots_taken(c)) return success;
  switch (call.kind) {
    case Kind::all_gather:
    case Kind::gather: return repeat(call, call.from, c.size);
    case Kind::all_to_all: return repeat(call, slot(call.from, c.rank, call.bytes()), c.size);
    case Kind::all_reduce:
    case Kind::reduce: return reduce(call, call.from, c.size);
    case Kind::reduce_scatter: return reduce(call, slot(call.from, c.rank, call.bytes()), c.size);
    case Kind::broadcast: return copy(call.to, call.from, call.bytes());
    case Kind::scatter:
      if (call.root == c.rank) return copy(call.to, slot(call.from, c.rank, call.bytes()), call.bytes());
      break;
    case Kind::receive:
      if (call.from) return copy(call.to, call.from, call.bytes());
      break;
    default: break;
  }
  forget_result(call, c);
  return success;
}

void forget_result(const Call &call, const Communicator &c) {
  card::MemoryLock lock(card::memory_mutex());
  card::unhold(card::address_of(call.to), call.bytes() * static_cast<size_t>(call.slots_taken(c)));
}

}  // namespace nccl
