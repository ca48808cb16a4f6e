/* Descriptors that more than one part of the cuDNN stand-in reads. */
#ifndef OOMSCOPE_CUDNN_H
#define OOMSCOPE_CUDNN_H

#include "libraries/library.h"

enum {
  CUDNN_SUCCESS = 0,
  CUDNN_NOT_INITIALIZED = 1001,
  CUDNN_BAD_PARAM = 2000,
  CUDNN_NOT_SUPPORTED = 3000,
  CUDNN_ALLOC_FAILED = 4003
};
enum { CUDNN_DIMENSIONS = 8 };

/* A tensor, or a filter (format instead of strides). */
typedef struct {
  library_object object;
  int type, format, count;
  int sizes[CUDNN_DIMENSIONS], strides[CUDNN_DIMENSIONS];
} cudnn_tensor;

/* Bytes of one element of a cudnnDataType_t; 0 for an unknown one. */
size_t cudnn_type_bytes(int type);
/* Sizes as given, strides of a dense tensor. */
void cudnn_set_dense(cudnn_tensor *tensor, int type, int count, const int *sizes);

#endif
