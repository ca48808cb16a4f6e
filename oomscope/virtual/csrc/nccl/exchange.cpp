#include "nccl/exchange.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/settings.h"
#include "memory/allocations.h"
#include "memory/copies.h"
#include "memory/space.h"
#include "memory/values.h"
#include "nccl/reduction.h"

namespace nccl {
namespace {

thread_local char failure[160];

bool is_small(const Call &call) { return call.bytes() <= card::settings().description.copy_limit_bytes; }
bool is_between_two(const Call &call) { return call.kind == Kind::send || call.kind == Kind::receive; }
bool has_one_taker(const Call &call) { return call.kind == Kind::reduce || call.kind == Kind::gather; }
bool has_one_giver(const Call &call) {
  return call.kind == Kind::broadcast || call.kind == Kind::scatter || call.kind == Kind::receive;
}

// Every record has its takers, who take those of a channel in order: all ranks, or one.
constexpr int to_all = -1, choices = -2;
int channel_of(const Call &call, int taker, const Communicator &c) {
  if (is_between_two(call)) return c.size + taker;
  return has_one_taker(call) ? taker : to_all;
}

// Which slot of another rank's record is for this one.
int own_slot(const Call &call, const Communicator &c) {
  bool differs = call.kind == Kind::all_to_all || call.kind == Kind::reduce_scatter || call.kind == Kind::scatter;
  return differs ? c.rank : 0;
}

// Writes the parts of a slot of a record that are known; the rest of the destination stays unknown.
int deliver(char *to, const Record &record, int slot, size_t bytes) {
  uint64_t first = static_cast<uint64_t>(slot) * bytes, end = first + bytes;
  for (auto &part : record.known) {
    uint64_t begin = std::max(part.first, first), last = std::min(part.first + part.bytes, end);
    if (begin >= last) continue;
    if (card::copy(to + (begin - first), record.bytes.data() + begin, last - begin)) return cuda_error;
  }
  return success;
}

}  // namespace

Exchange::Exchange(std::string path, int rank, int size)
    : path_(std::move(path)), rank_(rank), size_(size), mailbox_(path_, rank) {}

Record Exchange::send(const Call &call, const Communicator &c) {
  Record record;
  size_t bytes = call.bytes() * static_cast<size_t>(call.slots_given(c));
  if (!is_small(call) || !call.slots_given(c)) return record;
  if (bytes && card::in_device_space(call.from)) {
    card::MemoryLock lock(card::memory_mutex());
    uintptr_t first = card::address_of(call.from);
    for (auto &[address, size] : card::held_parts(first, bytes)) record.known.push_back({address - first, size});
    if (!record.known.empty()) {
      record.bytes.resize(bytes);
      card::read_content(record.bytes.data(), first, bytes);
    }
  }
  mailbox_.append(channel_of(call, call.root, c), record);
  return record;
}

int Exchange::take(int sender, int channel, Record *record) {
  Taken taken = mailbox_.take(sender, channel, record);
  if (taken == Taken::record) return success;
  if (taken == Taken::sender_ended)
    snprintf(failure, sizeof failure, "rank %d has ended, or destroyed its communicator", sender);
  if (taken == Taken::too_late)
    snprintf(failure, sizeof failure, "rank %d has not made this call within %d s", sender, Mailbox::patience_s);
  if (taken == Taken::abandoned) snprintf(failure, sizeof failure, "the communicator was aborted");
  return remote_error;
}

int Exchange::receive(const Call &call, const Communicator &c, const Record &own) {
  if (!call.slots_taken(c)) return success;
  if (!is_small(call)) {
    forget_result(call, c);
    return success;
  }
  if (call.is_reduction()) return reduce(call, c, own);
  std::vector<Record> given(static_cast<size_t>(call.slots_taken(c)));
  for (size_t i = 0; i < given.size(); i++) {
    int giver = has_one_giver(call) ? call.root : static_cast<int>(i);
    if (giver == rank_ && !is_between_two(call))
      given[i] = own;
    else if (int status = take(giver, channel_of(call, rank_, c), &given[i]))
      return status;
  }
  forget_result(call, c);
  for (size_t i = 0; i < given.size(); i++)
    if (int status = deliver(static_cast<char *>(call.to) + i * call.bytes(), given[i], own_slot(call, c), call.bytes()))
      return status;
  return success;
}

// In the order of the ranks, so that every rank rounds alike.
int Exchange::reduce(const Call &call, const Communicator &c, const Record &own) {
  size_t bytes = call.bytes(), first = static_cast<size_t>(own_slot(call, c)) * bytes;
  bool is_known = is_computed(call.type, call.operation);
  std::vector<char> reduced;
  for (int rank = 0; rank < size_; rank++) {
    Record record;
    if (rank != rank_)
      if (int status = take(rank, channel_of(call, rank_, c), &record)) return status;
    const Record &given = rank == rank_ ? own : record;
    is_known = is_known && given.knows(first, bytes);
    if (!is_known) continue;
    const char *values = given.bytes.data() + first;
    if (rank)
      reduce_into(reduced.data(), values, call.count, call.type, call.operation);
    else
      reduced.assign(values, values + bytes);
  }
  forget_result(call, c);
  if (!is_known) return success;
  if (call.operation == average) finish_average(reduced.data(), call.count, call.type, size_);
  return deliver(static_cast<char *>(call.to), Record::of(reduced.data(), bytes), 0, bytes);
}

int Exchange::split(int colour, int key, Communicator **out) {
  struct Choice {
    int colour, key;
  } own = {colour, key};
  mailbox_.append(choices, Record::of(&own, sizeof own));
  std::vector<std::pair<int, int>> members;  // key and rank
  for (int rank = 0; rank < size_; rank++) {
    Choice choice = own;
    Record record;
    if (rank != rank_) {
      if (int status = take(rank, choices, &record)) return status;
      memcpy(&choice, record.bytes.data(), std::min(record.bytes.size(), sizeof choice));
    }
    if (choice.colour == colour) members.emplace_back(choice.key, rank);
  }
  int child = children_++;
  *out = nullptr;
  if (colour < 0) return success;
  std::sort(members.begin(), members.end());
  auto place = std::find(members.begin(), members.end(), std::make_pair(key, rank_));
  auto rank = static_cast<int>(place - members.begin()), size = static_cast<int>(members.size());
  std::string path = path_ + "-" + std::to_string(child) + "-" + std::to_string(colour);
  auto exchange = size > 1 ? std::make_shared<Exchange>(path, rank, size) : nullptr;
  *out = new Communicator{rank, size, card_current_device(), exchange};
  return success;
}

std::shared_ptr<Exchange> open_exchange(const std::string &id, int rank, int size) {
  const card::Settings &s = card::settings();
  if (size == 1 || !s.has_peers) return nullptr;
  std::string folder = s.ledger.substr(0, s.ledger.rfind('/') + 1);
  return std::make_shared<Exchange>(folder + "nccl-" + id, rank, size);
}

std::string new_id() {
  unsigned char random[16] = {};
  if (getrandom(random, sizeof random, 0) != sizeof random) return "";
  std::string text;
  for (unsigned char byte : random) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

const char *last_failure() { return failure; }

}  // namespace nccl
