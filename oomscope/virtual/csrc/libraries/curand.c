/* cuRAND: generators of the host interface. A generator that fills host memory is refused: its numbers would be wrong. */
#include "libraries/library.h"

enum { SUCCESS = 0, ALLOC_FAILED = 102, OUT_OF_RANGE = 104, INITIALIZATION_FAILED = 203 };

CARD_API int curandCreateGenerator(library_object **out, int type) {
  (void)type;
  if (card_enter()) return INITIALIZATION_FAILED;
  *out = library_new(sizeof **out);
  return *out ? SUCCESS : ALLOC_FAILED;
}
CARD_API int curandDestroyGenerator(library_object *generator) {
  free(generator);
  return SUCCESS;
}
CARD_API int curandSetStream(library_object *generator, void *stream) {
  generator->stream = stream;
  return SUCCESS;
}
CARD_API int curandGetVersion(int *version) {
  *version = 10400;
  return SUCCESS;
}
CARD_API int curandGetProperty(int part, int *value) {
  static const int parts[] = {10, 4, 0};
  if (part < 0 || part > 2 || !value) return OUT_OF_RANGE;
  *value = parts[part];
  return SUCCESS;
}
