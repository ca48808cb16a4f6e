// NCCL: communicators, and calls in the order of their stream.
//
// Buffers that a real NCCL allocates for itself follow its tuning and the links between cards; they are named unknown.
#include "nccl/communicator.h"

#include <string.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/counts.h"
#include "core/process.h"
#include "libraries/library.h"
#include "nccl/exchange.h"
#include "nccl/reduction.h"
#include "work/graphs.h"
#include "work/streams.h"

using namespace nccl;

namespace {

struct unique_id {
  char bytes[128];  // a text that new_id made
};

// Without an id all ranks are of this process.
int create(Communicator **out, int size, int rank, const unique_id *id) {
  if (size < 1 || rank < 0 || rank >= size) return invalid_argument;
  if (card_enter()) return cuda_error;
  if (size > 1) card_unknown_workspace("NCCL's own buffers");
  std::string text = id ? std::string(id->bytes, strnlen(id->bytes, sizeof id->bytes)) : "";
  *out = new Communicator{rank, size, card_current_device(), id ? open_exchange(text, rank, size) : nullptr};
  return success;
}

int refuse(const char *name) {
  card_unsupported(name);
  return invalid_usage;
}

struct Queued {
  Call call;
  const Communicator *communicator;
  card::Stream *stream;
};
thread_local int open_groups = 0;
thread_local std::vector<Queued> *queued = nullptr;  // calls of the open group that have one source each

// A graph carries nothing between processes: what its collectives write is unknown.
int answer_alone(const Call &call, const Communicator &c) {
  card::add(card::counts.launches, 1);
  if (!c.exchange) return answer_alike(call, c);
  forget_result(call, c);
  return success;
}

// One kernel on the stream for each call: done now, or a node of the graph that captures it. What the calls give is sent
// before the first of them waits for another rank.
int launch(const std::vector<Queued> &calls) {
  std::vector<std::pair<const Queued *, Record>> sent;
  int failed = success;
  for (auto &each : calls) {
    auto alone = [call = each.call, c = *each.communicator] { return answer_alone(call, c); };
    if (card::add_captured(each.stream, card::NodeType::kernel, alone)) continue;
    if (each.communicator->exchange) {
      card::add(card::counts.launches, 1);
      sent.emplace_back(&each, each.communicator->exchange->send(each.call, *each.communicator));
    } else if (int status = alone()) {
      failed = status;
    }
  }
  for (auto &[each, own] : sent)
    if (!failed) failed = each->communicator->exchange->receive(each->call, *each->communicator, own);
  return failed;
}

int run(const Call &call, const Communicator *c, void *stream_handle) {
  card::Stream *stream = card::find_stream(stream_handle);
  if (!bytes_of_type(call.type) || call.root < 0 || call.root >= c->size || !stream) return invalid_argument;
  bool has_one_source = call.kind == Kind::send || call.kind == Kind::receive || call.kind == Kind::broadcast;
  if (!open_groups || !has_one_source) return launch({{call, c, stream}});
  if (!queued) queued = new std::vector<Queued>;
  queued->push_back({call, c, stream});
  return success;
}

// Whether a call gives data of this rank to the rank itself: a send to itself, or its own broadcast.
bool is_own(const Queued &each) { return each.call.kind != Kind::receive && each.call.root == each.communicator->rank; }

// How many calls before this one in its group have the same kind, communicator and other rank.
int number_of(const std::vector<Queued> &group, size_t index) {
  const Queued &each = group[index];
  return static_cast<int>(std::count_if(group.begin(), group.begin() + static_cast<ptrdiff_t>(index), [&](auto &other) {
    return other.call.kind == each.call.kind && other.communicator == each.communicator &&
           other.call.root == each.call.root;
  }));
}

// What this rank gives itself where it takes the index-th of a group from another one: torch gathers by a broadcast from
// each rank, and exchanges all to all by sends and receives. Null: nothing of that size.
const void *own_source(const std::vector<Queued> &group, size_t index) {
  const Queued &taken = group[index];
  Kind given = taken.call.kind == Kind::receive ? Kind::send : Kind::broadcast;
  int n = number_of(group, index);
  for (auto &each : group) {
    bool is_like = each.call.kind == given && each.communicator == taken.communicator && is_own(each);
    if (is_like && n-- == 0) return each.call.bytes() == taken.call.bytes() ? each.call.from : nullptr;
  }
  return nullptr;
}

int launch_group() {
  if (!queued) return success;
  auto given = std::move(*queued), group = given;
  queued->clear();
  for (size_t i = 0; i < group.size(); i++)
    if (!is_own(given[i]) && given[i].call.kind != Kind::send)
      if (const void *source = own_source(given, i)) group[i].call.from = source;
  return launch(group);
}

}  // namespace

