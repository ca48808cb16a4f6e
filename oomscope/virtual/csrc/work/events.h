// Events: a point in a stream, with the count that stands for its time.
#pragma once
#include <stdint.h>

#include <vector>

#include "work/streams.h"

namespace card {

struct Event {
  static constexpr uint32_t live = 0x65766e74;
  static constexpr unsigned no_timing = 2;
  uint32_t mark = live;
  unsigned flags = 0;
  bool is_recorded = false;
  Reached point{nullptr, 0};
  uint64_t polls = 0;  // of the stream, when it was recorded
  uint64_t millisecond = 0;  // of the clock in events.cpp
  Capture *capture = nullptr;
  std::vector<Node *> tails;  // where it was recorded in a capture
};

Event *new_event(unsigned flags);
Event *find_event(void *handle);
int destroy_event(void *handle);
int record_event(void *event, void *stream);
int query_event(void *event);
int synchronize_event(void *event);
int elapsed_milliseconds(float *milliseconds, void *from, void *to);
int wait_event(void *stream, void *event);

}  // namespace card
