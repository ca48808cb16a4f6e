/* cuFile: reads and writes, which answer a count of bytes. The rest is not supported. */
#include "libraries/library.h"

enum { CU_FILE_PLATFORM_NOT_SUPPORTED = 5007 };

/* A count of bytes, or an error below zero. */
CARD_API int64_t cuFileRead(void *handle, void *buffer, size_t bytes, int64_t file_at, int64_t buffer_at) {
  (void)handle, (void)buffer, (void)bytes, (void)file_at, (void)buffer_at;
  card_unsupported("cuFileRead");
  return -CU_FILE_PLATFORM_NOT_SUPPORTED;
}
CARD_API int64_t cuFileWrite(void *handle, const void *buffer, size_t bytes, int64_t file_at, int64_t buffer_at) {
  (void)handle, (void)buffer, (void)bytes, (void)file_at, (void)buffer_at;
  card_unsupported("cuFileWrite");
  return -CU_FILE_PLATFORM_NOT_SUPPORTED;
}