CARD_API int ncclGetUniqueId(unique_id *id) {
  memset(id, 0, sizeof *id);
  new_id().copy(id->bytes, sizeof *id);
  return success;
}
CARD_API int ncclCommGetUniqueId(Communicator *, unique_id *id) { return ncclGetUniqueId(id); }
CARD_API const char *ncclGetErrorString(int status) {
  if (status == remote_error) return "another rank of the communicator is gone";
  return status ? "the virtual card does not support this call of NCCL" : "no error";
}
CARD_API const char *ncclGetLastError(Communicator *) { return last_failure(); }

CARD_API int ncclCommInitRank(Communicator **out, int size, unique_id id, int rank) {
  return create(out, size, rank, &id);
}
CARD_API int ncclCommInitRankConfig(Communicator **out, int size, unique_id id, int rank, void *) {
  return create(out, size, rank, &id);
}
CARD_API int ncclCommInitRankScalable(Communicator **out, int size, int rank, int, unique_id *ids, void *) {
  return create(out, size, rank, ids);
}
CARD_API int ncclCommInitAll(Communicator **out, int size, const int *devices) {
  for (int rank = 0; rank < size; rank++) {
    int status = create(out + rank, size, rank, nullptr);
    if (status) return status;
    out[rank]->device = devices ? devices[rank] : rank;
  }
  return success;
}
// In a world of one process nobody else calls with a colour, so how many ranks join is not known.
CARD_API int ncclCommSplit(Communicator *c, int colour, int key, Communicator **out, void *) {
  *out = nullptr;
  if (c->exchange) return c->exchange->split(colour, key, out);
  if (colour < 0) return success;
  return c->size == 1 ? create(out, 1, 0, nullptr) : refuse("ncclCommSplit");
}
CARD_API int ncclCommShrink(Communicator *c, int *excluded, int count, Communicator **out, void *, int) {
  if (c->exchange) return refuse("ncclCommShrink");
  int rank = c->rank;
  for (int i = 0; i < count; i++) rank -= excluded[i] < c->rank;
  return create(out, c->size - count, rank, nullptr);
}
CARD_API int ncclCommGrow(Communicator *c, int size, const unique_id *, int rank, Communicator **out, void *) {
  if (card::settings().has_peers) return refuse("ncclCommGrow");
  return create(out, size, c ? c->rank : rank, nullptr);
}
CARD_API int ncclCommDestroy(Communicator *c) {
  delete c;
  return success;
}
// Another thread may be waiting in a call, so the object stays.
CARD_API int ncclCommAbort(Communicator *c) {
  if (c->exchange) c->exchange->abandon();
  return success;
}
CARD_API int ncclCommCount(const Communicator *c, int *size) {
  *size = c->size;
  return success;
}
CARD_API int ncclCommUserRank(const Communicator *c, int *rank) {
  *rank = c->rank;
  return success;
}
CARD_API int ncclCommCuDevice(const Communicator *c, int *device) {
  *device = c->device;
  return success;
}
CARD_API int ncclGroupStart(void) {
  open_groups++;
  return success;
}
CARD_API int ncclGroupEnd(void) {
  if (!open_groups) return invalid_usage;
  return --open_groups ? success : launch_group();
}

CARD_API int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, Communicator *c,
                           void *stream) {
  return run({Kind::all_reduce, from, to, count, type, operation, 0}, c, stream);
}
CARD_API int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root, Communicator *c,
                        void *stream) {
  return run({Kind::reduce, from, to, count, type, operation, root}, c, stream);
}
CARD_API int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, Communicator *c,
                               void *stream) {
  return run({Kind::reduce_scatter, from, to, count, type, operation, 0}, c, stream);
}
CARD_API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *c,
                           void *stream) {
  return run({Kind::broadcast, root == c->rank ? from : to, to, count, type, sum, root}, c, stream);
}
CARD_API int ncclBcast(void *buffer, size_t count, int type, int root, Communicator *c, void *stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, c, stream);
}
CARD_API int ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *c, void *stream) {
  return run({Kind::all_gather, from, to, count, type, sum, 0}, c, stream);
}
CARD_API int ncclGather(const void *from, void *to, size_t count, int type, int root, Communicator *c, void *stream) {
  return run({Kind::gather, from, to, count, type, sum, root}, c, stream);
}
CARD_API int ncclScatter(const void *from, void *to, size_t count, int type, int root, Communicator *c, void *stream) {
  return run({Kind::scatter, from, to, count, type, sum, root}, c, stream);
}
CARD_API int ncclAlltoAll(const void *from, void *to, size_t count, int type, Communicator *c, void *stream) {
  return run({Kind::all_to_all, from, to, count, type, sum, 0}, c, stream);
}
CARD_API int ncclSend(const void *from, size_t count, int type, int peer, Communicator *c, void *stream) {
  return run({Kind::send, from, nullptr, count, type, sum, peer}, c, stream);
}
CARD_API int ncclRecv(void *to, size_t count, int type, int peer, Communicator *c, void *stream) {
  return run({Kind::receive, nullptr, to, count, type, sum, peer}, c, stream);
}
