// cuDNN's graph interface: descriptors give back what was set, every graph has one engine.
//
// Of a graph's plan only the workspace matters here, and cuDNN does not publish it: 0 bytes, noted by the kind of the
// operation, but for attention on Hopper, where it was measured. What cudnn-frontend adds by itself (attention's
// backward) it computes on the host, as on a real card.
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "core/settings.h"
#include "cudnn/cudnn.h"

namespace {

// Attribute types whose elements are not 4 bytes long.
enum { HANDLE = 0, BOOLEAN = 2, INT64 = 3, DOUBLE = 5, VOID_POINTER = 6, DESCRIPTOR = 15, INT32 = 23, CHAR = 24, FRACTION = 26 };
// Attributes that are answered rather than remembered.
enum {
  HEURISTIC_GRAPH = 201,
  HEURISTIC_RESULTS = 202,
  CONFIG_ENGINE = 300,
  CONFIG_INTERMEDIATES = 301,
  CONFIG_KNOBS = 302,
  CONFIG_WORKSPACE = 303,
  CONFIG_SHARED_MEMORY = 304,
  PLAN_CONFIG = 401,
  PLAN_WORKSPACE = 402,
  PLAN_COMPUTED_INTERMEDIATES = 403,
  PLAN_RUN_ONLY_INTERMEDIATES = 404,
  PLAN_JSON = 405,
  GRAPH_OPERATIONS = 801,
  GRAPH_ENGINES = 802,
  TENSOR_TYPE = 901,
  TENSOR_DIMENSIONS = 902,
  TENSOR_IS_VIRTUAL = 906,
  PACK_POINTERS = 1001,
  PACK_WORKSPACE = 1003,
  ENGINE_GRAPH = 1300,
  ENGINE_INDEX = 1301,
  ENGINE_KNOBS = 1302,
  ENGINE_NUMERICAL_NOTES = 1303,
  ENGINE_LAYOUTS = 1304,
  ENGINE_BEHAVIOUR_NOTES = 1305,
  MATMUL_LEFT = 1520,
  REDUCTION_INPUT = 1610,
  REDUCTION_OUTPUT = 1611
};
enum { ENGINE = 2, CONFIG = 3, HEURISTIC = 4 };  // kinds of descriptors that are made here

struct Content;
struct Attribute {
  std::vector<char> bytes;                          // of plain values
  std::vector<std::shared_ptr<Content>> contents;  // of descriptors, as they were when they were set
};
struct Content {
  int kind = 0;
  std::map<int, Attribute> attributes;
};
struct Descriptor {
  std::shared_ptr<Content> content;
};

size_t element_bytes(int type) {
  switch (type) {
    case HANDLE: case INT64: case DOUBLE: case VOID_POINTER: case DESCRIPTOR: return 8;
    case BOOLEAN: case CHAR: return 1;
    case FRACTION: return 16;
    default: return 4;
  }
}

const Attribute* find(const Content& content, int name) {
  auto at = content.attributes.find(name);
  return at == content.attributes.end() ? nullptr : &at->second;
}
const Content* only(const Content* content, int name) {
  const Attribute* attribute = content ? find(*content, name) : nullptr;
  return attribute && !attribute->contents.empty() ? attribute->contents[0].get() : nullptr;
}

// Kinds of operations; the names below have more.
enum { CONVOLUTION = 10, MATMUL = 19, REDUCTION = 22, ATTENTION = 41, ATTENTION_BACKWARD = 43, SOFTMAX = 45 };

const Attribute* operations(const Content* config) {
  const Content* graph = only(only(config, CONFIG_ENGINE), ENGINE_GRAPH);
  return graph ? find(*graph, GRAPH_OPERATIONS) : nullptr;
}

// The operation that decides about the workspace, for the note.
const char* name_of(const Attribute* operations) {
  static const struct {
    int kind;
    const char* name;
  } known[] = {{CONVOLUTION, "cudnn convolution forward"}, {11, "cudnn convolution backward filter"},
               {12, "cudnn convolution backward data"},    {ATTENTION, "cudnn attention forward"},
               {29, "cudnn norm forward"},                 {ATTENTION_BACKWARD, "cudnn attention backward"},
               {30, "cudnn norm backward"},                {25, "cudnn resample forward"},
               {26, "cudnn resample backward"},            {MATMUL, "cudnn matmul"}};
  for (const auto& one : known)
    if (operations)
      for (const auto& each : operations->contents)
        if (each->kind == one.kind) return one.name;
  return "cudnn graph";
}

bool is_half(const Content* tensor) {
  enum { HALF = 2, BFLOAT16 = 9 };
  const Attribute* set = tensor ? find(*tensor, TENSOR_TYPE) : nullptr;
  int type = -1;
  if (set && set->bytes.size() == sizeof type) std::memcpy(&type, set->bytes.data(), sizeof type);
  return type == HALF || type == BFLOAT16;
}
bool is_virtual(const Content* tensor) {  // inside the graph, so that the engine finds a place for it
  const Attribute* set = tensor ? find(*tensor, TENSOR_IS_VIRTUAL) : nullptr;
  return set && !set->bytes.empty() && set->bytes[0];
}
std::vector<int64_t> dimensions(const Content* tensor) {
  const Attribute* set = tensor ? find(*tensor, TENSOR_DIMENSIONS) : nullptr;
  std::vector<int64_t> sizes(set ? set->bytes.size() / sizeof(int64_t) : 0);
  if (!sizes.empty()) std::memcpy(sizes.data(), set->bytes.data(), sizes.size() * sizeof(int64_t));
  return sizes;
}

// Bytes of what a reduction over the heads of a group reads: the gradient of keys or values [b, h, s, d] for each head
// of the queries. 0 for any other operation; -1 for another reduction over heads (of a bias, of ragged tensors).
int64_t gradient_bytes_by_head(const Content& operation) {
  if (operation.kind != REDUCTION) return 0;
  const Content* input = only(&operation, REDUCTION_INPUT);
  auto from = dimensions(input), to = dimensions(only(&operation, REDUCTION_OUTPUT));
  if (from.size() != 4 || to.size() != 4 || from[1] == to[1]) return 0;
  bool is_of_group = from[0] == to[0] && from[2] == to[2] && from[3] == to[3] && is_half(input) && is_virtual(input);
  return is_of_group ? 2 * from[0] * from[1] * from[2] * from[3] : -1;
}

// Bytes of the engine's own workspace. Attention in 16 bits takes 256 on Hopper, forward and backward, whatever the
// shape, and the backward the gradients above where keys have fewer heads than queries: cuDNN 9.19.0 on an H100 under
// torch 2.11.0 (docs/accuracy.md). cudnn-frontend builds the forward of one operation or of two products of matrices around a
// softmax (one operation since cuDNN 9.21, its reductions before), the backward of five.
int64_t workspace_of(const Content* config) {
  const Attribute* all = operations(config);
  int products = 0, softmaxes = 0, attentions = 0, backwards = 0;
  for (size_t at = 0; all && at < all->contents.size(); at++) {
    products += all->contents[at]->kind == MATMUL;
    softmaxes += all->contents[at]->kind == REDUCTION || all->contents[at]->kind == SOFTMAX;
    attentions += all->contents[at]->kind == ATTENTION;
    backwards += all->contents[at]->kind == ATTENTION_BACKWARD;
  }
  bool is_backward = backwards || products >= 5;
  bool is_forward = attentions || (products >= 2 && softmaxes && !is_backward);
  bool is_hopper = card::settings().description.major == 9;
  if (!is_hopper || !(is_forward || is_backward)) {
    const char* attention = is_backward ? "cudnn attention backward" : "cudnn attention forward";
    card_unknown_workspace(is_forward || is_backward ? attention : name_of(all));
    return 0;
  }
  int64_t bytes = 256;
  bool is_measured = true;
  for (const auto& operation : all->contents) {
    int64_t more = is_backward ? gradient_bytes_by_head(*operation) : 0;
    bytes += more > 0 ? more : 0;
    is_measured &= more >= 0 && (operation->kind != MATMUL || is_half(only(operation.get(), MATMUL_LEFT)) ||
                                 is_virtual(only(operation.get(), MATMUL_LEFT)));
  }
  if (!is_measured) card_unknown_workspace(is_backward ? "cudnn attention backward" : "cudnn attention forward");
  return bytes;
}

std::shared_ptr<Content> engine_config(const std::shared_ptr<Content>& graph) {
  auto engine = std::make_shared<Content>();
  engine->kind = ENGINE;
  engine->attributes[ENGINE_GRAPH].contents = {graph};
  auto config = std::make_shared<Content>();
  config->kind = CONFIG;
  config->attributes[CONFIG_ENGINE].contents = {engine};
  return config;
}

// Answers the attributes that nobody sets. Returns false where the descriptor has no such attribute.
bool answer(const Content& content, int name, Attribute& out) {
  auto number = [&out](auto value) {
    out.bytes.resize(sizeof value);
    std::memcpy(out.bytes.data(), &value, sizeof value);
    return true;
  };
  switch (name) {
    case HEURISTIC_RESULTS: {
      const Attribute* graph = find(content, HEURISTIC_GRAPH);
      if (!graph || graph->contents.empty()) return false;
      out.contents = {engine_config(graph->contents[0])};
      return true;
    }
    case CONFIG_WORKSPACE:
      return number(workspace_of(&content));
    case PLAN_WORKSPACE:
      return number(workspace_of(only(&content, PLAN_CONFIG)));
    case CONFIG_SHARED_MEMORY: return number(int32_t{0});
    case GRAPH_ENGINES: return number(int64_t{1});
    case ENGINE_INDEX: return number(int64_t{0});
    case PLAN_JSON:
      out.bytes = {'{', '}'};
      return true;
    case CONFIG_INTERMEDIATES: case CONFIG_KNOBS: case PLAN_COMPUTED_INTERMEDIATES: case PLAN_RUN_ONLY_INTERMEDIATES:
    case ENGINE_KNOBS: case ENGINE_NUMERICAL_NOTES: case ENGINE_LAYOUTS: case ENGINE_BEHAVIOUR_NOTES:
      return true;  // lists without elements
    default: return false;
  }
}

}  // namespace

