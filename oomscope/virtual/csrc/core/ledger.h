// The bytes that each process holds on each card of this machine, in a file that all of them map.
//
// A lock of the file (flock) guards it and dies with its process. The entry of a dead process counts as free: it is
// told by process id and start time, so that a new process with an old id is nobody else.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

namespace card {

struct Holder {
  int process;
  uint64_t bytes;
};

// Opens the ledger for this process; with an empty path this process is alone. Returns what is wrong; empty: nothing.
std::string open_ledger(const std::string &path, int devices);

// Takes bytes of an installed device where all processes together then hold at most `budget`. Not thread-safe.
bool ledger_take(int device, uint64_t bytes, uint64_t budget);
void ledger_give(int device, uint64_t bytes);

// Closes a forked child's descriptor: it shares the lock of its parent, and would hold it after the parent's death.
void leave_ledger_in_child();

// The living processes that hold bytes of the device; those of the ledger at `path`, whether or not this process opened
// it. Reads only; the lock of the caller is not needed.
std::vector<Holder> ledger_holders(const std::string &path, int device);

// What the living processes hold, this one included.
uint64_t ledger_total(int device);

// The most that living processes held of the device at once.
uint64_t ledger_most(int device);

}  // namespace card
