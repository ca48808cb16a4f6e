// Collectives between processes that have a card each: the bytes that the cards hold really pass.
//
// A call sends what this rank gives, and then waits for what the others give it. Bytes that a rank does not hold are
// not sent, and what depends on them is unknown. Of a call with slots above the copy limit nothing is sent, and nobody
// waits.
#pragma once
#include <memory>
#include <string>

#include "nccl/communicator.h"
#include "nccl/mailbox.h"

namespace nccl {

class Exchange {
 public:
  Exchange(std::string path, int rank, int size);

  // Sends what this rank gives, and returns it. Waits for nobody.
  Record send(const Call &call, const Communicator &c);
  // Waits for what this rank is given, and writes the result. Returns a Status.
  int receive(const Call &call, const Communicator &c, const Record &own);
  void abandon() { mailbox_.abandon(); }

  // The communicator that this rank joins with all of its colour, ordered by key; null for a negative colour. Waits for
  // every rank's choice. Returns a Status.
  int split(int colour, int key, Communicator **out);

 private:
  int take(int sender, int channel, Record *record);
  int reduce(const Call &call, const Communicator &c, const Record &own);

  const std::string path_;
  const int rank_, size_;
  Mailbox mailbox_;
  int children_ = 0;
};

// The exchange of a communicator by the text of its unique id; null where the world has one process.
std::shared_ptr<Exchange> open_exchange(const std::string &id, int rank, int size);
// A text that no other communicator has.
std::string new_id();
// Why the last call of this thread failed for want of a rank.
const char *last_failure();

}  // namespace nccl
