/* cuSPARSELt: 2:4 structured sparsity. The caller holds every record; each is 512 bytes, of which we use the first. */
#include "libraries/library.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 3 };

typedef struct {
  int64_t rows, columns, lead;
  int type, order;
} matrix;

CARD_API int cusparseLtInit(library_object *handle) {
  if (card_enter()) return NOT_INITIALIZED;
  memset(handle, 0, sizeof *handle);
  return SUCCESS;
}
CARD_API int cusparseLtGetVersion(const void *handle, int *version) {
  (void)handle;
  *version = library_version("nvidia-cusparselt-cu", 801);
  return SUCCESS;
}
CARD_API int cusparseLtGetProperty(int part, int *value) {
  int version = library_version("nvidia-cusparselt-cu", 801);
  int parts[] = {version / 10000, version / 100 % 100, version % 100};
  if (part < 0 || part > 2 || !value) return INVALID_VALUE;
  *value = parts[part];
  return SUCCESS;
}
const char *cusparseGetErrorName(int status);
const char *cusparseGetErrorString(int status);
CARD_API const char *cusparseLtGetErrorName(int status) { return cusparseGetErrorName(status); }
CARD_API const char *cusparseLtGetErrorString(int status) { return cusparseGetErrorString(status); }

CARD_API int cusparseLtDenseDescriptorInit(const void *handle, matrix *m, int64_t rows, int64_t columns, int64_t lead,
                                           uint32_t alignment, int type, int order) {
  (void)handle, (void)alignment;
  *m = (matrix){rows, columns, lead, type, order};
  return SUCCESS;
}
CARD_API int cusparseLtStructuredDescriptorInit(const void *handle, matrix *m, int64_t rows, int64_t columns, int64_t lead,
                                                uint32_t alignment, int type, int order, int sparsity) {
  (void)sparsity;
  return cusparseLtDenseDescriptorInit(handle, m, rows, columns, lead, alignment, type, order);
}

/* Two of four values remain, and two bits for the place of each: of 16-bit values 9/16 of the dense size, of 8-bit ones
 * 10/16. Of 32-bit values one of two remains with as many bits: 9/16 as well (torch, compression_factor of _cslt). */
CARD_API int cusparseLtSpMMACompressedSize2(const void *handle, const matrix *m, size_t *bytes, size_t *buffer_bytes) {
  size_t element = library_type_bytes(m->type), dense = (size_t)m->rows * (size_t)m->columns * element;
  (void)handle;
  *bytes = dense / 16 * (element == 1 ? 10 : 9);
  *buffer_bytes = 0;
  return SUCCESS;
}
