#include "core/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "core/settings.h"

namespace card {
namespace {

constexpr int max_processes = 256;
constexpr uint64_t magic = 0x32726567646c6d6f;  // "omldger2"

struct Entry {
  uint64_t started;  // of the process, in clock ticks since boot
  int32_t process;   // 0: free
  int32_t reserved;
  uint64_t bytes[max_devices];
};
struct Ledger {
  uint64_t magic;
  Entry entries[max_processes];
  uint64_t most[max_devices];
};

int file = -1;
Ledger *ledger = nullptr;
Entry *own = nullptr;
uint64_t alone[max_devices];  // what this process holds where there is no ledger
uint64_t most_alone[max_devices];

class FileLock {
 public:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {
    while (flock(descriptor_, LOCK_EX) && errno == EINTR) continue;
  }
  ~FileLock() { flock(descriptor_, LOCK_UN); }

 private:
  int descriptor_;
};

constexpr uint64_t gone = 0, unreadable = UINT64_MAX;

// When the process was started, in clock ticks since boot; `gone` where there is none, or only its remains (a zombie);
// `unreadable` where it lives and /proc does not show it (mounted with hidepid, or not at all).
uint64_t start_of(int process) {
  if (kill(process, 0) && errno == ESRCH) return gone;
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return kill(process, 0) && errno == ESRCH ? gone : unreadable;
  ssize_t length = read(descriptor, text, sizeof text - 1);
  close(descriptor);
  text[length > 0 ? length : 0] = 0;
  const char *name_end = strrchr(text, ')');  // the name may hold anything
  char state = 0;
  unsigned long long started = 0;
  const char *form = ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
  if (!name_end || sscanf(name_end, form, &state, &started) != 2) return gone;
  return state == 'Z' || state == 'X' ? gone : started;
}

// Whether the process of an entry lives: with an unreadable start time its id alone tells.
bool is_alive(const Entry &entry) {
  uint64_t started = start_of(entry.process);
  return started != gone && (started == entry.started || started == unreadable || entry.started == unreadable);
}

void drop_dead_processes() {
  for (auto &entry : ledger->entries)
    if (entry.process && &entry != own && !is_alive(entry)) memset(&entry, 0, sizeof entry);
}

uint64_t held(int device) {
  uint64_t total = 0;
  for (auto &entry : ledger->entries)
    if (entry.process) total += entry.bytes[device];
  return total;
}

// The lock is held. Dead processes are dropped only for a new maximum: it reads /proc once for each process.
void note_most(int device) {
  uint64_t &most = ledger->most[device];
  if (held(device) <= most) return;
  drop_dead_processes();
  most = std::max(most, held(device));
}

Ledger *map(int descriptor, int protection) {
  void *at = mmap(nullptr, sizeof(Ledger), protection, MAP_SHARED, descriptor, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Ledger *>(at);
}

bool has_size(int descriptor) { return lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(sizeof(Ledger)); }

// Makes an empty file a ledger; the lock is held.
bool prepare(int descriptor) {
  if (lseek(descriptor, 0, SEEK_END) == 0) {
    if (posix_fallocate(descriptor, 0, sizeof(Ledger))) return false;
    return pwrite(descriptor, &magic, sizeof magic, 0) == sizeof magic;
  }
  uint64_t found = 0;
  return has_size(descriptor) && pread(descriptor, &found, sizeof found, 0) == sizeof found && found == magic;
}

bool claim_entry() {
  drop_dead_processes();
  auto *end = std::end(ledger->entries);
  own = std::find_if(std::begin(ledger->entries), end, [](const Entry &entry) { return entry.process == 0; });
  if (own == end) return false;
  own->process = getpid();
  own->started = start_of(own->process);
  return true;
}

}  // namespace

std::string open_ledger(const std::string &path, int devices) {
  if (path.empty()) return "";
  if (devices > max_devices) return "ledger: too many devices";
  file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return "ledger " + path + ": " + strerror(errno);
  FileLock lock(file);
  if (!prepare(file)) return "ledger " + path + ": is no ledger, or there is no space for one";
  ledger = map(file, PROT_READ | PROT_WRITE);
  if (!ledger) return "ledger " + path + ": cannot be mapped";
  return claim_entry() ? "" : "ledger " + path + ": is full";
}

bool ledger_take(int device, uint64_t bytes, uint64_t budget) {
  if (!ledger) {
    if (bytes > budget || alone[device] > budget - bytes) return false;
    alone[device] += bytes;
    most_alone[device] = std::max(most_alone[device], alone[device]);
    return true;
  }
  FileLock lock(file);
  auto fits = [&] { return bytes <= budget && held(device) <= budget - bytes; };
  if (!fits()) drop_dead_processes();
  if (!fits()) return false;
  own->bytes[device] += bytes;
  note_most(device);
  return true;
}

void leave_ledger_in_child() {
  if (file >= 0) close(file);
  file = -1;
}

void ledger_give(int device, uint64_t bytes) {
  if (!ledger) {
    alone[device] -= bytes;
    return;
  }
  FileLock lock(file);
  own->bytes[device] -= bytes;
}

uint64_t ledger_total(int device) {
  if (!ledger) return alone[device];
  FileLock lock(file);
  drop_dead_processes();
  return held(device);
}

uint64_t ledger_most(int device) {
  if (!ledger) return most_alone[device];
  FileLock lock(file);
  return ledger->most[device];
}

std::vector<Holder> ledger_holders(const std::string &path, int device) {
  std::vector<Holder> holders;
  if (path.empty()) {
    if (alone[device]) holders.push_back({getpid(), alone[device]});
    return holders;
  }
  int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return holders;
  Ledger *seen = has_size(descriptor) ? map(descriptor, PROT_READ) : nullptr;
  if (seen) {
    FileLock lock(descriptor);
    for (auto &entry : seen->entries)
      if (entry.process && entry.bytes[device] && is_alive(entry))
        holders.push_back({entry.process, entry.bytes[device]});
  }
  if (seen) munmap(seen, sizeof *seen);
  close(descriptor);
  return holders;
}

}  // namespace card
