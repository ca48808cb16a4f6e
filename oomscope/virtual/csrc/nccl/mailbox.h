// What the ranks of a communicator send each other: a file for each sender, which only grows.
//
// So a sender never waits, and nothing has to be agreed on. The files lie beside the ledger of the card's processes, in
// a folder that the probe removes. A sender holds a lock on its file, which the system releases when its process ends.
#pragma once
#include <stdint.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace nccl {

// What a rank gives: bytes, of which it may hold only parts.
struct Record {
  struct Part {
    uint64_t first, bytes;
  };
  std::vector<char> bytes;  // empty where nothing is known
  std::vector<Part> known;  // in order

  static Record of(const void *bytes, size_t size);  // all of which are known
  bool knows(uint64_t first, uint64_t size) const;   // the whole range
};

enum class Taken { record, sender_ended, too_late, abandoned };

class Mailbox {
 public:
  static constexpr int patience_s = 600;  // torch's default for a collective of NCCL

  // The files of a communicator begin with `path`.
  Mailbox(std::string path, int rank);
  ~Mailbox();
  Mailbox(const Mailbox &) = delete;
  Mailbox &operator=(const Mailbox &) = delete;

  // False: it could not be written.
  bool append(int channel, const Record &record);
  // The next record of a sender on a channel. Waits for it as long as the sender lives, at most patience_s.
  Taken take(int sender, int channel, Record *record);
  // Ends every wait.
  void abandon() { is_abandoned_ = true; }

 private:
  struct Cursor {
    int descriptor = -1;
    uint64_t offset = 0;
  };
  std::string path_of(int sender) const { return path_ + "." + std::to_string(sender); }
  bool read_next(Cursor &cursor, int channel, Record *record);

  const std::string path_;
  int own_ = -1;
  std::mutex appending_, taking_;
  std::map<std::pair<int, int>, Cursor> cursors_;  // by sender and channel
  std::atomic<bool> is_abandoned_{false};
};

}  // namespace nccl
