/* cuDNN's older convolution interface: descriptors, and one algorithm without workspace.
 *
 * torch takes it where the graph interface does not serve. Which algorithm a real cuDNN chooses, and its workspace, are
 * not published: 0 bytes, noted as unknown. */
#include "libraries/cudnn.h"

typedef struct {
  library_object object;
  int mode, type, groups, math, reorder, count;
  int padding[CUDNN_DIMENSIONS], stride[CUDNN_DIMENSIONS], dilation[CUDNN_DIMENSIONS];
} convolution;

CARD_API int cudnnCreateConvolutionDescriptor(convolution **out) {
  *out = library_new(sizeof **out);
  if (!*out) return CUDNN_ALLOC_FAILED;
  (*out)->groups = 1;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnDestroyConvolutionDescriptor(convolution *c) {
  free(c);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetConvolutionNdDescriptor(convolution *c, int count, const int *padding, const int *stride,
                                             const int *dilation, int mode, int type) {
  if (count < 1 || count > CUDNN_DIMENSIONS) return CUDNN_NOT_SUPPORTED;
  c->count = count, c->mode = mode, c->type = type;
  memcpy(c->padding, padding, (size_t)count * sizeof *padding);
  memcpy(c->stride, stride, (size_t)count * sizeof *stride);
  memcpy(c->dilation, dilation, (size_t)count * sizeof *dilation);
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetConvolution2dDescriptor(convolution *c, int ph, int pw, int sh, int sw, int dh, int dw, int mode,
                                             int type) {
  return cudnnSetConvolutionNdDescriptor(c, 2, (int[]){ph, pw}, (int[]){sh, sw}, (int[]){dh, dw}, mode, type);
}
#define SETTING(name, field)                                           \
  CARD_API int cudnnSetConvolution##name(convolution *c, int value) {  \
    c->field = value;                                                  \
    return CUDNN_SUCCESS;                                              \
  }                                                                    \
  CARD_API int cudnnGetConvolution##name(convolution *c, int *value) { \
    *value = c->field;                                                 \
    return CUDNN_SUCCESS;                                              \
  }
SETTING(GroupCount, groups)
SETTING(MathType, math)
SETTING(ReorderType, reorder)

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

static int answer(const char *name, const convolution *c, int wanted, int *count, performance *results) {
  if (wanted < 1 || !results) return CUDNN_BAD_PARAM;
  library_unknown_workspace(name);
  memset(results, 0, sizeof *results);
  results->algorithm = THE_ALGORITHM;
  results->determinism = DETERMINISTIC;
  results->math = c->math;
  if (count) *count = 1;
  return CUDNN_SUCCESS;
}
/* a, b, r: descriptors of the two inputs and of the result, whose order differs; p: pointers of the "Find…Ex" form. */
#define DIRECTION(direction)                                                                                             \
  CARD_API int cudnnGetConvolution##direction##AlgorithmMaxCount(void *h, int *count) {                                  \
    (void)h;                                                                                                             \
    *count = 1;                                                                                                          \
    return CUDNN_SUCCESS;                                                                                                \
  }                                                                                                                      \
  CARD_API int cudnnGetConvolution##direction##Algorithm_v7(void *h, const void *a, const void *b,                       \
                                                            const convolution *c, const void *r, int wanted,             \
                                                            int *count, performance *results) {                          \
    (void)h, (void)a, (void)b, (void)r;                                                                                  \
    return answer("cudnnGetConvolution" #direction "Algorithm_v7", c, wanted, count, results);                           \
  }                                                                                                                      \
  CARD_API int cudnnFindConvolution##direction##Algorithm(void *h, const void *a, const void *b, const convolution *c,   \
                                                          const void *r, int wanted, int *count,                         \
                                                          performance *results) {                                        \
    (void)h, (void)a, (void)b, (void)r;                                                                                  \
    return answer("cudnnFindConvolution" #direction "Algorithm", c, wanted, count, results);                             \
  }                                                                                                                      \
  CARD_API int cudnnFindConvolution##direction##AlgorithmEx(void *h, const void *a, const void *pa, const void *b,       \
                                                            const void *pb, const convolution *c, const void *r,         \
                                                            void *pr, int wanted, int *count, performance *results,      \
                                                            void *workspace, size_t bytes) {                             \
    (void)h, (void)a, (void)pa, (void)b, (void)pb, (void)r, (void)workspace, (void)bytes;                                \
    library_written(pr, 0);                                                                                              \
    return answer("cudnnFindConvolution" #direction "AlgorithmEx", c, wanted, count, results);                           \
  }                                                                                                                      \
  CARD_API int cudnnGetConvolution##direction##WorkspaceSize(void *h, const void *a, const void *b, const void *c,       \
                                                             const void *r, int algorithm, size_t *bytes) {              \
    (void)h, (void)a, (void)b, (void)c, (void)r, (void)algorithm;                                                        \
    library_unknown_workspace("cudnnGetConvolution" #direction "WorkspaceSize");                                         \
    *bytes = 0;                                                                                                          \
    return CUDNN_SUCCESS;                                                                                                \
  }
DIRECTION(Forward)
DIRECTION(BackwardData)
DIRECTION(BackwardFilter)
