/* cuSPARSE: handles and descriptors of matrices and vectors. What computes stands in names/cusparse.txt. */
#include "libraries/library.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 2, INVALID_VALUE = 3 };
enum { CSR = 1, CSC = 2, COO = 3, BLOCKED_ELL = 5, BSR = 6, SLICED_ELL = 7, DENSE, VECTOR, PLAIN };

typedef struct {
  library_object object; /* values: the array of values */
  int64_t rows, columns, entries, lead;
  void *offsets, *indices;
  int offset_type, index_type, base, value_type, order;
  int is_result; /* of a product whose number of entries only the card would know */
} matrix;

typedef struct {
  library_object object;
  int pointer_mode;
} handle;

CARD_API int cusparseCreate(handle **out) {
  if (card_enter()) return NOT_INITIALIZED;
  *out = library_new(sizeof **out);
  return *out ? SUCCESS : ALLOC_FAILED;
}
CARD_API int cusparseDestroy(handle *h) {
  free(h);
  return SUCCESS;
}
CARD_API int cusparseSetStream(handle *h, void *stream) {
  h->object.stream = stream;
  return SUCCESS;
}
CARD_API int cusparseGetStream(handle *h, void **stream) {
  *stream = h->object.stream;
  return SUCCESS;
}
CARD_API int cusparseSetPointerMode(handle *h, int mode) {
  h->pointer_mode = mode;
  return SUCCESS;
}
CARD_API int cusparseGetPointerMode(handle *h, int *mode) {
  *mode = h->pointer_mode;
  return SUCCESS;
}
CARD_API int cusparseGetVersion(void *h, int *version) {
  (void)h;
  *version = 12700;
  return SUCCESS;
}
CARD_API int cusparseGetProperty(int part, int *value) {
  static const int parts[] = {12, 7, 0};
  if (part < 0 || part > 2 || !value) return INVALID_VALUE;
  *value = parts[part];
  return SUCCESS;
}
CARD_API const char *cusparseGetErrorName(int status) {
  return status == SUCCESS ? "CUSPARSE_STATUS_SUCCESS" : status == 10 ? "CUSPARSE_STATUS_NOT_SUPPORTED" : "CUSPARSE_STATUS_UNKNOWN";
}
CARD_API const char *cusparseGetErrorString(int status) {
  return status ? "the virtual card does not support this call of cuSPARSE" : "success";
}

static int create(matrix **out, uint32_t kind) {
  *out = library_new(sizeof **out);
  if (!*out) return ALLOC_FAILED;
  (*out)->object.kind = kind;
  return SUCCESS;
}
static int destroy(matrix *m) {
  free(m);
  return SUCCESS;
}
static int create_sparse(matrix **out, uint32_t kind, int64_t rows, int64_t columns, int64_t entries, void *offsets,
                         void *indices, void *values, int offset_type, int index_type, int base, int value_type) {
  if (create(out, kind)) return ALLOC_FAILED;
  matrix *m = *out;
  m->rows = rows, m->columns = columns, m->entries = entries;
  m->offsets = offsets, m->indices = indices, m->object.values = values;
  m->offset_type = offset_type, m->index_type = index_type, m->base = base, m->value_type = value_type;
  return SUCCESS;
}

/* Each maker exists twice: for a matrix that may be written, and for one that is only read. */
#define COMPRESSED(name, kind)                                                                                         \
  CARD_API int cusparseCreate##name(matrix **out, int64_t rows, int64_t columns, int64_t entries, void *offsets,            \
                               void *indices, void *values, int offset_type, int index_type, int base,                 \
                               int value_type) {                                                                       \
    return create_sparse(out, kind, rows, columns, entries, offsets, indices, values, offset_type, index_type, base,   \
                         value_type);                                                                                  \
  }
COMPRESSED(Csr, CSR)
COMPRESSED(ConstCsr, CSR)
COMPRESSED(Csc, CSC)
COMPRESSED(ConstCsc, CSC)
#define COORDINATES(name)                                                                                              \
  CARD_API int cusparseCreate##name(matrix **out, int64_t rows, int64_t columns, int64_t entries, void *row_indices,        \
                               void *column_indices, void *values, int index_type, int base, int value_type) {         \
    return create_sparse(out, COO, rows, columns, entries, row_indices, column_indices, values, index_type,            \
                         index_type, base, value_type);                                                                \
  }
COORDINATES(Coo)
COORDINATES(ConstCoo)
#define BLOCKS(name)                                                                                                   \
  CARD_API int cusparseCreate##name(matrix **out, int64_t rows, int64_t columns, int64_t blocks, int64_t block_rows,        \
                               int64_t block_columns, void *offsets, void *indices, void *values, int offset_type,     \
                               int index_type, int base, int value_type, int order) {                                  \
    int status = create_sparse(out, BSR, rows * block_rows, columns * block_columns,                                   \
                               blocks * block_rows * block_columns, offsets, indices, values, offset_type, index_type, \
                               base, value_type);                                                                      \
    if (!status) (*out)->order = order;                                                                                \
    return status;                                                                                                     \
  }
