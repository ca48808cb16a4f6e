// The driver's streams, events and captures. The handles are those of the runtime.
#include "work/streams.h"

#include <string.h>

#include <algorithm>

#include "core/process.h"
#include "driver/types.h"
#include "work/graphs.h"

using namespace card;

namespace {

constexpr size_t attribute_bytes = 64;  // of the union of stream attributes

thread_local int capture_mode = 0;

template <class Body>
int stream_call(void *handle, Body body) {
  return driver_call([&]() -> int {
    Stream *stream = find_stream(handle);
    return stream ? body(*stream) : CARD_INVALID_HANDLE;
  });
}

}  // namespace

CARD_API int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  return driver_call([&]() -> int {
    return stream && flags <= 1 ? tell(stream, new_stream(flags, priority)) : CARD_INVALID_VALUE;
  });
}
CARD_API int cuStreamCreate(void **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
CARD_API int cuStreamDestroy_v2(void *stream) {
  return is_forked() ? 0 : driver_call([&] { return destroy_stream(stream); });
}

CARD_API int cuStreamSynchronize(void *handle) {
  return stream_call(handle, [](Stream &stream) { return synchronize_stream(&stream); });
}
CARD_API int cuStreamQuery(void *handle) {
  return stream_call(handle, [](Stream &stream) { return query_stream(&stream); });
}
CARD_API int cuStreamWaitEvent(void *stream, void *event, unsigned) {
  return driver_call([&] { return wait_event(stream, event); });
}

CARD_API int cuStreamGetPriority(void *handle, int *priority) {
  return stream_call(handle, [&](Stream &stream) { return tell(priority, stream.priority); });
}
CARD_API int cuStreamGetFlags(void *handle, unsigned *flags) {
  return stream_call(handle, [&](Stream &stream) { return tell(flags, stream.flags); });
}
CARD_API int cuStreamGetId(void *handle, unsigned long long *id) {
  return stream_call(handle, [&](Stream &stream) { return tell(id, stream.id); });
}
CARD_API int cuStreamGetDevice(void *handle, int *device) {
  return stream_call(handle, [&](Stream &stream) { return tell(device, stream.device); });
}
CARD_API int cuStreamGetCtx(void *handle, Context **context) {
  return stream_call(handle, [&](Stream &stream) { return tell(context, primary_context(stream.device)); });
}
CARD_API int cuStreamGetCtx_v2(void *handle, Context **context, void **green_context) {
  if (green_context) *green_context = nullptr;
  return cuStreamGetCtx(handle, context);
}
CARD_API int cuStreamGetAttribute(void *handle, int, void *value) {
  return stream_call(handle, [&](Stream &) -> int {
    if (!value) return CARD_INVALID_VALUE;
    memset(value, 0, attribute_bytes);
    return 0;
  });
}

// ---- work of the host in stream order

CARD_API int cuLaunchHostFunc(void *handle, void (*function)(void *), void *argument) {
  return stream_call(handle, [&](Stream &) -> int {
    if (!function) return CARD_INVALID_VALUE;
    card_host_function(handle, function, argument);
    return 0;
  });
}
CARD_API int cuStreamAddCallback(void *handle, void (*callback)(void *, int, void *), void *argument, unsigned) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!callback) return CARD_INVALID_VALUE;
    if (stream.capture) return spoil_capture(&stream);
    callback(handle, 0, argument);
    return 0;
  });
}

// ---- captures

CARD_API int cuThreadExchangeStreamCaptureMode(int *mode) {
  return driver_call([&]() -> int {
    if (!mode) return CARD_INVALID_VALUE;
    std::swap(*mode, capture_mode);
    return 0;
  });
}
CARD_API int cuStreamBeginCapture_v2(void *handle, int mode) {
  return stream_call(handle, [&](Stream &stream) { return begin_capture(&stream, mode, nullptr, {}); });
}
CARD_API int cuStreamBeginCaptureToGraph(void *handle, Graph *graph, Node *const *dependencies, const void *,
                                         size_t count, int mode) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!graph || (count && !dependencies)) return CARD_INVALID_VALUE;
    return begin_capture(&stream, mode, graph, {dependencies, dependencies + count});
  });
}
CARD_API int cuStreamEndCapture(void *handle, Graph **graph) {
  return stream_call(handle, [&](Stream &stream) { return end_capture(&stream, graph); });
}
CARD_API int cuStreamIsCapturing(void *handle, int *status) {
  if (status) *status = 0;
  return stream_call(handle, [&](Stream &stream) { return tell(status, capture_info(&stream).status); });
}
CARD_API int cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, Graph **graph,
                                       Node *const **dependencies, const void **edges, size_t *count) {
  return stream_call(handle, [&](Stream &stream) {
    CaptureInfo info = capture_info(&stream);
    if (id) *id = info.id;
    if (graph) *graph = info.graph;
    if (dependencies) *dependencies = info.dependencies;
    if (edges) *edges = nullptr;
    if (count) *count = info.dependency_count;
    return tell(status, info.status);
  });
}
CARD_API int cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, Graph **graph,
                                       Node *const **dependencies, size_t *count) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, nullptr, count);
}
CARD_API int cuStreamUpdateCaptureDependencies_v2(void *handle, Node **nodes, const void *, size_t count,
                                                  unsigned flags) {
  return stream_call(handle, [&](Stream &stream) -> int {
    constexpr unsigned set = 1;
    return flags > set ? CARD_INVALID_VALUE : set_capture_dependencies(&stream, nodes, count, flags == set);
  });
}

// ---- events

CARD_API int cuEventCreate(void **event, unsigned flags) {
  return driver_call([&]() -> int { return event && flags <= 7 ? tell(event, new_event(flags)) : CARD_INVALID_VALUE; });
}
CARD_API int cuEventDestroy_v2(void *event) {
  return is_forked() ? 0 : driver_call([&] { return destroy_event(event); });
}
CARD_API int cuEventRecord(void *event, void *stream) {
  return driver_call([&] { return record_event(event, stream); });
}
CARD_API int cuEventQuery(void *event) {
  return driver_call([&] { return query_event(event); });
}
CARD_API int cuEventSynchronize(void *event) {
  return driver_call([&] { return synchronize_event(event); });
}
CARD_API int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) {
  return driver_call([&] { return elapsed_milliseconds(milliseconds, from, to); });
}
