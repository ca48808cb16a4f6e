/* NVSHMEM: never initialised on the virtual card. What answers a pointer or a plain question stands here. */
#include "libraries/library.h"

CARD_API int nvshmemid_init_status(void) { return 0; }
CARD_API void nvshmem_info_get_version(int *major, int *minor) { *major = 3, *minor = 7; }
CARD_API void *nvshmem_malloc(size_t bytes) {
  (void)bytes;
  card_unsupported("nvshmem_malloc");
  return NULL;
}
CARD_API void *nvshmem_ptr(const void *pointer, int rank) {
  (void)pointer, (void)rank;
  card_unsupported("nvshmem_ptr");
  return NULL;
}
CARD_API void *nvshmemx_mc_ptr(int team, const void *pointer) {
  (void)team, (void)pointer;
  card_unsupported("nvshmemx_mc_ptr");
  return NULL;
}
