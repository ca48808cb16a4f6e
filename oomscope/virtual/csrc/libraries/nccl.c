/* NCCL: communicators, and collectives that answer as if every rank held what this one holds.
 *
 * One process plays one rank; nothing is sent. So a gather repeats this rank's data, and what another rank would send is
 * unknown. Buffers that a real NCCL allocates for itself are not modelled. */
#include "libraries/library.h"

enum { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4 };
enum { NEWEST_VERSION = 23007 };

typedef struct {
  int rank, size, device;
} communicator;
typedef struct {
  char bytes[128];
} unique_id;

/* Since NCCL 2.9 the number is made as library_version makes it. */
CARD_API int ncclGetVersion(int *version) {
  *version = library_version("nvidia-nccl-cu", NEWEST_VERSION);
  return SUCCESS;
}
CARD_API int ncclGetUniqueId(unique_id *id) {
  memset(id, 1, sizeof *id);
  return SUCCESS;
}
CARD_API int ncclCommGetUniqueId(communicator *c, unique_id *id) {
  (void)c;
  return ncclGetUniqueId(id);
}
CARD_API const char *ncclGetErrorString(int status) {
  return status ? "the virtual card does not support this call of NCCL" : "no error";
}
CARD_API const char *ncclGetLastError(communicator *c) {
  (void)c;
  return "";
}

static int create(communicator **out, int size, int rank) {
  if (size < 1 || rank < 0 || rank >= size) return INVALID_ARGUMENT;
  if (card_enter()) return CUDA_ERROR;
  *out = calloc(1, sizeof **out);
  if (!*out) return SYSTEM_ERROR;
  (*out)->size = size, (*out)->rank = rank, (*out)->device = card_current_device();
  return SUCCESS;
}
static int destroy(communicator *c) {
  free(c);
  return SUCCESS;
}
CARD_API int ncclCommInitRank(communicator **out, int size, unique_id id, int rank) {
  (void)id;
  return create(out, size, rank);
}
CARD_API int ncclCommInitRankConfig(communicator **out, int size, unique_id id, int rank, void *config) {
  (void)id, (void)config;
  return create(out, size, rank);
}
CARD_API int ncclCommInitRankScalable(communicator **out, int size, int rank, int ids, unique_id *id, void *config) {
  (void)ids, (void)id, (void)config;
  return create(out, size, rank);
}
CARD_API int ncclCommInitAll(communicator **out, int size, const int *devices) {
  for (int rank = 0; rank < size; rank++) {
    int status = create(out + rank, size, rank);
    if (status) return status;
    out[rank]->device = devices ? devices[rank] : rank;
  }
  return SUCCESS;
}
/* Which ranks join is not known here: all of them, in their order. */
CARD_API int ncclCommSplit(communicator *c, int colour, int key, communicator **out, void *config) {
  (void)key, (void)config;
  *out = NULL;
  return colour < 0 ? SUCCESS : create(out, c->size, c->rank);
}
CARD_API int ncclCommShrink(communicator *c, int *excluded, int count, communicator **out, void *config, int flags) {
  int rank = c->rank;
  (void)config, (void)flags;
  for (int i = 0; i < count; i++) rank -= excluded[i] < c->rank;
  return create(out, c->size - count, rank);
}
CARD_API int ncclCommGrow(communicator *c, int size, const unique_id *id, int rank, communicator **out, void *config) {
  (void)id, (void)config;
  return create(out, size, c ? c->rank : rank);
}
CARD_API int ncclCommDestroy(communicator *c) { return destroy(c); }
CARD_API int ncclCommAbort(communicator *c) { return destroy(c); }
CARD_API int ncclCommFinalize(communicator *c) {
  (void)c;
  return SUCCESS;
}
CARD_API int ncclCommGetAsyncError(communicator *c, int *status) {
  (void)c;
  *status = SUCCESS;
  return SUCCESS;
}
CARD_API int ncclCommCount(const communicator *c, int *size) {
  *size = c->size;
  return SUCCESS;
}
CARD_API int ncclCommUserRank(const communicator *c, int *rank) {
  *rank = c->rank;
  return SUCCESS;
}
CARD_API int ncclCommCuDevice(const communicator *c, int *device) {
  *device = c->device;
  return SUCCESS;
}
CARD_API int ncclGroupStart(void) { return SUCCESS; }
CARD_API int ncclGroupEnd(void) { return SUCCESS; }
CARD_API int ncclGroupSimulateEnd(void *information) {
  (void)information;
  return SUCCESS;
}
CARD_API int ncclMemAlloc(void **pointer, size_t bytes) { return card_malloc(pointer, bytes) ? CUDA_ERROR : SUCCESS; }
CARD_API int ncclMemFree(void *pointer) { return card_free(pointer) ? CUDA_ERROR : SUCCESS; }
/* A registration or window stands for its buffer. */
CARD_API int ncclCommRegister(const communicator *c, void *buffer, size_t bytes, void **registration) {
  (void)c, (void)bytes;
  *registration = buffer;
  return SUCCESS;
}
CARD_API int ncclCommDeregister(const communicator *c, void *registration) {
  (void)c, (void)registration;
  return SUCCESS;
}
CARD_API int ncclCommWindowRegister(communicator *c, void *buffer, size_t bytes, void **window, int flags) {
  (void)c, (void)bytes, (void)flags;
  *window = buffer;
  return SUCCESS;
}
CARD_API int ncclCommWindowDeregister(communicator *c, void *window) {
  (void)c, (void)window;
  return SUCCESS;
}
CARD_API int ncclWinGetUserPtr(communicator *c, void *window, void **buffer) {
  (void)c;
  *buffer = window;
  return SUCCESS;
}
enum { OWN_OPERATION = 5 }; /* the first number behind NCCL's own */
CARD_API int ncclRedOpCreatePreMulSum(int *operation, void *scalar, int type, int residence, communicator *c) {
  (void)scalar, (void)type, (void)residence, (void)c;
  *operation = OWN_OPERATION;
  return SUCCESS;
}
CARD_API int ncclRedOpDestroy(int operation, communicator *c) {
  (void)operation, (void)c;
  return SUCCESS;
}

