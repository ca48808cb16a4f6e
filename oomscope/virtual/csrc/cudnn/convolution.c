/* cuDNN's older convolution interface: descriptors, and one algorithm without workspace.
 *
 * torch takes it where the graph interface does not serve. Which algorithm a real cuDNN chooses, and its workspace, are
 * not published: 0 bytes, noted as unknown. */
#include "cudnn/cudnn.h"

/* Settings: groups, mathematics, reordering. */
enum { GROUPS, MATH };

typedef struct {
  library_object object;
  int count;
  int padding[CUDNN_DIMENSIONS], stride[CUDNN_DIMENSIONS], dilation[CUDNN_DIMENSIONS];
} convolution;

CARD_API int cudnnCreateConvolutionDescriptor(convolution **out) {
  return library_create(out) ? CUDNN_ALLOC_FAILED : library_set(*out, GROUPS, 1);
}
CARD_API int cudnnSetConvolutionNdDescriptor(convolution *c, int count, const int *padding, const int *stride,
                                             const int *dilation, int mode, int type) {
  if (count < 1 || count > CUDNN_DIMENSIONS) return CUDNN_NOT_SUPPORTED;
  (void)mode, (void)type;
  c->count = count;
  memcpy(c->padding, padding, (size_t)count * sizeof *padding);
  memcpy(c->stride, stride, (size_t)count * sizeof *stride);
  memcpy(c->dilation, dilation, (size_t)count * sizeof *dilation);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetConvolution2dDescriptor(convolution *c, int ph, int pw, int sh, int sw, int dh, int dw, int mode,
                                             int type) {
  return cudnnSetConvolutionNdDescriptor(c, 2, (int[]){ph, pw}, (int[]){sh, sw}, (int[]){dh, dw}, mode, type);
}
CARD_API int cudnnGetConvolutionNdForwardOutputDim(const convolution *c, const cudnn_tensor *x, const cudnn_tensor *w,
                                                   int count, int *sizes) {
  if (count != x->count || count != c->count + 2) return CUDNN_BAD_PARAM;
  sizes[0] = x->sizes[0], sizes[1] = w->sizes[0];
  for (int i = 2; i < count; i++) {
    int k = i - 2, reach = c->dilation[k] * (w->sizes[i] - 1) + 1;
    sizes[i] = 1 + (x->sizes[i] + 2 * c->padding[k] - reach) / c->stride[k];
  }
  return CUDNN_SUCCESS;
}

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
