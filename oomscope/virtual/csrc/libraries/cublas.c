/* cuBLAS: handles, and copies of vectors and matrices. What computes stands in names/cublas.txt. */
#include "libraries/library.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7 };

typedef struct {
  library_object object;
  int pointer_mode, math_mode, sm_count_target;
} handle;

CARD_API int cublasCreate_v2(handle **out) {
  if (!out) return INVALID_VALUE;
  if (card_enter()) return NOT_INITIALIZED;
  *out = library_new(sizeof **out);
  return *out ? SUCCESS : ALLOC_FAILED;
}
CARD_API int cublasDestroy_v2(handle *h) {
  free(h);
  return SUCCESS;
}
CARD_API int cublasSetStream_v2(handle *h, void *stream) {
  h->object.stream = stream;
  return SUCCESS;
}
CARD_API int cublasGetStream_v2(handle *h, void **stream) {
  *stream = h->object.stream;
  return SUCCESS;
}
/* The workspace is the caller's memory: the card needs none. */
CARD_API int cublasSetWorkspace_v2(handle *h, void *workspace, size_t bytes) {
  (void)h, (void)workspace, (void)bytes;
  return SUCCESS;
}
CARD_API int cublasSetPointerMode_v2(handle *h, int mode) {
  h->pointer_mode = mode;
  return SUCCESS;
}
CARD_API int cublasGetPointerMode_v2(handle *h, int *mode) {
  *mode = h->pointer_mode;
  return SUCCESS;
}
CARD_API int cublasSetMathMode(handle *h, int mode) {
  h->math_mode = mode;
  return SUCCESS;
}
CARD_API int cublasGetMathMode(handle *h, int *mode) {
  *mode = h->math_mode;
  return SUCCESS;
}
CARD_API int cublasSetSmCountTarget(handle *h, int count) {
  h->sm_count_target = count;
  return SUCCESS;
}
CARD_API int cublasGetSmCountTarget(handle *h, int *count) {
  *count = h->sm_count_target;
  return SUCCESS;
}

CARD_API int cublasGetVersion_v2(handle *h, int *version) {
  (void)h;
  *version = library_version_of_cublas();
  return SUCCESS;
}
CARD_API int cublasGetProperty(int part, int *value) {
  int version = library_version_of_cublas(), parts[] = {version / 10000, version / 100 % 100, version % 100};
  if (part < 0 || part > 2 || !value) return INVALID_VALUE;
  *value = parts[part];
  return SUCCESS;
}
CARD_API size_t cublasGetCudartVersion(void) { return (size_t)library_version_of_toolkit() / 100 * 10; }

CARD_API const char *cublasGetStatusName(int status) {
  switch (status) {
    case 0: return "CUBLAS_STATUS_SUCCESS";
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11: return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case 16: return "CUBLAS_STATUS_LICENSE_ERROR";
    default: return "CUBLAS_STATUS_UNKNOWN";
  }
}
CARD_API const char *cublasGetStatusString(int status) {
  return status ? "the virtual card does not support this call of cuBLAS" : "success";
}

/* Copies: elements `step` apart, columns `lead` elements apart. */
static int copy_elements(int64_t count, int64_t bytes, const void *from, int64_t from_step, void *to, int64_t to_step,
                         void *stream) {
  if (from_step == 1 && to_step == 1) return card_copy(to, from, (size_t)(count * bytes), stream) ? INVALID_VALUE : SUCCESS;
  for (int64_t i = 0; i < count; i++)
    if (card_copy((char *)to + i * to_step * bytes, (const char *)from + i * from_step * bytes, (size_t)bytes, stream))
      return INVALID_VALUE;
  return SUCCESS;
}
static int copy_columns(int64_t rows, int64_t columns, int64_t bytes, const void *from, int64_t from_lead, void *to,
                        int64_t to_lead, void *stream) {
  for (int64_t i = 0; i < columns; i++)
    if (card_copy((char *)to + i * to_lead * bytes, (const char *)from + i * from_lead * bytes, (size_t)(rows * bytes), stream))
      return INVALID_VALUE;
  return SUCCESS;
}
#define COPIES(name, suffix, integer)                                                                                   \
  CARD_API int cublas##name##Vector##suffix(integer n, integer bytes, const void *x, integer incx, void *y, integer incy) {   \
    return copy_elements(n, bytes, x, incx, y, incy, NULL);                                                              \
  }                                                                                                                      \
  CARD_API int cublas##name##VectorAsync##suffix(integer n, integer bytes, const void *x, integer incx, void *y,              \
                                            integer incy, void *stream) {                                                \
    return copy_elements(n, bytes, x, incx, y, incy, stream);                                                            \
  }                                                                                                                      \
  CARD_API int cublas##name##Matrix##suffix(integer rows, integer columns, integer bytes, const void *a, integer lda,         \
                                       void *b, integer ldb) {                                                           \
    return copy_columns(rows, columns, bytes, a, lda, b, ldb, NULL);                                                     \
  }                                                                                                                      \
  CARD_API int cublas##name##MatrixAsync##suffix(integer rows, integer columns, integer bytes, const void *a, integer lda,    \
                                            void *b, integer ldb, void *stream) {                                        \
    return copy_columns(rows, columns, bytes, a, lda, b, ldb, stream);                                                   \
  }
COPIES(Set, , int)
COPIES(Get, , int)
COPIES(Set, _64, int64_t)
COPIES(Get, _64, int64_t)
