/* CUPTI: absent. torch's profiler then records the host only, and says so once. */
#include "libraries/library.h"

enum { MAX_LIMIT_REACHED = 12, NOT_INITIALISED = 15 };

CARD_API int cuptiGetVersion(uint32_t *version) {
  *version = (uint32_t)library_version_of_toolkit();
  return 0;
}
CARD_API int cuptiGetResultString(int result, const char **text) {
  *text = result ? "the virtual card has no CUPTI" : "CUPTI_SUCCESS";
  return 0;
}
CARD_API int cuptiSubscribe(void **subscriber, void *callback, void *argument) {
  (void)callback, (void)argument;
  *subscriber = NULL;
  card_unsupported("cuptiSubscribe");
  return NOT_INITIALISED;
}
CARD_API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t bytes, void **record) {
  (void)buffer, (void)bytes;
  *record = NULL;
  return MAX_LIMIT_REACHED;
}
