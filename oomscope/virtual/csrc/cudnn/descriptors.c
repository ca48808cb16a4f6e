/* cuDNN: tensors, filters, dropout states, and records of settings. Handles, what computes, and sizes by formula stand
 * in names/cudnn.txt. */
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
CARD_API int cudnnSetTensorNdDescriptorEx(cudnn_tensor *t, int format, int type, int count, const int *sizes) {
  (void)format;
  if (count < 1 || count > CUDNN_DIMENSIONS) return CUDNN_NOT_SUPPORTED;
  cudnn_set_dense(t, type, count, sizes);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetTensor4dDescriptor(cudnn_tensor *t, int format, int type, int n, int c, int h, int w) {
  return cudnnSetTensorNdDescriptorEx(t, format, type, 4, (int[]){n, c, h, w});
}
CARD_API int cudnnSetTensor4dDescriptorEx(cudnn_tensor *t, int type, int n, int c, int h, int w, int ns, int cs, int hs,
                                          int ws) {
  return cudnnSetTensorNdDescriptor(t, type, 4, (int[]){n, c, h, w}, (int[]){ns, cs, hs, ws});
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
CARD_API int cudnnGetTensorSizeInBytes(const cudnn_tensor *t, size_t *bytes) {
  size_t last = 0;
  for (int i = 0; i < t->count; i++) last += (size_t)(t->sizes[i] - 1) * (size_t)t->strides[i];
  *bytes = t->count ? (last + 1) * cudnn_type_bytes(t->type) : 0;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetFilterNdDescriptor(cudnn_tensor *t, int type, int format, int count, const int *sizes) {
  if (count < 1 || count > CUDNN_DIMENSIONS) return CUDNN_NOT_SUPPORTED;
  cudnn_set_dense(t, type, count, sizes);
  t->format = format;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetFilter4dDescriptor(cudnn_tensor *t, int type, int format, int k, int c, int h, int w) {
  return cudnnSetFilterNdDescriptor(t, type, format, 4, (int[]){k, c, h, w});
}
CARD_API int cudnnGetFilterNdDescriptor(const cudnn_tensor *t, int wanted, int *type, int *format, int *count, int *sizes) {
  if (format) *format = t->format;
  return cudnnGetTensorNdDescriptor(t, wanted, type, count, sizes, NULL);
}

/* Settings that nothing here depends on; they are given back where cuDNN gives them back. */
typedef struct {
  library_object object;
  int mode, nan_option;
  double coefficient, beta;
} activation;
CARD_API int cudnnSetActivationDescriptor(activation *a, int mode, int nan_option, double coefficient) {
  a->mode = mode, a->nan_option = nan_option, a->coefficient = coefficient;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnGetActivationDescriptor(const activation *a, int *mode, int *nan_option, double *coefficient) {
  *mode = a->mode, *nan_option = a->nan_option, *coefficient = a->coefficient;
  return CUDNN_SUCCESS;
}

typedef struct {
  library_object object;
  int mode, nan_option, count;
  int window[CUDNN_DIMENSIONS], padding[CUDNN_DIMENSIONS], stride[CUDNN_DIMENSIONS];
} pooling;
_Static_assert(sizeof(pooling) <= LIBRARY_OBJECT_BYTES, "the largest record of cuDNN");
CARD_API int cudnnSetPoolingNdDescriptor(pooling *p, int mode, int nan_option, int count, const int *window,
                                         const int *padding, const int *stride) {
  if (count < 1 || count > CUDNN_DIMENSIONS) return CUDNN_NOT_SUPPORTED;
  p->mode = mode, p->nan_option = nan_option, p->count = count;
  memcpy(p->window, window, (size_t)count * sizeof *window);
  memcpy(p->padding, padding, (size_t)count * sizeof *padding);
  memcpy(p->stride, stride, (size_t)count * sizeof *stride);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetPooling2dDescriptor(pooling *p, int mode, int nan_option, int wh, int ww, int ph, int pw, int sh,
                                         int sw) {
  return cudnnSetPoolingNdDescriptor(p, mode, nan_option, 2, (int[]){wh, ww}, (int[]){ph, pw}, (int[]){sh, sw});
}
CARD_API int cudnnGetPoolingNdForwardOutputDim(const pooling *p, const cudnn_tensor *input, int count, int *sizes) {
  if (count != input->count || count != p->count + 2) return CUDNN_BAD_PARAM;
  for (int i = 0; i < count; i++) {
    int k = i - 2;
    sizes[i] = i < 2 ? input->sizes[i] : 1 + (input->sizes[i] + 2 * p->padding[k] - p->window[k]) / p->stride[k];
  }
  return CUDNN_SUCCESS;
}

/* Dropout: the states are the caller's memory on the card. Their size is an estimate: a generator of 48 bytes
 * (cuRAND's XORWOW) for every thread that the card holds at once. */
enum { GENERATOR_BYTES = 48 };
typedef struct {
  library_object object;
  float probability;
  void *states;
  unsigned long long seed;
} dropout;
CARD_API int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
  const card_description *card = card_describe();
  (void)handle;
  card_unknown_workspace("cudnnDropoutGetStatesSize");
  *bytes = (size_t)card->multiprocessors * (size_t)card->threads_per_multiprocessor * GENERATOR_BYTES;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnRestoreDropoutDescriptor(dropout *d, void *handle, float probability, void *states, size_t bytes,
                                           unsigned long long seed) {
  (void)handle, (void)bytes;
  d->probability = probability, d->states = states, d->seed = seed;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetDropoutDescriptor(dropout *d, void *handle, float probability, void *states, size_t bytes,
                                       unsigned long long seed) {
  if (states) {
    card_launched(library_stream(handle));
    library_written(states, 0);
  }
  return cudnnRestoreDropoutDescriptor(d, handle, probability, states, bytes, seed);
}
CARD_API int cudnnGetDropoutDescriptor(const dropout *d, void *handle, float *probability, void **states,
                                       unsigned long long *seed) {
  (void)handle;
  *probability = d->probability, *states = d->states, *seed = d->seed;
  return CUDNN_SUCCESS;
}

/* The estimate: forward and backward variables of every label and the blanks between, in floats. The size of
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
