/* The virtual card as its libraries see it: memory, work and notes.
 *
 * The core (driver, runtime, NVML) implements these functions; the stand-ins for cuBLAS, cuDNN, NCCL and the others
 * build on them. All are safe to call from any thread. Functions that return int return a CUDA status: 0 is success,
 * and the numbers are those of the driver and the runtime, which agree for the codes below.
 *
 * Device memory is address space without content: reading or writing through a device pointer on the host is a fault,
 * as on a real card. Go through card_copy and card_fill.
 */
#ifndef OOMSCOPE_CARD_H
#define OOMSCOPE_CARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define CARD_API extern "C" __attribute__((visibility("default")))
#else
#define CARD_API __attribute__((visibility("default")))
#endif
/* CARD_API stands before the definition of every function that leaves the library (cu*, nccl*, nvml*, ...). */

enum card_status {
  CARD_SUCCESS = 0,
  CARD_INVALID_VALUE = 1,
  CARD_OUT_OF_MEMORY = 2,
  CARD_NOT_INITIALIZED = 3, /* also: this process was forked from one that had used the card */
  CARD_NO_DEVICE = 100,
  CARD_INVALID_DEVICE = 101,
  CARD_INVALID_HANDLE = 400,
  CARD_NOT_FOUND = 500,
  CARD_NOT_READY = 600,
  CARD_NOT_SUPPORTED = 801
};

/* ---- the card */

typedef struct card_description {
  char name[128];                /* as torch.cuda.get_device_name prints it */
  uint64_t total_bytes;          /* of each device, as cudaMemGetInfo tells it */
  uint64_t used_bytes;           /* of each device: held by contexts and by others, never to be had */
  uint64_t copy_limit_bytes;     /* copies and memsets above it move nothing */
  int devices;                   /* visible to this process */
  int multiprocessors;
  int major, minor;              /* compute capability */
  int l2_bytes;
  int bus_bits;
  int shared_per_block_bytes;    /* with opt-in */
  int shared_per_multiprocessor_bytes;
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
} card_description;

/* Prepares this process for the card, at the first call by the settings in OOMSCOPE_CARD.
 * Every function of an interface that touches the card begins with it, and returns its library's status for "not
 * initialised" where this is not 0: CARD_NOT_INITIALIZED in a process that was forked from one that had used the card,
 * CARD_NO_DEVICE where CUDA_VISIBLE_DEVICES hides all. */
int card_enter(void);

/* What a call that has nothing to do answers (names/): card_enter's status, or what is wrong with the handle. */
int card_check_device(int device);
int card_check_stream(void *stream);
int card_check_kernel(const void *kernel);

/* The status of a call of the runtime: an error stays until cudaGetLastError takes it. */
int card_runtime_status(int status);

/* The card's description; valid also where card_enter failed. */
const card_description *card_describe(void);

/* The calling thread's device. */
int card_current_device(void);

/* ---- notes */

/* Notes, once by name, that the program called a function that is not supported. `name` must stay valid.
 * Returns CARD_NOT_SUPPORTED; a function of another library returns that library's own status. */
int card_unsupported(const char *name);

/* Notes likewise that a call answered an estimate of a workspace that only the closed library knows. */
void card_unknown_workspace(const char *name);

/* ---- memory of the calling thread's device */

int card_malloc(void **pointer, size_t bytes); /* CARD_OUT_OF_MEMORY beyond the budget; *pointer is then NULL */
int card_free(void *pointer);

/* Whether the pointer lies in the address range of devices. */
int card_is_device(const void *pointer);

/* Copies or fills by the rules of values (values.h), in stream order; either side may be host or device memory.
 * In a capturing stream it only adds a node. */
int card_copy(void *to, const void *from, size_t bytes, void *stream);
int card_fill(void *to, int byte, size_t bytes, void *stream);

/* The device wrote at this pointer: the held range around it becomes unknown. For every output of a library call.
 * Host pointers and NULL are ignored. */
void card_written(const void *pointer);

/* Answers bytes on the host that only a computation on the card would give (a scalar result, a count): a read of
 * unknown bytes, reported and answered as one. */
