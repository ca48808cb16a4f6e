// Names and texts of the status codes that the card answers with, which the driver and the runtime share.
#include "core/process.h"
#include "core/stack.h"

using namespace card;

namespace {

struct Error {
  int code;
  const char *driver_name, *runtime_name, *text;
};

// A null name: the code belongs to the other interface only.
const Error errors[] = {
    {0, "CUDA_SUCCESS", "cudaSuccess", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError", "initialization error"},
    {12, nullptr, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {13, nullptr, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {21, nullptr, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {52, nullptr, "cudaErrorMissingConfiguration", "missing launch configuration"},
    {98, nullptr, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cudaErrorNoKernelImageForDevice", "no kernel image for this device"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "cudaErrorUnsupportedLimit", "limit is not supported on this architecture"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "cudaErrorFileNotFound", "file not found"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "cudaErrorNotReady", "device not ready"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "cudaErrorStreamCaptureUnmatched",
     "capture was not begun in this stream"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {999, "CUDA_ERROR_UNKNOWN", "cudaErrorUnknown", "unknown error"},
};

const Error *error_of(int code) {
  for (auto &one : errors)
    if (one.code == code) return &one;
  return nullptr;
}

}  // namespace

CARD_API int cuGetErrorString(int status, const char **text) {
  auto *found = error_of(status);
  if (text) *text = found && found->driver_name ? found->text : nullptr;
  return text && *text ? 0 : CARD_INVALID_VALUE;
}

CARD_API int cuGetErrorName(int status, const char **name) {
  auto *found = error_of(status);
  if (name) *name = found ? found->driver_name : nullptr;
  return name && *name ? 0 : CARD_INVALID_VALUE;
}

CARD_API const char *cudaGetErrorString(int status) {
  auto *found = error_of(status);
  return found ? found->text : "unrecognized error code";
}

CARD_API const char *cudaGetErrorName(int status) {
  auto *found = error_of(status);
  return found ? found->runtime_name : "unrecognized error code";
}

CARD_API int cudaPeekAtLastError(void) {
  tidy_stack();
  return last_error;
}

CARD_API int cudaGetLastError(void) {
  int status = cudaPeekAtLastError();
  last_error = 0;
  return status;
}
