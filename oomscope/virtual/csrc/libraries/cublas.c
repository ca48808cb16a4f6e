/* cuBLAS: copies of vectors and matrices. cuBLASLt: descriptors that give back what was set, one algorithm without
 * workspace, and the product itself. Handles, and what else computes, stand in names/cublas.txt. */
#include "libraries/library.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7 };

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

/* ---- cuBLASLt */

enum { ATTRIBUTES = 48, ATTRIBUTE_BYTES = 16 };

/* What a descriptor was told: by number, as bytes. What was never set reads as zero. */
typedef struct {
  struct {
    uint8_t size;
    char value[ATTRIBUTE_BYTES];
  } of[ATTRIBUTES];
} attributes;

/* The caller may hold descriptors on the stack (…Init_internal): they only point at what they were told. */
typedef struct {
  attributes *told;
} descriptor;

/* The two results below are read by the caller, field by field: 64 bytes of algorithm, then what it needs. */
typedef struct {
  uint64_t data[8];
} algorithm;
typedef struct {
  algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
} heuristic;

static int set(attributes *told, unsigned number, const void *value, size_t size) {
  if (!told || number >= ATTRIBUTES || size > ATTRIBUTE_BYTES || !value) return INVALID_VALUE;
  memcpy(told->of[number].value, value, size);
  told->of[number].size = (uint8_t)size;
  return SUCCESS;
}
static int get(const attributes *told, unsigned number, void *value, size_t size, size_t *written) {
  if (!told || number >= ATTRIBUTES) return INVALID_VALUE;
  size_t has = told->of[number].size ? told->of[number].size : size;
  if (written) *written = has;
  if (!value || !size) return SUCCESS;
  if (size < has) return INVALID_VALUE;
  memset(value, 0, size);
  memcpy(value, told->of[number].value, told->of[number].size);
  return SUCCESS;
}
static int begin(descriptor *d) {
  d->told = calloc(1, sizeof *d->told);
  return d->told ? SUCCESS : ALLOC_FAILED;
}
static int create(descriptor **out) {
  *out = calloc(1, sizeof **out);
  if (*out && !begin(*out)) return SUCCESS;
  free(*out);
  return ALLOC_FAILED;
}
static int destroy(descriptor *d) {
  if (d) free(d->told);
  free(d);
  return SUCCESS;
}

#define DESCRIPTOR(name)                                                                                               \
  CARD_API int cublasLt##name##Destroy(descriptor *d) { return destroy(d); }                                                \
  CARD_API int cublasLt##name##SetAttribute(descriptor *d, unsigned number, const void *value, size_t size) {               \
    return set(d->told, number, value, size);                                                                          \
  }                                                                                                                    \
  CARD_API int cublasLt##name##GetAttribute(descriptor *d, unsigned number, void *value, size_t size, size_t *written) {    \
    return get(d->told, number, value, size, written);                                                                 \
  }
DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatmulPreference)
DESCRIPTOR(MatrixLayout)

static int tell_product(descriptor *d, int compute_type, int scale_type) {
  set(d->told, 0, &compute_type, sizeof compute_type);
  return set(d->told, 1, &scale_type, sizeof scale_type);
}
static int tell_layout(descriptor *d, int type, uint64_t rows, uint64_t columns, int64_t lead) {
  int32_t one = 1;
  set(d->told, 0, &type, sizeof type);
  set(d->told, 2, &rows, sizeof rows);
  set(d->told, 3, &columns, sizeof columns);
  set(d->told, 5, &one, sizeof one);
  return set(d->told, 4, &lead, sizeof lead);
}
CARD_API int cublasLtMatmulDescCreate(descriptor **out, int compute_type, int scale_type) {
  int status = create(out);
  return status ? status : tell_product(*out, compute_type, scale_type);
}
CARD_API int cublasLtMatmulDescInit_internal(descriptor *d, size_t size, int compute_type, int scale_type) {
  int status = size < sizeof *d ? INVALID_VALUE : begin(d);
  return status ? status : tell_product(d, compute_type, scale_type);
}
CARD_API int cublasLtMatrixLayoutCreate(descriptor **out, int type, uint64_t rows, uint64_t columns, int64_t lead) {
  int status = create(out);
  return status ? status : tell_layout(*out, type, rows, columns, lead);
}
CARD_API int cublasLtMatrixLayoutInit_internal(descriptor *d, size_t size, int type, uint64_t rows, uint64_t columns,
                                          int64_t lead) {
  int status = size < sizeof *d ? INVALID_VALUE : begin(d);
  return status ? status : tell_layout(d, type, rows, columns, lead);
}
CARD_API int cublasLtMatmulPreferenceCreate(descriptor **out) { return create(out); }
CARD_API int cublasLtMatmulPreferenceInit_internal(descriptor *d, size_t size) {
  return size < sizeof *d ? INVALID_VALUE : begin(d);
}

