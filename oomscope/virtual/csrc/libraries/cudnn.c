/* cuDNN: handles, version, tensors, filters, dropout states, and records of settings.
 *
 * What computes, and sizes by formula, stand in names/cudnn.txt; convolutions, recurrent networks and the graph interface
 * have files of their own. */
#define _GNU_SOURCE
#include "libraries/cudnn.h"

#include <stdio.h>

typedef struct {
  library_object object;
} handle;

/* The highest version that a supported torch was built with; used where torch's metadata does not say. */
enum { NEWEST_VERSION = 92600 };

static int version(void) {
  static int known;
  if (!known) known = library_version("nvidia-cudnn-cu", NEWEST_VERSION);
  return known;
}
CARD_API size_t cudnnGetVersion(void) { return (size_t)version(); }
CARD_API size_t cudnnGetMaxDeviceVersion(void) { return 1210; }
CARD_API size_t cudnnGetCudartVersion(void) { return (size_t)library_version_of_toolkit() / 100 * 10; }
CARD_API int cudnnGetProperty(int part, int *value) {
  int parts[] = {version() / 10000, version() / 100 % 100, version() % 100};
  if (part < 0 || part > 2 || !value) return CUDNN_BAD_PARAM;
  *value = parts[part];
  return CUDNN_SUCCESS;
}
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

CARD_API int cudnnCreate(handle **out) {
  if (card_enter()) return CUDNN_NOT_INITIALIZED;
  *out = library_new(sizeof **out);
  return *out ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;
}
CARD_API int cudnnDestroy(handle *h) {
  free(h);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetStream(handle *h, void *stream) {
  h->object.stream = stream;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnGetStream(handle *h, void **stream) {
  *stream = h->object.stream;
  return CUDNN_SUCCESS;
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

static int create(void **out, size_t bytes) {
  *out = library_new(bytes);
  return *out ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;
}
static int destroy(void *object) {
  free(object);
  return CUDNN_SUCCESS;
}
#define RECORD(name, type)                                                                                  \
  CARD_API int cudnnCreate##name##Descriptor(void **out) { return create(out, sizeof(type)); }              \
  CARD_API int cudnnDestroy##name##Descriptor(void *object) { return destroy(object); }
RECORD(Tensor, cudnn_tensor)
RECORD(Filter, cudnn_tensor)
RECORD(SpatialTransformer, library_object)

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
CARD_API int cudnnGetFilterSizeInBytes(const cudnn_tensor *t, size_t *bytes) { return cudnnGetTensorSizeInBytes(t, bytes); }

/* Settings that nothing here depends on; they are given back where cuDNN gives them back. */
typedef struct {
  library_object object;
  int mode, nan_option;
  double coefficient, beta;
} activation;
RECORD(Activation, activation)
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
RECORD(Pooling, pooling)
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
RECORD(Dropout, dropout)
CARD_API int cudnnDropoutGetStatesSize(handle *h, size_t *bytes) {
  const card_description *card = card_describe();
  (void)h;
  library_unknown_workspace("cudnnDropoutGetStatesSize");
  *bytes = (size_t)card->multiprocessors * (size_t)card->threads_per_multiprocessor * GENERATOR_BYTES;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnRestoreDropoutDescriptor(dropout *d, handle *h, float probability, void *states, size_t bytes,
                                           unsigned long long seed) {
  (void)h, (void)bytes;
  d->probability = probability, d->states = states, d->seed = seed;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetDropoutDescriptor(dropout *d, handle *h, float probability, void *states, size_t bytes,
                                       unsigned long long seed) {
  if (states) {
    card_launched(h->object.stream);
    library_written(states, 0);
  }
  return cudnnRestoreDropoutDescriptor(d, h, probability, states, bytes, seed);
}
CARD_API int cudnnGetDropoutDescriptor(const dropout *d, handle *h, float *probability, void **states,
                                       unsigned long long *seed) {
  (void)h;
  *probability = d->probability, *states = d->states, *seed = d->seed;
  return CUDNN_SUCCESS;
}

typedef struct {
  library_object object;
  int compute_type, normalisation, gradient_mode, longest_label;
} ctc_loss;
RECORD(CTCLoss, ctc_loss)
CARD_API int cudnnSetCTCLossDescriptor_v9(ctc_loss *c, int type, int normalisation, int gradient_mode, int longest) {
  c->compute_type = type, c->normalisation = normalisation, c->gradient_mode = gradient_mode, c->longest_label = longest;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetCTCLossDescriptor_v8(ctc_loss *c, int type, int normalisation, int gradient_mode, int longest) {
  return cudnnSetCTCLossDescriptor_v9(c, type, normalisation, gradient_mode, longest);
}
CARD_API int cudnnSetCTCLossDescriptorEx(ctc_loss *c, int type, int normalisation, int gradient_mode) {
  return cudnnSetCTCLossDescriptor_v9(c, type, normalisation, gradient_mode, 0);
}
CARD_API int cudnnSetCTCLossDescriptor(ctc_loss *c, int type) { return cudnnSetCTCLossDescriptor_v9(c, type, 0, 0, 0); }

/* The estimate: forward and backward variables of every label and the blanks between, in floats. The size of
 * probabilities is [time, batch, letters]. */
static size_t ctc_bytes(const cudnn_tensor *probabilities, int longest) {
  return 2 * (size_t)probabilities->sizes[0] * (size_t)probabilities->sizes[1] * (2 * (size_t)longest + 1) * sizeof(float);
}
CARD_API int cudnnGetCTCLossWorkspaceSize(handle *h, const cudnn_tensor *probabilities, const cudnn_tensor *gradients,
                                          const int *labels, const int *label_lengths, const int *input_lengths,
                                          int algorithm, ctc_loss *c, size_t *bytes) {
  int longest = 0;
  (void)h, (void)gradients, (void)labels, (void)input_lengths, (void)algorithm, (void)c;
  for (int i = 0; i < probabilities->sizes[1]; i++)
    if (label_lengths[i] > longest) longest = label_lengths[i];
  library_unknown_workspace("cudnnGetCTCLossWorkspaceSize");
  *bytes = ctc_bytes(probabilities, longest);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnGetCTCLossWorkspaceSize_v8(handle *h, int algorithm, ctc_loss *c, const cudnn_tensor *probabilities,
                                             const cudnn_tensor *gradients, size_t *bytes) {
  (void)h, (void)algorithm, (void)gradients;
  library_unknown_workspace("cudnnGetCTCLossWorkspaceSize_v8");
  *bytes = ctc_bytes(probabilities, c->longest_label);
  return CUDNN_SUCCESS;
}
