#include "work/graphs.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_set>

#include "core/counts.h"
#include "core/process.h"

namespace card {
namespace {

std::mutex &capture_mutex() {
  static std::mutex &mutex = *new std::mutex;
  return mutex;
}
using CaptureLock = std::lock_guard<std::mutex>;

uint64_t last_id = 0;
std::atomic<int> active{0};

void add_missing(std::vector<Node *> &to, const std::vector<Node *> &from) {
  for (Node *node : from)
    if (std::find(to.begin(), to.end(), node) == to.end()) to.push_back(node);
}

// Whether everything that other streams captured comes before the end of the origin.
bool is_joined(const Capture &capture) {
  std::unordered_set<Node *> before(capture.origin->tails.begin(), capture.origin->tails.end());
  std::vector<Node *> open(before.begin(), before.end());
  while (!open.empty()) {
    Node *node = open.back();
    open.pop_back();
    for (Node *dependency : node->dependencies)
      if (before.insert(dependency).second) open.push_back(dependency);
  }
  for (Stream *stream : capture.streams)
    for (Node *tail : stream->tails)
      if (!before.count(tail)) return false;
  return true;
}

}  // namespace

int begin_capture(Stream *stream, int mode, Graph *into, const std::vector<Node *> &dependencies) {
  if (!stream) return CARD_INVALID_HANDLE;
  if (mode < 0 || mode > 2) return CARD_INVALID_VALUE;
  if (find_stream(nullptr) == stream) return capture_unsupported;
  CaptureLock lock(capture_mutex());
  if (stream->capture) return illegal_state;
  auto *capture = new Capture;
  capture->id = ++last_id;
  capture->owns_graph = !into;
  capture->graph = into ? into : new Graph;
  capture->origin = stream;
  capture->streams = {stream};
  stream->tails = dependencies;
  stream->capture = capture;
  active++;
  return 0;
}

int end_capture(Stream *stream, Graph **graph) {
  if (graph) *graph = nullptr;
  if (!stream || !graph) return stream ? CARD_INVALID_VALUE : CARD_INVALID_HANDLE;
  CaptureLock lock(capture_mutex());
  Capture *capture = stream->capture;
  if (!capture) return illegal_state;
  if (capture->origin != stream) return capture_unmatched;
  int status = capture->is_spoiled ? capture_invalidated : is_joined(*capture) ? 0 : capture_unjoined;
  for (Stream *part : capture->streams) {
    part->capture = nullptr;
    part->tails.clear();
  }
  capture->streams.clear();
  capture->is_ended = true;
  active--;
  if (!status) {
    *graph = capture->graph;
  } else if (capture->owns_graph) {
    delete capture->graph;
  }
  capture->graph = nullptr;
  return status;
}

CaptureInfo capture_info(Stream *stream) {
  CaptureInfo info;
  if (!stream->capture) return info;
  CaptureLock lock(capture_mutex());
  Capture *capture = stream->capture;
  if (!capture) return info;
  info.status = capture->is_spoiled ? 2 : 1;
  info.id = capture->id;
  info.graph = capture->graph;
  info.dependencies = stream->tails.data();
  info.dependency_count = stream->tails.size();
  return info;
}

int set_capture_dependencies(Stream *stream, Node *const *nodes, size_t count, bool replace) {
  if (!stream) return CARD_INVALID_HANDLE;
  if (count && !nodes) return CARD_INVALID_VALUE;
  CaptureLock lock(capture_mutex());
  if (!stream->capture) return illegal_state;
  std::vector<Node *> given(nodes, nodes + count);
  if (replace) stream->tails.clear();
  add_missing(stream->tails, given);
  return 0;
}

bool is_any_capture_active() { return active.load() != 0; }

int spoil_capture(Stream *stream) {
  CaptureLock lock(capture_mutex());
  if (Capture *capture = stream->capture) capture->is_spoiled = true;
  return capture_unsupported;
}

std::vector<Node *> capture_tails(Stream *stream) {
  CaptureLock lock(capture_mutex());
  return stream->tails;
}

int join_capture(Stream *stream, Capture *capture, const std::vector<Node *> &tails) {
  CaptureLock lock(capture_mutex());
  if (capture->is_ended) return stream->capture ? capture_isolation : 0;
  if (stream->capture && stream->capture != capture) return capture_merge;
  if (!stream->capture) {
    stream->capture = capture;
    stream->tails.clear();
    capture->streams.push_back(stream);
  }
  add_missing(stream->tails, tails);
  return 0;
}

bool add_captured(Stream *stream, NodeType type, std::function<void()> replay) {
  if (!stream || !stream->capture.load(std::memory_order_acquire)) return false;
  CaptureLock lock(capture_mutex());
  Capture *capture = stream->capture;
  if (!capture) return false;
  auto node = std::make_unique<Node>();
  node->type = type;
  node->dependencies = std::move(stream->tails);
  node->replay = std::move(replay);
  stream->tails = {node.get()};
  capture->graph->nodes.push_back(std::move(node));
  return true;
}

Node *add_node(Graph *graph, NodeType type, Node *const *dependencies, size_t count, std::function<void()> replay) {
  auto node = std::make_unique<Node>();
  node->type = type;
  node->dependencies.assign(dependencies, dependencies + count);
  node->replay = std::move(replay);
  graph->nodes.push_back(std::move(node));
  return graph->nodes.back().get();
}

GraphExec *instantiate(const Graph &graph) {
  auto *exec = new GraphExec;
  for (auto &node : graph.nodes)
    if (node->replay) exec->replays.push_back(node->replay);
  exec->objects = graph.objects;
  for (auto &[object, count] : exec->objects) object->references += count;
  return exec;
}

int launch_graph(GraphExec *exec, void *stream_handle) {
  Stream *stream = find_stream(stream_handle);
  if (!exec || !stream) return exec ? CARD_INVALID_HANDLE : CARD_INVALID_VALUE;
  add(counts.launches, 1);
  auto replays = exec->replays;
  auto run = [replays] {
    for (auto &replay : replays) replay();
  };
  if (!add_captured(stream, NodeType::graph, run)) run();
  return 0;
}

void destroy_graph(Graph *graph) {
  auto objects = std::move(graph->objects);
  delete graph;
  for (auto &[object, count] : objects) release_user_object(object, count);
}

void destroy_exec(GraphExec *exec) {
  auto objects = std::move(exec->objects);
  delete exec;
  for (auto &[object, count] : objects) release_user_object(object, count);
}

UserObject *new_user_object(void *value, void (*destroy)(void *), unsigned references) {
  return new UserObject{value, destroy, references};
}

void release_user_object(UserObject *object, unsigned count) {
  if (object->references > count) {
    object->references -= count;
    return;
  }
  if (object->destroy) object->destroy(object->value);
  delete object;
}

void keep_user_object(Graph *graph, UserObject *object, unsigned count, bool take_over) {
  if (!take_over) object->references += count;
  graph->objects.emplace_back(object, count);
}

}  // namespace card
