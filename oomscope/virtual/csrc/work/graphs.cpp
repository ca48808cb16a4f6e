#include "work/graphs.h"

#include "core/counts.h"
#include "core/process.h"

namespace card {

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