void card_answer_unknown(void *value, size_t bytes);

/* ---- work */

/* One call that would have launched kernels on the stream: counted, and a node of the graph where the stream captures.
 * The order is: check arguments, card_launched, card_written for each output. */
void card_launched(void *stream);

/* Whether the stream is being captured. */
int card_is_capturing(void *stream);

/* A host function in stream order: runs at once, or becomes a node where the stream captures. */
void card_host_function(void *stream, void (*function)(void *), void *argument);

#ifdef __cplusplus
}
#endif

/* ---- what Python reads (oomscope/virtual/library.py), by ctypes */

/* Every field is a uint64_t, in this order. New ones are added at the end, with a new version. */
typedef struct oomscope_card_counts {
  uint64_t entered;             /* 1 after the first CUDA call of this process */
  uint64_t used_bytes;          /* device memory that this process holds, all devices */
  uint64_t launches;            /* kernels, library calls and graphs */
  uint64_t unknown_reads;       /* copies to the host of bytes that the card does not hold */
  uint64_t unknown_read_bytes;
  uint64_t unsupported;         /* names noted by card_unsupported */
} oomscope_card_counts;

#define OOMSCOPE_CARD_VERSION 8

/* These do not count as CUDA calls: they never prepare the process. */

/* OOMSCOPE_CARD_VERSION of the library. */
CARD_API int oomscope_card_version(void);

/* Writes at most `bytes` bytes of this process's counts; returns the size of the whole struct. */
CARD_API size_t oomscope_card_counters(oomscope_card_counts *counts, size_t bytes);

/* The most bytes that all living processes held at once of a device that this process sees. */
CARD_API uint64_t oomscope_card_most_held(int device);

/* Writes the noted names in the order of their first calls, separated by newlines, cut to `bytes` with its final NUL;
 * returns the length that the whole text has, without the NUL. */
CARD_API size_t oomscope_card_unsupported(char *buffer, size_t bytes);
/* The same of the names noted by card_unknown_workspace. */
CARD_API size_t oomscope_card_unknown_workspaces(char *buffer, size_t bytes);

/* From now on `callback` is called with the number of unknown bytes just before a read of unknown bytes is answered,
 * on the reading thread and with no lock of the card held. NULL removes it. */
CARD_API void oomscope_card_on_unknown_read(void (*callback)(uint64_t bytes));

/* A tensor of the device: `dims` loops of `sizes` and `strides`, strides in bytes, around `run` bytes.
 * holds: whether the card holds all of its bytes. hold: it does from now on, with the bytes that are there, which the host
 * computed. unhold: they are unknown. */
CARD_API int oomscope_card_holds(uintptr_t address, size_t run, int dims, const size_t *sizes, const size_t *strides);
CARD_API void oomscope_card_hold(uintptr_t address, size_t run, int dims, const size_t *sizes, const size_t *strides);
CARD_API void oomscope_card_unhold(uintptr_t address, size_t run, int dims, const size_t *sizes, const size_t *strides);
/* A tensor with memory of its own is new: it is unknown, and so is, whole, what was held where it is. */
CARD_API void oomscope_card_unhold_new(uintptr_t address, size_t bytes);

/* From keep_held to restore_held, which nest: what becomes unknown because this thread gives kernels pointers to it is held
 * again afterwards, but for what was written: `count` pairs of an address and bytes. */
CARD_API void oomscope_card_keep_held(void);
CARD_API void oomscope_card_restore_held(const size_t *written, size_t count);

/* Reads or writes allocated device memory, held or not; what is held stays the same. Writing returns 0 where the kernel of
 * the system denies a further mapping. */
CARD_API void oomscope_card_read(void *to, const void *from, size_t bytes);
CARD_API int oomscope_card_write(void *to, const void *from, size_t bytes);

/* Answers the next reads by this thread of unknown bytes, each with the first of the `count` values that is as long and is
 * left; they stand one after the other. 0: none is expected. Such a read is not counted as one of unknown bytes. */
CARD_API void oomscope_card_expect(const void *values, const size_t *bytes, size_t count);

#endif
