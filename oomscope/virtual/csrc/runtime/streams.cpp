// The runtime's streams and events.
#include "work/streams.h"

#include <string.h>

#include "core/process.h"
#include "runtime/types.h"
#include "work/capture.h"
#include "work/events.h"
#include "work/stale_stack.h"

using namespace card;

namespace {

constexpr size_t attribute_bytes = 64;  // of the union of stream attributes

template <class Body>
int stream_call(Stream_t handle, Body body) {
  return runtime_call([&]() -> int {
    Stream *stream = find_stream(handle);
    return stream ? body(*stream) : CARD_INVALID_HANDLE;
  });
}

}  // namespace

CARD_API int cudaStreamCreateWithPriority(Stream_t *stream, unsigned flags, int priority) {
  return runtime_call([&]() -> int {
    if (!stream || flags > 1) return CARD_INVALID_VALUE;
    *stream = new_stream(flags, priority);
    return 0;
  });
}

CARD_API int cudaStreamCreateWithFlags(Stream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

CARD_API int cudaStreamCreate(Stream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

CARD_API int cudaStreamDestroy(Stream_t stream) {
  return is_forked() ? 0 : runtime_call([&] { return destroy_stream(stream); });
}

CARD_API int cudaStreamGetPriority(Stream_t handle, int *priority) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!priority) return CARD_INVALID_VALUE;
    *priority = stream.priority;
    return 0;
  });
}

CARD_API int cudaStreamGetFlags(Stream_t handle, unsigned *flags) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!flags) return CARD_INVALID_VALUE;
    *flags = stream.flags;
    return 0;
  });
}

CARD_API int cudaStreamGetId(Stream_t handle, unsigned long long *id) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!id) return CARD_INVALID_VALUE;
    *id = stream.id;
    return 0;
  });
}

CARD_API int cudaStreamGetDevice(Stream_t handle, int *device) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!device) return CARD_INVALID_VALUE;
    *device = stream.device;
    return 0;
  });
}

CARD_API int cudaStreamSynchronize(Stream_t stream) {
  tidy_stack();
  return runtime_call([&] { return synchronize_stream(find_stream(stream)); });
}

CARD_API int cudaStreamQuery(Stream_t stream) {
  return runtime_call([&] { return query_stream(find_stream(stream)); });
}

CARD_API int cudaStreamWaitEvent(Stream_t stream, Event_t event, unsigned) {
  return runtime_call([&] { return wait_event(stream, event); });
}

CARD_API int cudaStreamGetAttribute(Stream_t handle, int, void *value) {
  return stream_call(handle, [&](Stream &) -> int {
    if (!value) return CARD_INVALID_VALUE;
    memset(value, 0, attribute_bytes);
    return 0;
  });
}

// Accepted: priorities of cache and scheduling.
CARD_API int cudaStreamSetAttribute(Stream_t handle, int, const void *) {
  return stream_call(handle, [](Stream &) { return 0; });
}
CARD_API int cudaStreamCopyAttributes(Stream_t to, Stream_t from) {
  return runtime_call([&]() -> int { return find_stream(to) && find_stream(from) ? 0 : CARD_INVALID_HANDLE; });
}

// ---- work of the host in stream order

CARD_API int cudaLaunchHostFunc(Stream_t handle, void (*function)(void *), void *argument) {
  return stream_call(handle, [&](Stream &) -> int {
    if (!function) return CARD_INVALID_VALUE;
    card_host_function(handle, function, argument);
    return 0;
  });
}

CARD_API int cudaStreamAddCallback(Stream_t handle, void (*callback)(Stream_t, int, void *), void *argument, unsigned) {
  return stream_call(handle, [&](Stream &stream) -> int {
    if (!callback) return CARD_INVALID_VALUE;
    if (stream.capture) return spoil_capture(&stream);
    callback(handle, 0, argument);
    return 0;
  });
}

// ---- events

CARD_API int cudaEventCreateWithFlags(Event_t *event, unsigned flags) {
  return runtime_call([&]() -> int {
    if (!event || flags > 7) return CARD_INVALID_VALUE;
    *event = new_event(flags);
    return 0;
  });
}

CARD_API int cudaEventCreate(Event_t *event) { return cudaEventCreateWithFlags(event, 0); }

CARD_API int cudaEventDestroy(Event_t event) {
  return is_forked() ? 0 : runtime_call([&] { return destroy_event(event); });
}

CARD_API int cudaEventRecord(Event_t event, Stream_t stream) {
  return runtime_call([&] { return record_event(event, stream); });
}

CARD_API int cudaEventRecordWithFlags(Event_t event, Stream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

CARD_API int cudaEventQuery(Event_t event) {
  return runtime_call([&] { return query_event(event); });
}

CARD_API int cudaEventSynchronize(Event_t event) {
  return runtime_call([&] { return synchronize_event(event); });
}

CARD_API int cudaEventElapsedTime(float *milliseconds, Event_t from, Event_t to) {
  return runtime_call([&] { return elapsed_milliseconds(milliseconds, from, to); });
}
