#include "work/streams.h"

#include <algorithm>
#include <mutex>

#include "core/process.h"
#include "memory/pools.h"
#include "work/capture.h"

namespace card {
namespace {

std::mutex &progress_mutex() {
  static std::mutex &mutex = *new std::mutex;
  return mutex;
}
std::vector<Stream *> &all_streams() {  // guarded by progress_mutex
  static auto &all = *new std::vector<Stream *>;
  return all;
}
std::atomic<uint64_t> last_id{0};

constexpr int max_devices = 64;
constexpr uintptr_t legacy_handle = 1, per_thread_handle = 2;

Stream *default_stream(int device) {
  static Stream *all = [] {
    auto *streams = new Stream[max_devices];
    for (int i = 0; i < max_devices; i++) streams[i].device = i, streams[i].id = ++last_id;
    return streams;
  }();
  return &all[device];
}

bool has_lag() { return settings().event_lag != 0; }

// Completes a stream's events up to one of them, and what the stream had waited for; progress_mutex is held.
void complete_held(Reached point) {
  Stream &stream = *point.stream;
  if (point.event <= stream.completed) return;
  stream.completed = point.event;
  auto waits = std::move(stream.waits);
  stream.waits.clear();
  for (auto &wait : waits) complete_held(wait);
}

}  // namespace

Stream *find_stream(void *handle) {
  auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= per_thread_handle) return default_stream(current_device);
  auto *stream = static_cast<Stream *>(handle);
  return stream->mark == Stream::live ? stream : nullptr;
}

Stream *new_stream(unsigned flags, int priority) {
  auto *stream = new Stream;
  stream->device = current_device;
  stream->flags = flags;
  stream->priority = std::clamp(priority, highest_priority, 0);
  stream->id = ++last_id;
  std::lock_guard<std::mutex> guard(progress_mutex());
  all_streams().push_back(stream);
  return stream;
}

// The object stays: events of it may be asked about later.
int destroy_stream(void *handle) {
  if (reinterpret_cast<uintptr_t>(handle) <= per_thread_handle) return CARD_INVALID_HANDLE;
  Stream *stream = find_stream(handle);
  if (!stream) return CARD_INVALID_HANDLE;
  stream->mark = 0;
  std::lock_guard<std::mutex> guard(progress_mutex());
  auto &all = all_streams();
  all.erase(std::remove(all.begin(), all.end(), stream), all.end());
  return 0;
}

int synchronize_stream(Stream *stream) {
  if (!stream) return CARD_INVALID_HANDLE;
  if (stream->capture) return spoil_capture(stream);
  if (has_lag()) {
    std::lock_guard<std::mutex> guard(progress_mutex());
    complete_held({stream, stream->recorded});
  }
  trim_pools(stream->device);
  return 0;
}

int synchronize_device() {
  if (is_any_capture_active()) return capture_unsupported;
  if (has_lag()) {
    std::lock_guard<std::mutex> guard(progress_mutex());
    for (Stream *stream : all_streams())
      if (stream->device == current_device) complete_held({stream, stream->recorded});
    Stream *first = default_stream(current_device);
    complete_held({first, first->recorded});
  }
  trim_pools(current_device);
  return 0;
}

int query_stream(Stream *stream) {
  if (!stream) return CARD_INVALID_HANDLE;
  if (stream->capture) return spoil_capture(stream);
  if (!has_lag()) return 0;
  std::lock_guard<std::mutex> guard(progress_mutex());
  if (stream->completed == stream->recorded) return 0;
  if (++stream->polls < settings().event_lag) return CARD_NOT_READY;
  complete_held({stream, stream->recorded});
  return 0;
}

Reached record_on(Stream *stream, uint64_t *polls) {
  if (!has_lag()) return {stream, 0};
  std::lock_guard<std::mutex> guard(progress_mutex());
  *polls = stream->polls;
  return {stream, ++stream->recorded};
}

bool has_completed(Reached point, uint64_t polls_then) {
  if (!has_lag() || !point.stream) return true;
  std::lock_guard<std::mutex> guard(progress_mutex());
  Stream &stream = *point.stream;
  if (point.event <= stream.completed) return true;
  if (stream.polls - polls_then >= settings().event_lag) {
    complete_held(point);
    return true;
  }
  stream.polls++;
  return false;
}

void complete(Reached point) {
  if (!has_lag() || !point.stream) return;
  std::lock_guard<std::mutex> guard(progress_mutex());
  complete_held(point);
}

void wait_for(Stream *stream, Reached point) {
  if (!has_lag() || !point.stream || point.stream == stream) return;
  std::lock_guard<std::mutex> guard(progress_mutex());
  if (point.event <= point.stream->completed) return;
  for (auto &wait : stream->waits) {
    if (wait.stream != point.stream) continue;
    wait.event = std::max(wait.event, point.event);
    return;
  }
  stream->waits.push_back(point);
}

}  // namespace card
