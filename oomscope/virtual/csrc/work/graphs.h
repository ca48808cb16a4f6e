// Graphs: streams are captured into them, what is asked of a capturing stream becomes a node and is done when the graph
// is launched.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <memory>
#include <vector>

#include "work/streams.h"

namespace card {

enum class NodeType { kernel = 0, copy = 1, fill = 2, host = 3, graph = 4, empty = 5 };

struct Node {
  NodeType type = NodeType::empty;
  std::vector<Node *> dependencies;
  std::function<void()> replay;
};

struct UserObject {
  void *value;
  void (*destroy)(void *);
  unsigned references;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;  // in an order that heeds their dependencies
  std::vector<std::pair<UserObject *, unsigned>> objects;
};

struct Capture {  // stays after its end: events may point at it
  uint64_t id = 0;
  bool is_ended = false, is_spoiled = false, owns_graph = true;
  Graph *graph = nullptr;
  Stream *origin = nullptr;
  std::vector<Stream *> streams;
};

// Errors of captures, the same numbers in the driver and the runtime.
constexpr int capture_unsupported = 900, capture_invalidated = 901, capture_merge = 902, capture_unmatched = 903,
              capture_unjoined = 904, capture_isolation = 905, capture_event = 907,
              illegal_state = 401;

int begin_capture(Stream *stream, int mode, Graph *into, const std::vector<Node *> &dependencies);
int end_capture(Stream *stream, Graph **graph);

struct CaptureInfo {
  int status = 0;  // 0 none, 1 active, 2 invalidated
  uint64_t id = 0;
  Graph *graph = nullptr;
  Node *const *dependencies = nullptr;  // valid until the stream's next call
  size_t dependency_count = 0;
};
CaptureInfo capture_info(Stream *stream);
int set_capture_dependencies(Stream *stream, Node *const *nodes, size_t count, bool replace);

bool is_any_capture_active();
// A call that a capturing stream does not allow: its capture becomes invalid. Returns the error.
int spoil_capture(Stream *stream);

std::vector<Node *> capture_tails(Stream *stream);
int join_capture(Stream *stream, Capture *capture, const std::vector<Node *> &tails);

// Adds a node at the stream's end if it is being captured; false: it is not, and the work is to be done now.
bool add_captured(Stream *stream, NodeType type, std::function<void()> replay);

struct GraphExec {
  std::vector<std::function<void()>> replays;
  std::vector<std::pair<UserObject *, unsigned>> objects;
};

Node *add_node(Graph *graph, NodeType type, Node *const *dependencies, size_t count, std::function<void()> replay);
GraphExec *instantiate(const Graph &graph);
int launch_graph(GraphExec *exec, void *stream);
void destroy_graph(Graph *graph);
void destroy_exec(GraphExec *exec);

UserObject *new_user_object(void *value, void (*destroy)(void *), unsigned references);
void release_user_object(UserObject *object, unsigned count);
void keep_user_object(Graph *graph, UserObject *object, unsigned count, bool take_over);

}  // namespace card
