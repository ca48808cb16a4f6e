// A communicator of the NCCL stand-in, and a call on it.
//
// In a world of one process every rank is taken to hold what this one holds (nccl/alike.h). In a world of several
// processes a communicator has an exchange (nccl/exchange.h), through which their small data really passes.
#pragma once
#include <stddef.h>

#include <memory>

#include "card.h"

namespace nccl {

class Exchange;

struct Communicator {
  int rank, size, device;
  std::shared_ptr<Exchange> exchange;  // null: every rank holds what this one holds
};

enum class Kind { all_gather, gather, all_reduce, reduce, reduce_scatter, broadcast, scatter, all_to_all, send, receive };

// Sizes are those of a slot: what one rank gives to one rank.
struct Call {
  Kind kind;
  const void *from;  // of a receive or another's broadcast: data of this rank that are taken for what comes in
  void *to;
  size_t count;
  int type;
  int operation;  // of a reduction
  int root;       // of a send or a receive: the other rank

  size_t bytes() const;
  bool is_reduction() const {
    return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
  }
  // Slots that this rank gives, and that it is given; 0: none.
  int slots_given(const Communicator &c) const;
  int slots_taken(const Communicator &c) const;
};

enum Status { success = 0, cuda_error = 1, system_error = 2, invalid_argument = 4, invalid_usage = 5, remote_error = 6 };

// Answers a call as if every rank held what this one holds. Returns a Status.
int answer_alike(const Call &call, const Communicator &c);

// What the call writes becomes unknown.
void forget_result(const Call &call, const Communicator &c);

}  // namespace nccl
