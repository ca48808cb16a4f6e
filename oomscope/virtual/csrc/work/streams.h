// Streams, and how far their events have come.
//
// Work is done when it is asked for, so a stream has nothing to wait for. What PyTorch can see is when events complete:
// at once, or with an event lag of N after N further polls of their stream (PyTorch's allocator polls each stream once
// for every allocation, as long as an event on it is pending), and at any synchronisation that covers them.
#pragma once
#include <stdint.h>

#include <atomic>
#include <vector>

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

}  // namespace card
