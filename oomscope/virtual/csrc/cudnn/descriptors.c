/* cuDNN: tensors and filters, convolutions of the older interface, and sizes that are estimated. Handles, records of
 * settings, what computes, and sizes by formula stand in names/cudnn.txt. */
#define _GNU_SOURCE
#include "cudnn/cudnn.h"

#include <stdio.h>

CARD_API const char *cudnnGetErrorString(int status) {
  switch (status) {
    case CUDNN_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_ALLOC_FAILED: return "CUDNN_STATUS_ALLOC_FAILED";
    default: return "CUDNN_STATUS_UNKNOWN";
  }
}
CARD_API void cudnnGetLastErrorString(char *message, size_t bytes) {
  if (bytes) snprintf(message, bytes, "the virtual card does not support this call of cuDNN");
}

size_t cudnn_type_bytes(int type) {
  /* float, double, half, int8, int32, int8x4, uint8, uint8x4, int8x32, bfloat16, int64, bool, fp8 (two), fast float */
  static const uint8_t bytes[] = {4, 8, 2, 1, 4, 4, 1, 4, 32, 2, 8, 1, 1, 1, 4};
  return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}
void cudnn_set_dense(cudnn_tensor *tensor, int type, int count, const int *sizes) {
  tensor->type = type, tensor->count = count;
  for (int i = count - 1, stride = 1; i >= 0; i--) {
    tensor->sizes[i] = sizes[i], tensor->strides[i] = stride;
    stride *= sizes[i];
  }
}

CARD_API int cudnnSetTensorNdDescriptor(cudnn_tensor *t, int type, int count, const int *sizes, const int *strides) {
  if (count < 1 || count > CUDNN_DIMENSIONS) return CUDNN_NOT_SUPPORTED;
  t->type = type, t->count = count;
  memcpy(t->sizes, sizes, (size_t)count * sizeof *sizes);
  memcpy(t->strides, strides, (size_t)count * sizeof *strides);
  return CUDNN_SUCCESS;
}
/* apex's batch normalisation of groups describes its tensors so. */
CARD_API int cudnnSetTensor4dDescriptor(cudnn_tensor *t, int format, int type, int n, int c, int h, int w) {
  (void)format;
  cudnn_set_dense(t, type, 4, (int[]){n, c, h, w});
  return CUDNN_SUCCESS;
}
CARD_API int cudnnGetTensorNdDescriptor(const cudnn_tensor *t, int wanted, int *type, int *count, int *sizes,
                                        int *strides) {
  size_t bytes = (size_t)(wanted < t->count ? wanted : t->count) * sizeof *sizes;
  if (type) *type = t->type;
  if (count) *count = t->count;
  if (sizes) memcpy(sizes, t->sizes, bytes);
  if (strides) memcpy(strides, t->strides, bytes);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetFilterNdDescriptor(cudnn_tensor *t, int type, int format, int count, const int *sizes) {
  if (count < 1 || count > CUDNN_DIMENSIONS) return CUDNN_NOT_SUPPORTED;
  cudnn_set_dense(t, type, count, sizes);
  t->format = format;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnGetFilterNdDescriptor(const cudnn_tensor *t, int wanted, int *type, int *format, int *count, int *sizes) {
  if (format) *format = t->format;
  return cudnnGetTensorNdDescriptor(t, wanted, type, count, sizes, NULL);
}

/* CTC: an estimate, forward and backward variables of every label and the blanks between, in floats. The size of
 * probabilities is [time, batch, letters]. */
static size_t ctc_bytes(const cudnn_tensor *probabilities, int longest) {
  return 2 * (size_t)probabilities->sizes[0] * (size_t)probabilities->sizes[1] * (2 * (size_t)longest + 1) * sizeof(float);
}
CARD_API int cudnnGetCTCLossWorkspaceSize(void *handle, const cudnn_tensor *probabilities, const cudnn_tensor *gradients,
                                          const int *labels, const int *label_lengths, const int *input_lengths,
                                          int algorithm, void *loss, size_t *bytes) {
  int longest = 0;
  (void)handle, (void)gradients, (void)labels, (void)input_lengths, (void)algorithm, (void)loss;
  for (int i = 0; i < probabilities->sizes[1]; i++)
    if (label_lengths[i] > longest) longest = label_lengths[i];
  card_unknown_workspace("cudnnGetCTCLossWorkspaceSize");
  *bytes = ctc_bytes(probabilities, longest);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, void *loss, const cudnn_tensor *probabilities,
                                             const cudnn_tensor *gradients, size_t *bytes) {
  (void)handle, (void)algorithm, (void)gradients;
  card_unknown_workspace("cudnnGetCTCLossWorkspaceSize_v8");
  *bytes = ctc_bytes(probabilities, library_get(loss, 0));
  return CUDNN_SUCCESS;
}

/* Of the older convolution interface, which torch takes where the graph interface does not serve, settings are groups,
 * mathematics and reordering. Which algorithm a real cuDNN chooses, and its workspace, are not published: 0 bytes, noted
 * as unknown. */
enum { MATH = 1 };

/* What is said of an algorithm; the caller reads it field by field. All three directions share the layout. */
typedef struct {
  int algorithm, status;
  float milliseconds;
  size_t workspace;
  int determinism, math;
  int reserved[3];
} performance;

/* Number 1 exists in every direction: implicit GEMM, precomputed where there is something to compute. */
enum { THE_ALGORITHM = 1, DETERMINISTIC = 1 };

int cudnn_convolution_algorithm(const void *convolution, int wanted, void *results) {
  if (wanted < 1 || !results) return CUDNN_BAD_PARAM;
  performance only = {.algorithm = THE_ALGORITHM, .determinism = DETERMINISTIC, .math = library_get(convolution, MATH)};
  memcpy(results, &only, sizeof only);
  return CUDNN_SUCCESS;
}
