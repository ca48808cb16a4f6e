/* cuSPARSE: descriptors of matrices and vectors. cuSPARSELt: 2:4 structured sparsity, whose records the caller holds;
 * each is 512 bytes, of which we use the first. What computes, and handles, stand in names/cusparse.txt. */
#include "libraries/library.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1 };

typedef struct {
  library_object object; /* values: the array of values */
  int64_t rows, columns, entries;
  int format, base;
  int is_result; /* of a product whose number of entries only the card would know */
} matrix;

int cusparse_create(void *out, int format, int64_t rows, int64_t columns, int64_t entries, void *values, int base) {
  matrix *m;
  if (library_create(&m)) return NOT_INITIALIZED;
  m->format = format, m->rows = rows, m->columns = columns, m->entries = entries;
  m->object.values = values, m->base = base;
  memcpy(out, &m, sizeof m);
  return SUCCESS;
}

CARD_API const char *cusparseGetErrorName(int status) {
  return status == SUCCESS ? "CUSPARSE_STATUS_SUCCESS" : status == 10 ? "CUSPARSE_STATUS_NOT_SUPPORTED" : "CUSPARSE_STATUS_UNKNOWN";
}
CARD_API const char *cusparseGetErrorString(int status) {
  return status ? "the virtual card does not support this call of cuSPARSE" : "success";
}

/* A result that was made without entries gets its number from a computation on the card, which nobody knows. */
CARD_API int cusparseSpMatGetSize(const matrix *m, int64_t *rows, int64_t *columns, int64_t *entries) {
  *rows = m->rows, *columns = m->columns, *entries = m->entries;
  if (m->is_result) card_answer_unknown(entries, sizeof *entries);
  return SUCCESS;
}
CARD_API int cusparseSpMatGetFormat(const matrix *m, int *format) {
  *format = m->format;
  return SUCCESS;
}
CARD_API int cusparseSpMatGetIndexBase(const matrix *m, int *base) {
  *base = m->base;
  return SUCCESS;
}
CARD_API int cusparseSpGEMM_compute(void *handle, int op_a, int op_b, const void *alpha, const void *a, const void *b,
                                    const void *beta, matrix *c, int compute_type, int algorithm, void *state,
                                    size_t *bytes, void *buffer) {
  (void)op_a, (void)op_b, (void)alpha, (void)a, (void)b, (void)beta, (void)compute_type, (void)algorithm, (void)state;
  if (!buffer) { /* the first of two calls asks for the size */
    card_unknown_workspace("cusparseSpGEMM_compute");
    if (bytes) *bytes = 0;
  }
  c->is_result = c->entries == 0;
  card_launched(library_stream(handle));
  return SUCCESS;
}

/* ---- cuSPARSELt */

typedef struct {
  int64_t rows, columns;
  int type;
} structured;

CARD_API int cusparseLtInit(library_object *handle) {
  if (card_enter()) return NOT_INITIALIZED;
  memset(handle, 0, sizeof *handle);
  return SUCCESS;
}

CARD_API int cusparseLtDenseDescriptorInit(const void *handle, structured *m, int64_t rows, int64_t columns,
                                           int64_t lead, uint32_t alignment, int type, int order) {
  (void)handle, (void)lead, (void)alignment, (void)order;
  *m = (structured){rows, columns, type};
  return SUCCESS;
}
CARD_API int cusparseLtStructuredDescriptorInit(const void *handle, structured *m, int64_t rows, int64_t columns,
                                                int64_t lead, uint32_t alignment, int type, int order, int sparsity) {
  (void)sparsity;
  return cusparseLtDenseDescriptorInit(handle, m, rows, columns, lead, alignment, type, order);
}

/* Two of four values remain, and two bits for the place of each: of 16-bit values 9/16 of the dense size, of 8-bit ones
 * 10/16. Of 32-bit values one of two remains with as many bits: 9/16 as well (torch, compression_factor of _cslt). */
CARD_API int cusparseLtSpMMACompressedSize2(const void *handle, const structured *m, size_t *bytes,
                                            size_t *buffer_bytes) {
  size_t element = library_type_bytes(m->type), dense = (size_t)m->rows * (size_t)m->columns * element;
  (void)handle;
  *bytes = dense / 16 * (element == 1 ? 10 : 9);
  *buffer_bytes = 0;
  return SUCCESS;
}