CARD_API int cudnnBackendCreateDescriptor(int kind, Descriptor** out) {
  *out = new (std::nothrow) Descriptor;
  if (!*out) return CUDNN_ALLOC_FAILED;
  (*out)->content = std::make_shared<Content>();
  (*out)->content->kind = kind;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnBackendInitialize(Descriptor* descriptor) {
  int kind = descriptor->content->kind;
  descriptor->content = std::make_shared<Content>();
  descriptor->content->kind = kind;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnBackendDestroyDescriptor(Descriptor* descriptor) {
  delete descriptor;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnBackendFinalize(Descriptor* descriptor) { return descriptor ? CUDNN_SUCCESS : CUDNN_BAD_PARAM; }

CARD_API int cudnnBackendSetAttribute(Descriptor* descriptor, int name, int type, int64_t count, const void* elements) {
  if (!descriptor || count < 0 || (count && !elements)) return CUDNN_BAD_PARAM;
  Attribute set;
  if (type == DESCRIPTOR) {
    auto others = static_cast<Descriptor* const*>(elements);
    for (int64_t i = 0; i < count; i++) {
      if (!others[i]) return CUDNN_BAD_PARAM;
      set.contents.push_back(others[i]->content);
    }
  } else {
    auto bytes = static_cast<const char*>(elements);
    set.bytes.assign(bytes, bytes + static_cast<size_t>(count) * element_bytes(type));
  }
  descriptor->content->attributes[name] = std::move(set);
  return CUDNN_SUCCESS;
}

CARD_API int cudnnBackendGetAttribute(const Descriptor* descriptor, int name, int type, int64_t wanted, int64_t* count,
                                      void* elements) {
  if (!descriptor) return CUDNN_BAD_PARAM;
  Attribute answered;
  const Attribute* attribute = find(*descriptor->content, name);
  if (!attribute) {
    if (!answer(*descriptor->content, name, answered)) {
      if (count) *count = 0;
      return CUDNN_BAD_PARAM;
    }
    attribute = &answered;
  }
  int64_t has = static_cast<int64_t>(type == DESCRIPTOR ? attribute->contents.size()
                                                        : attribute->bytes.size() / element_bytes(type));
  if (count) *count = has;
  if (!elements) return CUDNN_SUCCESS;
  int64_t given = wanted < has ? wanted : has;
  if (type == DESCRIPTOR) {  // the caller made the descriptors; they become those that are asked for
    auto others = static_cast<Descriptor**>(elements);
    for (int64_t i = 0; i < given; i++) others[i]->content = attribute->contents[static_cast<size_t>(i)];
  } else {
    std::memcpy(elements, attribute->bytes.data(), static_cast<size_t>(given) * element_bytes(type));
  }
  return CUDNN_SUCCESS;
}

// Every array of the pack counts as written: which of them are outputs only the engine knows.
CARD_API int cudnnBackendExecute(void* handle, Descriptor* plan, Descriptor* pack) {
  if (!plan || !pack) return CUDNN_BAD_PARAM;
  if (card_enter()) return CUDNN_NOT_INITIALIZED;
  card_launched(library_stream(handle));
  for (int name : {PACK_POINTERS, PACK_WORKSPACE}) {
    const Attribute* pointers = find(*pack->content, name);
    for (size_t at = 0; pointers && at + sizeof(void*) <= pointers->bytes.size(); at += sizeof(void*)) {
      void* pointer;
      std::memcpy(&pointer, pointers->bytes.data() + at, sizeof pointer);
      card_written(pointer);
    }
  }
  return CUDNN_SUCCESS;
}
