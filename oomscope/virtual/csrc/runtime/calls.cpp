// The runtime's calls about memory and streams that are none of the driver's by another name (names/cudart.txt).
#include "core/device.h"
#include "core/process.h"
#include "core/stack.h"
#include "driver/types.h"
#include "memory/memory.h"
#include "runtime/types.h"
#include "work/graphs.h"

using namespace card;

namespace {

PointerAttributes describe(const Range *range, const void *pointer) {
  constexpr int host = 1, device = 2, managed = 3;
  PointerAttributes a{};
  a.device = range ? range->device : -2;
  if (!range) return a;
  a.type = range->kind == Kind::managed ? managed : is_host(range->kind) ? host : device;
  a.device_pointer = const_cast<void *>(pointer);
  if (a.type != device) a.host_pointer = const_cast<void *>(pointer);
  return a;
}

}  // namespace

CARD_API int cudaMalloc(void **pointer, size_t bytes) {
  return runtime_call([&] { return device_malloc(current_device, pointer, bytes); });
}

CARD_API int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
  return runtime_call([&]() -> int {
    int status = tell(pitch, round_up(width, pitch_unit));
    return status ? status : device_malloc(current_device, pointer, *pitch * height);
  });
}

CARD_API int cudaMalloc3D(PitchedPointer *pointer, Extent extent) {
  return runtime_call([&]() -> int {
    if (!pointer) return CARD_INVALID_VALUE;
    *pointer = {nullptr, round_up(extent.width, pitch_unit), extent.width, extent.height};
    return device_malloc(current_device, &pointer->pointer, pointer->pitch * extent.height * extent.depth);
  });
}

CARD_API int cudaPointerGetAttributes(PointerAttributes *attributes, const void *pointer) {
  return runtime_call([&] {
    MemoryLock lock(memory_mutex());
    return tell(attributes, describe(range_around(reinterpret_cast<uintptr_t>(pointer)), pointer));
  });
}

// ---- streams and events

extern "C" {
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuStreamIsCapturing(void *stream, int *status);
int cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, Graph **graph, Node *const **dependencies,
                              const void **edges, size_t *count);
int cuEventCreate(void **event, unsigned flags);
}

CARD_API int cudaStreamCreate(Stream_t *stream) { return card_runtime_status(cuStreamCreate(stream, 0)); }
CARD_API int cudaEventCreate(Event_t *event) { return card_runtime_status(cuEventCreate(event, 0)); }

CARD_API int cudaStreamSynchronize(Stream_t stream) {
  tidy_stack();
  return card_runtime_status(cuStreamSynchronize(stream));
}

CARD_API int cudaStreamIsCapturing(Stream_t stream, int *status) {
  tidy_stack();
  return card_runtime_status(cuStreamIsCapturing(stream, status));
}

CARD_API int cudaStreamGetCaptureInfo(Stream_t stream, int *status, uint64_t *id, Graph **graph,
                                      Node *const **dependencies, const void **edges, size_t *count) {
  return card_runtime_status(cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count));
}

// ---- the driver's functions by name

CARD_API int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long,
                                              int *found) {
  return runtime_call([&]() -> int {
    constexpr int is_found = 0, is_unknown = 1;
    if (!name || !function) return CARD_INVALID_VALUE;
    *function = cuda_entry_point(name, static_cast<int>(version));
    if (found) *found = *function ? is_found : is_unknown;
    return 0;
  });
}

CARD_API int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
  return cudaGetDriverEntryPointByVersion(name, function, driver_version, flags, found);
}

CARD_API int cudaGetExportTable(const void **table, const void *) {
  if (table) *table = nullptr;
  card_unsupported("cudaGetExportTable");
  return last_error = CARD_NOT_FOUND;
}