/* The one algorithm: number 1, no workspace. The caller's workspace is allocated before this is asked, so that the size
 * that cuBLASLt would use of it changes nothing. */
enum { THE_ALGORITHM = 1 };

static void answer(heuristic *result) {
  memset(result, 0, sizeof *result);
  result->algorithm.data[0] = THE_ALGORITHM;
  result->waves = 1;
}
CARD_API int cublasLtMatmulAlgoGetHeuristic(void *lt, void *product, void *a, void *b, void *c, void *d, void *preference,
                                       int wanted, heuristic *results, int *count) {
  (void)lt, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
  if (wanted < 1 || !results || !count) return INVALID_VALUE;
  answer(results);
  *count = 1;
  return SUCCESS;
}
CARD_API int cublasLtMatmulAlgoInit(void *lt, int compute, int scale, int a, int b, int c, int d, int number, algorithm *out) {
  (void)lt, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
  memset(out, 0, sizeof *out);
  out->data[0] = (uint64_t)number;
  return SUCCESS;
}
CARD_API int cublasLtMatmulAlgoCheck(void *lt, void *product, void *a, void *b, void *c, void *d, const algorithm *chosen,
                                heuristic *result) {
  (void)lt, (void)product, (void)a, (void)b, (void)c, (void)d;
  answer(result);
  if (chosen) result->algorithm = *chosen;
  return SUCCESS;
}
/* An algorithm's settings: 32 bits each, behind its number. */
enum { SETTINGS = 14 };
CARD_API int cublasLtMatmulAlgoConfigSetAttribute(algorithm *a, unsigned number, const void *value, size_t size) {
  if (number >= SETTINGS || size > 4) return INVALID_VALUE;
  if (number) memcpy((char *)a->data + 4 * number, value, size);
  return SUCCESS;
}
CARD_API int cublasLtMatmulAlgoConfigGetAttribute(const algorithm *a, unsigned number, void *value, size_t size,
                                             size_t *written) {
  if (number >= SETTINGS) return INVALID_VALUE;
  if (written) *written = 4;
  if (!value || !size) return SUCCESS;
  if (size < 4) return INVALID_VALUE;
  memset(value, 0, size);
  memcpy(value, (const char *)a->data + 4 * number, 4);
  return SUCCESS;
}
CARD_API int cublasLtMatmul(void *lt, descriptor *product, const void *alpha, const void *a, void *a_layout, const void *b,
                       void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                       const algorithm *chosen, void *workspace, size_t workspace_bytes, void *stream) {
  /* Bias gradient, auxiliary output of the epilogue, largest magnitudes and scales of the results. */
  static const unsigned outputs[] = {8, 11, 21, 24, 36};
  (void)lt, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c, (void)c_layout;
  (void)d_layout, (void)chosen, (void)workspace_bytes;
  if (card_enter()) return NOT_INITIALIZED;
  card_launched(stream);
  library_written(d, 0);
  library_written(workspace, 0);
  for (size_t i = 0; product && i < sizeof outputs / sizeof *outputs; i++) {
    void *pointer = NULL;
    if (!get(product->told, outputs[i], &pointer, sizeof pointer, NULL)) library_written(pointer, 0);
  }
  return SUCCESS;
}
