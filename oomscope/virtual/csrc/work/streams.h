// Streams: how far their events have come, and copies in their order.
//
// Work is done when it is asked for, so a stream has nothing to wait for. What PyTorch can see is when events complete:
// at once, or with an event lag of N after N further polls of their stream (PyTorch's allocator polls each stream once
// for every allocation, as long as an event on it is pending), and at any synchronisation that covers them.
#pragma once
#include <stdint.h>

#include <atomic>
#include <vector>

#include "memory/copies.h"

namespace card {

struct Capture;
struct Node;
struct Stream;

struct Reached {  // all work of a stream up to its n-th event
  Stream *stream;
  uint64_t event;
};

struct Stream {
  static constexpr uint32_t live = 0x73747265;
  uint32_t mark = live;
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  uint64_t id = 0;
  std::atomic<Capture *> capture{nullptr};
  std::vector<Node *> tails;  // of the capture: what the next node depends on

  // Guarded by progress_mutex.
  uint64_t recorded = 0, completed = 0, polls = 0;
  std::vector<Reached> waits;  // on other streams
};

// The stream of a handle, of the default streams too; null: there is none.
Stream *find_stream(void *handle);
Stream *new_stream(unsigned flags, int priority);
int destroy_stream(void *handle);

// What a program may ask of priorities: 0 is the lowest.
constexpr int highest_priority = -5;

// The calls that wait. Each returns an error where waiting is not allowed, while capturing.
int synchronize_stream(Stream *stream);
int synchronize_device();
int query_stream(Stream *stream);

// ---- for events
Reached record_on(Stream *stream, uint64_t *polls);
bool has_completed(Reached point, uint64_t polls_then);
void complete(Reached point);
void wait_for(Stream *stream, Reached point);

// An event: a point in a stream, with the count that stands for its time.
struct Event {
  static constexpr uint32_t live = 0x65766e74;
  static constexpr unsigned no_timing = 2;
  uint32_t mark = live;
  unsigned flags = 0;
  bool is_recorded = false;
  Reached point{nullptr, 0};
  uint64_t polls = 0;        // of the stream, when it was recorded
  uint64_t millisecond = 0;  // of the clock in streams.cpp
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

// When a copy is done: in the order of a stream, as a node where that captures, or at once, while the caller waits.
struct Order {
  void *stream;
  bool waits;
};
constexpr Order waiting{nullptr, true};
inline Order on(void *stream) { return {stream, false}; }

int transfer(Order order, void *to, Strides to_strides, const void *from, Strides from_strides, Block block);
inline int transfer(Order order, void *to, const void *from, size_t bytes) {
  return transfer(order, to, {}, from, {}, {bytes});
}
int fill_on(void *stream, void *to, Strides strides, uint32_t element, size_t element_bytes, Block block);

}  // namespace card