/* int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, two 8-bit floats */
static size_t bytes_of(size_t count, int type) {
  static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < (int)sizeof bytes ? count * bytes[type] : 0;
}
static int copy(void *to, const void *from, size_t bytes, void *stream) {
  card_launched(stream);
  return to == from || !card_copy(to, from, bytes, stream) ? SUCCESS : CUDA_ERROR;
}
/* A sum of one rank is its data; of more it is unknown. */
static int reduce(void *to, const void *from, size_t bytes, const communicator *c, void *stream) {
  int status = copy(to, from, bytes, stream);
  if (c->size > 1) card_written(to);
  return status;
}
CARD_API int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, communicator *c, void *stream) {
  (void)operation;
  return reduce(to, from, bytes_of(count, type), c, stream);
}
CARD_API int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root, communicator *c,
                        void *stream) {
  (void)operation;
  if (root == c->rank) return reduce(to, from, bytes_of(count, type), c, stream);
  card_launched(stream);
  return SUCCESS;
}
CARD_API int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, communicator *c,
                               void *stream) {
  size_t bytes = bytes_of(count, type);
  (void)operation;
  return reduce(to, (const char *)from + (size_t)c->rank * bytes, bytes, c, stream);
}
CARD_API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, communicator *c, void *stream) {
  if (root == c->rank) return copy(to, from, bytes_of(count, type), stream);
  card_launched(stream);
  card_written(to);
  return SUCCESS;
}
CARD_API int ncclBcast(void *buffer, size_t count, int type, int root, communicator *c, void *stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, c, stream);
}
static int repeat(void *to, const void *from, size_t bytes, const communicator *c, void *stream) {
  card_launched(stream);
  for (int rank = 0; rank < c->size; rank++) {
    char *slot = (char *)to + (size_t)rank * bytes;
    if (slot != from && card_copy(slot, from, bytes, stream)) return CUDA_ERROR;
  }
  return SUCCESS;
}
CARD_API int ncclAllGather(const void *from, void *to, size_t count, int type, communicator *c, void *stream) {
  return repeat(to, from, bytes_of(count, type), c, stream);
}
CARD_API int ncclGather(const void *from, void *to, size_t count, int type, int root, communicator *c, void *stream) {
  if (root == c->rank) return repeat(to, from, bytes_of(count, type), c, stream);
  card_launched(stream);
  return SUCCESS;
}
CARD_API int ncclScatter(const void *from, void *to, size_t count, int type, int root, communicator *c, void *stream) {
  size_t bytes = bytes_of(count, type);
  if (root == c->rank) return copy(to, (const char *)from + (size_t)c->rank * bytes, bytes, stream);
  card_launched(stream);
  card_written(to);
  return SUCCESS;
}
/* Every rank sends what this one would: slot r of another rank for this one equals this rank's own slot. */
CARD_API int ncclAlltoAll(const void *from, void *to, size_t count, int type, communicator *c, void *stream) {
  size_t bytes = bytes_of(count, type);
  return repeat(to, (const char *)from + (size_t)c->rank * bytes, bytes, c, stream);
}
CARD_API int ncclSend(const void *from, size_t count, int type, int peer, communicator *c, void *stream) {
  (void)from, (void)count, (void)type, (void)peer, (void)c;
  card_launched(stream);
  return SUCCESS;
}
CARD_API int ncclRecv(void *to, size_t count, int type, int peer, communicator *c, void *stream) {
  (void)count, (void)type, (void)peer, (void)c;
  card_launched(stream);
  card_written(to);
  return SUCCESS;
}
