#include "nccl/mailbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace nccl {
namespace {

constexpr long first_pause_ns = 50000, longest_pause_ns = 2000000;

struct Head {
  int64_t channel;
  uint64_t parts, bytes;
};

struct flock whole_file() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// A file appears under its name when it is locked: one without a lock is that of a process that has ended.
int create_locked(const std::string &path) {
  std::string unfinished = path + ".new";
  int descriptor = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct flock lock = whole_file();
  if (descriptor >= 0 && !fcntl(descriptor, F_SETLK, &lock) && !rename(unfinished.c_str(), path.c_str()))
    return descriptor;
  if (descriptor >= 0) close(descriptor);
  return -1;
}

// This process's own lock does not count.
bool is_locked_by_another(int descriptor) {
  struct flock lock = whole_file();
  return !fcntl(descriptor, F_GETLK, &lock) && lock.l_type != F_UNLCK;
}

bool read_at(int descriptor, void *to, size_t bytes, uint64_t offset) {
  return pread(descriptor, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

void pause_for(long nanoseconds) {
  timespec pause = {0, nanoseconds};
  nanosleep(&pause, nullptr);
}

}  // namespace

Record Record::of(const void *bytes, size_t size) {
  auto *begin = static_cast<const char *>(bytes);
  return {{begin, begin + size}, {{0, size}}};
}

bool Record::knows(uint64_t first, uint64_t size) const {
  return std::any_of(known.begin(), known.end(), [&](const Part &part) {
    return part.first <= first && first + size <= part.first + part.bytes;
  });
}

Mailbox::Mailbox(std::string path, int rank) : path_(std::move(path)), own_(create_locked(path_of(rank))) {}

Mailbox::~Mailbox() {
  for (auto &[sender, cursor] : cursors_)
    if (cursor.descriptor >= 0) close(cursor.descriptor);
  if (own_ >= 0) close(own_);
}

bool Mailbox::append(int channel, const Record &record) {
  Head head = {channel, record.known.size(), record.bytes.size()};
  auto *begin = reinterpret_cast<const char *>(&head), *parts = reinterpret_cast<const char *>(record.known.data());
  std::vector<char> all(begin, begin + sizeof head);
  all.insert(all.end(), parts, parts + head.parts * sizeof(Record::Part));
  all.insert(all.end(), record.bytes.begin(), record.bytes.end());
  std::lock_guard<std::mutex> guard(appending_);
  for (size_t done = 0; done < all.size();) {
    ssize_t written = write(own_, all.data() + done, all.size() - done);
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) done += static_cast<size_t>(written);
  }
  return true;
}

// False: there is no whole record of the channel behind the cursor yet.
bool Mailbox::read_next(Cursor &cursor, int channel, Record *record) {
  struct stat now;
  if (fstat(cursor.descriptor, &now)) return false;
  auto there = static_cast<uint64_t>(now.st_size);
  for (Head head; cursor.offset + sizeof head <= there;) {
    if (!read_at(cursor.descriptor, &head, sizeof head, cursor.offset)) return false;
    uint64_t parts = cursor.offset + sizeof head, bytes = parts + head.parts * sizeof(Record::Part);
    if (there < bytes + head.bytes) return false;
    cursor.offset = bytes + head.bytes;
    if (head.channel != channel) continue;
    record->known.resize(head.parts);
    record->bytes.resize(head.bytes);
    return read_at(cursor.descriptor, record->known.data(), bytes - parts, parts) &&
           read_at(cursor.descriptor, record->bytes.data(), head.bytes, bytes);
  }
  return false;
}

// A sender that has no file yet has not come.
Taken Mailbox::take(int sender, int channel, Record *record) {
  std::lock_guard<std::mutex> guard(taking_);
  Cursor &cursor = cursors_[{sender, channel}];
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(patience_s);
  for (long pause = first_pause_ns;; pause = std::min(pause + pause / 4, longest_pause_ns)) {
    if (cursor.descriptor < 0) cursor.descriptor = open(path_of(sender).c_str(), O_RDONLY | O_CLOEXEC);
    bool is_over = cursor.descriptor >= 0 && !is_locked_by_another(cursor.descriptor);  // it writes nothing from now on
    if (cursor.descriptor >= 0 && read_next(cursor, channel, record)) return Taken::record;
    if (is_over) return Taken::sender_ended;
    if (is_abandoned_) return Taken::abandoned;
    if (std::chrono::steady_clock::now() > deadline) return Taken::too_late;
    pause_for(pause);
  }
}

}  // namespace nccl