BLOCKS(Bsr)
BLOCKS(ConstBsr)
#define SPARSE_VECTOR(name)                                                                                            \
  CARD_API int cusparseCreate##name(matrix **out, int64_t size, int64_t entries, void *indices, void *values,               \
                               int index_type, int base, int value_type) {                                             \
    return create_sparse(out, VECTOR, size, 1, entries, NULL, indices, values, 0, index_type, base, value_type);       \
  }
SPARSE_VECTOR(SpVec)
SPARSE_VECTOR(ConstSpVec)
#define DENSE_MATRIX(name)                                                                                             \
  CARD_API int cusparseCreate##name(matrix **out, int64_t rows, int64_t columns, int64_t lead, void *values,                \
                               int value_type, int order) {                                                            \
    if (create_sparse(out, DENSE, rows, columns, rows * columns, NULL, NULL, values, 0, 0, 0, value_type))             \
      return ALLOC_FAILED;                                                                                             \
    (*out)->lead = lead, (*out)->order = order;                                                                        \
    return SUCCESS;                                                                                                    \
  }
DENSE_MATRIX(DnMat)
DENSE_MATRIX(ConstDnMat)
#define DENSE_VECTOR(name)                                                                                             \
  CARD_API int cusparseCreate##name(matrix **out, int64_t size, void *values, int value_type) {                             \
    return create_sparse(out, VECTOR, size, 1, size, NULL, NULL, values, 0, 0, 0, value_type);                         \
  }
DENSE_VECTOR(DnVec)
DENSE_VECTOR(ConstDnVec)

/* Records without an array: kinds of matrices of the older interface, and states of analyses. */
#define PLAIN_RECORD(maker, destroyer)                                       \
  CARD_API int cusparse##maker(matrix **out) { return create(out, PLAIN); }       \
  CARD_API int cusparse##destroyer(matrix *m) { return destroy(m); }
PLAIN_RECORD(CreateMatDescr, DestroyMatDescr)
PLAIN_RECORD(CreateBsrsv2Info, DestroyBsrsv2Info)
PLAIN_RECORD(CreateBsrsm2Info, DestroyBsrsm2Info)
PLAIN_RECORD(SpSV_createDescr, SpSV_destroyDescr)
PLAIN_RECORD(SpSM_createDescr, SpSM_destroyDescr)
PLAIN_RECORD(SpGEMM_createDescr, SpGEMM_destroyDescr)
CARD_API int cusparseDestroySpMat(matrix *m) { return destroy(m); }
CARD_API int cusparseDestroySpVec(matrix *m) { return destroy(m); }
CARD_API int cusparseDestroyDnMat(matrix *m) { return destroy(m); }
CARD_API int cusparseDestroyDnVec(matrix *m) { return destroy(m); }

static int set_pointers(matrix *m, void *offsets, void *indices, void *values) {
  m->offsets = offsets, m->indices = indices, m->object.values = values;
  return SUCCESS;
}
CARD_API int cusparseCsrSetPointers(matrix *m, void *offsets, void *columns, void *values) {
  return set_pointers(m, offsets, columns, values);
}
CARD_API int cusparseCscSetPointers(matrix *m, void *offsets, void *rows, void *values) {
  return set_pointers(m, offsets, rows, values);
}
CARD_API int cusparseCooSetPointers(matrix *m, void *rows, void *columns, void *values) {
  return set_pointers(m, rows, columns, values);
}
#define VALUES(name)                                           \
  CARD_API int cusparse##name##GetValues(matrix *m, void **values) { \
    *values = m->object.values;                                \
    return SUCCESS;                                            \
  }                                                            \
  CARD_API int cusparse##name##SetValues(matrix *m, void *values) {  \
    m->object.values = values;                                 \
    return SUCCESS;                                            \
  }
VALUES(SpMat)
VALUES(SpVec)
VALUES(DnMat)
VALUES(DnVec)

/* A result that was made without entries gets its number from a computation on the card, which nobody knows. */
CARD_API int cusparseSpMatGetSize(const matrix *m, int64_t *rows, int64_t *columns, int64_t *entries) {
  *rows = m->rows, *columns = m->columns, *entries = m->entries;
  if (m->is_result) card_answer_unknown(entries, sizeof *entries);
  return SUCCESS;
}
CARD_API int cusparseSpMatGetFormat(const matrix *m, int *format) {
  *format = (int)m->object.kind;
  return SUCCESS;
}
CARD_API int cusparseSpMatGetIndexBase(const matrix *m, int *base) {
  *base = m->base;
  return SUCCESS;
}
CARD_API int cusparseSpGEMM_compute(handle *h, int op_a, int op_b, const void *alpha, const void *a, const void *b,
                               const void *beta, matrix *c, int compute_type, int algorithm, void *state, size_t *bytes,
                               void *buffer) {
  (void)op_a, (void)op_b, (void)alpha, (void)a, (void)b, (void)beta, (void)compute_type, (void)algorithm, (void)state;
  if (!buffer) { /* the first of two calls asks for the size */
    library_unknown_workspace("cusparseSpGEMM_compute");
    if (bytes) *bytes = 0;
  }
  c->is_result = c->entries == 0;
  card_launched(h->object.stream);
  return SUCCESS;
}
