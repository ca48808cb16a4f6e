/* cuSOLVER: handles and records of settings. Factorisations and their workspaces stand in names/cusolver.txt. */
#include "libraries/library.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 2, INVALID_VALUE = 3 };

static int create(library_object **out) {
  *out = library_new(sizeof **out);
  return *out ? SUCCESS : ALLOC_FAILED;
}
static int destroy(library_object *object) {
  free(object);
  return SUCCESS;
}
#define RECORD(maker, destroyer)                                              \
  CARD_API int cusolver##maker(library_object **out) { return create(out); }       \
  CARD_API int cusolver##destroyer(library_object *object) { return destroy(object); }
CARD_API int cusolverDnCreate(library_object **out) { return card_enter() ? NOT_INITIALIZED : create(out); }
CARD_API int cusolverDnDestroy(library_object *handle) { return destroy(handle); }
RECORD(DnCreateParams, DnDestroyParams)
RECORD(DnCreateSyevjInfo, DnDestroySyevjInfo)
RECORD(DnCreateGesvdjInfo, DnDestroyGesvdjInfo)

CARD_API int cusolverDnSetStream(library_object *handle, void *stream) {
  handle->stream = stream;
  return SUCCESS;
}
CARD_API int cusolverDnGetStream(library_object *handle, void **stream) {
  *stream = handle->stream;
  return SUCCESS;
}
CARD_API int cusolverGetVersion(int *version) {
  *version = 12200;
  return SUCCESS;
}
CARD_API int cusolverGetProperty(int part, int *value) {
  static const int parts[] = {12, 2, 0};
  if (part < 0 || part > 2 || !value) return INVALID_VALUE;
  *value = parts[part];
  return SUCCESS;
}
