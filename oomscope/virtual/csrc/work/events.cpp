#include "work/events.h"

#include <atomic>

#include "core/counts.h"
#include "core/process.h"
#include "memory/pools.h"
#include "work/capture.h"

namespace card {
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

}  // namespace card
