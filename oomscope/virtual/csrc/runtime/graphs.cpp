// The runtime's graphs; streams are captured by calls of the driver (driver/streams.cpp).
#include "work/graphs.h"

#include <string.h>

#include <algorithm>

#include "core/process.h"
#include "runtime/types.h"

using namespace card;

namespace {

constexpr size_t edge_bytes = 8;  // cudaGraphEdgeData

// Copies a list to the caller: without `out` only its length is told.
template <class Get>
void give_list(size_t have, size_t *count, Node **out, Get get) {
  if (out) {
    for (size_t i = 0; i < *count; i++) out[i] = i < have ? get(i) : nullptr;
    *count = std::min(*count, have);
  } else {
    *count = have;
  }
}

}  // namespace

CARD_API int cudaGraphCreate(Graph **graph, unsigned) {
  return runtime_call([&]() -> int { return graph ? tell(graph, new Graph) : CARD_INVALID_VALUE; });
}

CARD_API int cudaGraphDestroy(Graph *graph) {
  return is_forked() ? 0 : runtime_call([&]() -> int {
    if (!graph) return CARD_INVALID_VALUE;
    destroy_graph(graph);
    return 0;
  });
}

CARD_API int cudaGraphInstantiate(GraphExec **exec, Graph *graph, unsigned long long) {
  return runtime_call([&]() -> int { return exec && graph ? tell(exec, instantiate(*graph)) : CARD_INVALID_VALUE; });
}

CARD_API int cudaGraphExecDestroy(GraphExec *exec) {
  return is_forked() ? 0 : runtime_call([&]() -> int {
    if (!exec) return CARD_INVALID_VALUE;
    destroy_exec(exec);
    return 0;
  });
}

CARD_API int cudaGraphLaunch(GraphExec *exec, Stream_t stream) {
  return runtime_call([&] { return launch_graph(exec, stream); });
}

CARD_API int cudaGraphUpload(GraphExec *exec, Stream_t stream) {
  return runtime_call([&]() -> int { return exec && find_stream(stream) ? 0 : CARD_INVALID_VALUE; });
}

CARD_API int cudaGraphGetNodes(Graph *graph, Node **nodes, size_t *count) {
  return runtime_call([&]() -> int {
    if (!graph || !count) return CARD_INVALID_VALUE;
    give_list(graph->nodes.size(), count, nodes, [&](size_t i) { return graph->nodes[i].get(); });
    return 0;
  });
}

CARD_API int cudaGraphGetRootNodes(Graph *graph, Node **nodes, size_t *count) {
  return runtime_call([&]() -> int {
    if (!graph || !count) return CARD_INVALID_VALUE;
    std::vector<Node *> roots;
    for (auto &node : graph->nodes)
      if (node->dependencies.empty()) roots.push_back(node.get());
    give_list(roots.size(), count, nodes, [&](size_t i) { return roots[i]; });
    return 0;
  });
}

CARD_API int cudaGraphNodeGetDependencies(Node *node, Node **dependencies, void *edges, size_t *count) {
  return runtime_call([&]() -> int {
    if (!node || !count) return CARD_INVALID_VALUE;
    if (edges) memset(edges, 0, edge_bytes * *count);
    give_list(node->dependencies.size(), count, dependencies, [&](size_t i) { return node->dependencies[i]; });
    return 0;
  });
}

CARD_API int cudaGraphNodeGetType(Node *node, int *type) {
  return runtime_call([&]() -> int { return node ? tell(type, node->type) : CARD_INVALID_VALUE; });
}

CARD_API int cudaGraphAddEmptyNode(Node **node, Graph *graph, Node *const *dependencies, size_t count) {
  return runtime_call([&]() -> int {
    if (!node || !graph || (count && !dependencies)) return CARD_INVALID_VALUE;
    *node = add_node(graph, NodeType::empty, dependencies, count, nullptr);
    return 0;
  });
}

CARD_API int cudaGraphAddChildGraphNode(Node **node, Graph *graph, Node *const *dependencies, size_t count,
                                        Graph *child) {
  return runtime_call([&]() -> int {
    if (!node || !graph || !child || (count && !dependencies)) return CARD_INVALID_VALUE;
    std::vector<std::function<void()>> replays;
    for (auto &part : child->nodes)
      if (part->replay) replays.push_back(part->replay);
    *node = add_node(graph, NodeType::graph, dependencies, count, [replays] {
      for (auto &replay : replays) replay();
    });
    return 0;
  });
}

// ---- objects that live as long as the graphs that use them

CARD_API int cudaUserObjectCreate(UserObject **object, void *value, void (*destroy)(void *), unsigned references,
                                  unsigned) {
  return runtime_call([&]() -> int {
    if (!object || !destroy || !references) return CARD_INVALID_VALUE;
    *object = new_user_object(value, destroy, references);
    return 0;
  });
}

CARD_API int cudaUserObjectRetain(UserObject *object, unsigned count) {
  return runtime_call([&]() -> int {
    if (!object || !count) return CARD_INVALID_VALUE;
    object->references += count;
    return 0;
  });
}

CARD_API int cudaUserObjectRelease(UserObject *object, unsigned count) {
  return runtime_call([&]() -> int {
    if (!object || !count) return CARD_INVALID_VALUE;
    release_user_object(object, count);
    return 0;
  });
}

CARD_API int cudaGraphRetainUserObject(Graph *graph, UserObject *object, unsigned count, unsigned flags) {
  return runtime_call([&]() -> int {
    constexpr unsigned take_over = 1;
    if (!graph || !object || !count) return CARD_INVALID_VALUE;
    keep_user_object(graph, object, count, flags == take_over);
    return 0;
  });
}
