// Graphs that were captured: made launchable, launched, taken apart.
#pragma once
#include <stddef.h>

#include <functional>
#include <vector>

#include "work/capture.h"

namespace card {

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
