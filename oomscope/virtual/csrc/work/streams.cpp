#include "work/streams.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "core/counts.h"
#include "core/process.h"
#include "core/stack.h"
#include "memory/memory.h"
#include "work/graphs.h"

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

constexpr uintptr_t per_thread_handle = 2;  // cudaStreamPerThread; 0 and 1 (cudaStreamLegacy) are default streams too

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

namespace {

// Work takes no time on the card. A count stands in for a clock, so that what is chosen by time (Triton's autotuning)
// is the same in every run: each launch and each recorded event lasts a millisecond.
uint64_t next_millisecond() {
  static std::atomic<uint64_t> recorded{0};
  return ++recorded + counts.launches.load(std::memory_order_relaxed);
}

}  // namespace

Event *new_event(unsigned flags) {
  auto *event = new Event;
  event->flags = flags;
  return event;
}

Event *find_event(void *handle) {
  auto *event = static_cast<Event *>(handle);
  return event && event->mark == Event::live ? event : nullptr;
}

int destroy_event(void *handle) {
  Event *event = find_event(handle);
  if (!event) return CARD_INVALID_HANDLE;
  event->mark = 0;
  delete event;
  return 0;
}

int record_event(void *handle, void *stream_handle) {
  Event *event = find_event(handle);
  Stream *stream = find_stream(stream_handle);
  if (!event || !stream) return CARD_INVALID_HANDLE;
  event->capture = stream->capture;
  if (event->capture) {
    event->tails = capture_tails(stream);
    return 0;
  }
  event->millisecond = next_millisecond();
  event->point = record_on(stream, &event->polls);
  event->is_recorded = true;
  return 0;
}

int query_event(void *handle) {
  Event *event = find_event(handle);
  if (!event) return CARD_INVALID_HANDLE;
  if (event->capture) return capture_event;
  return has_completed(event->point, event->polls) ? 0 : CARD_NOT_READY;
}

int synchronize_event(void *handle) {
  Event *event = find_event(handle);
  if (!event) return CARD_INVALID_HANDLE;
  if (event->capture) return capture_event;
  complete(event->point);
  if (event->point.stream) trim_pools(event->point.stream->device);
  return 0;
}

int elapsed_milliseconds(float *milliseconds, void *from, void *to) {
  Event *start = find_event(from), *end = find_event(to);
  if (!milliseconds) return CARD_INVALID_VALUE;
  *milliseconds = 0;
  if (!start || !end || !start->is_recorded || !end->is_recorded) return CARD_INVALID_HANDLE;
  if ((start->flags | end->flags) & Event::no_timing) return CARD_INVALID_HANDLE;
  for (Event *event : {start, end})
    if (!has_completed(event->point, event->polls)) return CARD_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<int64_t>(end->millisecond - start->millisecond));
  return 0;
}

int wait_event(void *stream_handle, void *handle) {
  Event *event = find_event(handle);
  Stream *stream = find_stream(stream_handle);
  if (!event || !stream) return CARD_INVALID_HANDLE;
  if (event->capture) return join_capture(stream, event->capture, event->tails);
  if (stream->capture) return event->is_recorded ? capture_isolation : 0;
  wait_for(stream, event->point);
  return 0;
}

int transfer(Order order, void *to, Strides to_strides, const void *from, Strides from_strides, Block block) {
  Stream *stream = find_stream(order.stream);
  if (!stream) return CARD_INVALID_HANDLE;
  if (!order.waits && stream->capture.load(std::memory_order_relaxed)) {
    auto replay = [=] { copy_block(to, to_strides, from, from_strides, block); };
    if (add_captured(stream, NodeType::copy, replay)) return 0;
  }
  leave_stack_dirty();
  int status = copy_block(to, to_strides, from, from_strides, block);
  return status || !order.waits ? status : synchronize_stream(stream);
}

int fill_on(void *stream_handle, void *to, Strides strides, uint32_t element, size_t element_bytes, Block block) {
  Stream *stream = find_stream(stream_handle);
  if (!stream) return CARD_INVALID_HANDLE;
  if (stream->capture.load(std::memory_order_relaxed)) {
    auto replay = [=] { fill_block(to, strides, element, element_bytes, block); };
    if (add_captured(stream, NodeType::fill, replay)) return 0;
  }
  return fill_block(to, strides, element, element_bytes, block);
}

}  // namespace card

int card_copy(void *to, const void *from, size_t bytes, void *stream) {
  return card::transfer(card::on(stream), to, from, bytes);
}

int card_fill(void *to, int byte, size_t bytes, void *stream) {
  return card::fill_on(stream, to, {}, static_cast<uint32_t>(byte & 0xff), 1, {bytes});
}

int card_check_stream(void *stream) {
  return card::driver_call([&]() -> int { return card::find_stream(stream) ? 0 : CARD_INVALID_HANDLE; });
}
