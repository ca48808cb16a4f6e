// The driver's streams, events and captures. The handles are those of the runtime.
#include "work/streams.h"

#include "core/process.h"
#include "driver/types.h"
#include "work/capture.h"
#include "work/events.h"

using namespace card;

namespace {

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
    if (!stream || flags > 1) return CARD_INVALID_VALUE;
    *stream = new_stream(flags, priority);
    return 0;
  });
}

CARD_API int cuStreamCreate(void **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

CARD_API int cuStreamDestroy_v2(void *stream) {
  return is_forked() ? 0 : driver_call([&] { return destroy_stream(stream); });
}
CARD_ALIAS(cuStreamDestroy_v2) int cuStreamDestroy(void *);

CARD_API int cuStreamSynchronize(void *stream) {
  return driver_call([&] { return synchronize_stream(find_stream(stream)); });
}

CARD_API int cuStreamQuery(void *stream) {
  return driver_call([&] { return query_stream(find_stream(stream)); });
}

CARD_API int cuStreamWaitEvent(void *stream, void *event, unsigned) {
  return driver_call([&] { return wait_event(stream, event); });
}

CARD_API int cuStreamGetPriority(void *handle, int *priority) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!priority) return CARD_INVALID_VALUE;
    *priority = stream.priority;
    return 0;
  });
}

CARD_API int cuStreamGetFlags(void *handle, unsigned *flags) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!flags) return CARD_INVALID_VALUE;
    *flags = stream.flags;
    return 0;
  });
}

CARD_API int cuStreamGetId(void *handle, unsigned long long *id) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!id) return CARD_INVALID_VALUE;
    *id = stream.id;
    return 0;
  });
}

CARD_API int cuStreamGetDevice(void *handle, int *device) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!device) return CARD_INVALID_VALUE;
    *device = stream.device;
    return 0;
  });
}

CARD_API int cuStreamGetCtx(void *handle, Context **context) {
  return stream_call(handle, [&](Stream &) -> int {
    if (!context) return CARD_INVALID_VALUE;
    *context = current_context();
    return 0;
  });
}

CARD_API int cuLaunchHostFunc(void *handle, void (*function)(void *), void *argument) {
  return stream_call(handle, [&](Stream &) -> int {
    if (!function) return CARD_INVALID_VALUE;
    card_host_function(handle, function, argument);
    return 0;
  });
}

CARD_API int cuStreamIsCapturing(void *handle, int *status) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!status) return CARD_INVALID_VALUE;
    *status = stream.capture ? capture_info(&stream).status : 0;
    return 0;
  });
}

CARD_API int cuStreamBeginCapture_v2(void *handle, int mode) {
  return stream_call(handle, [&](Stream &stream) { return begin_capture(&stream, mode, nullptr, {}); });
}
CARD_ALIAS(cuStreamBeginCapture_v2) int cuStreamBeginCapture(void *, int);

CARD_API int cuStreamEndCapture(void *handle, Graph **graph) {
  return stream_call(handle, [&](Stream &stream) { return end_capture(&stream, graph); });
}

CARD_API int cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, Graph **graph,
                                       Node *const **dependencies, const void **edges, size_t *count) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!status) return CARD_INVALID_VALUE;
    CaptureInfo info;
    if (stream.capture) info = capture_info(&stream);
    *status = info.status;
    if (id) *id = info.id;
    if (graph) *graph = info.graph;
    if (dependencies) *dependencies = info.dependencies;
    if (edges) *edges = nullptr;
    if (count) *count = info.dependency_count;
    return 0;
  });
}

CARD_API int cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, Graph **graph,
                                       Node *const **dependencies, size_t *count) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, nullptr, count);
}

// ---- events

CARD_API int cuEventCreate(void **event, unsigned flags) {
  return driver_call([&]() -> int {
    if (!event || flags > 7) return CARD_INVALID_VALUE;
    *event = new_event(flags);
    return 0;
  });
}

CARD_API int cuEventDestroy_v2(void *event) {
  return is_forked() ? 0 : driver_call([&] { return destroy_event(event); });
}
CARD_ALIAS(cuEventDestroy_v2) int cuEventDestroy(void *);

CARD_API int cuEventRecord(void *event, void *stream) {
  return driver_call([&] { return record_event(event, stream); });
}

CARD_API int cuEventRecordWithFlags(void *event, void *stream, unsigned) { return cuEventRecord(event, stream); }

CARD_API int cuEventQuery(void *event) {
  return driver_call([&] { return query_event(event); });
}

CARD_API int cuEventSynchronize(void *event) {
  return driver_call([&] { return synchronize_event(event); });
}

CARD_API int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) {
  return driver_call([&] { return elapsed_milliseconds(milliseconds, from, to); });
}
CARD_ALIAS(cuEventElapsedTime_v2) int cuEventElapsedTime(float *, void *, void *);
