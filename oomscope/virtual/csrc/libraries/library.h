/* What the stand-ins for NVIDIA's libraries share: handles that know their stream, and what a call leaves behind.
 *
 * A call is written by hand, or described in a table (../names, read by stubs.py): it computes, is accepted, or answers
 * an estimate of a size that only the closed library knows. Anything else is not supported. The last two are noted by
 * name. */
#ifndef OOMSCOPE_LIBRARY_H
#define OOMSCOPE_LIBRARY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begins every handle and descriptor of ours. */
typedef struct {
  uint32_t mark;
  union {
    void *stream; /* of a handle: where its kernels are launched */
    void *values; /* of a descriptor: the array that it describes */
  };
  int settings[4]; /* that are given back as they were set */
} library_object;

/* A zeroed object with room for every record of these libraries. Returns whether there is no host memory. */
enum { LIBRARY_OBJECT_BYTES = 256 };
int library_create(void *out);
int library_destroy(void *object);

/* The stream of a handle; the default stream for anything that is no object of ours. */
void *library_stream(const void *handle);
int library_set_stream(void *handle, void *stream);
/* The array that a descriptor describes; NULL for anything that is no object of ours. */
void *library_values(const void *descriptor);
int library_set_values(void *descriptor, void *values);
int library_set(void *object, int number, int value);
int library_get(const void *object, int number);

/* A kernel writes what starts at this address. On the host it is a scalar result of so many bytes, which nobody knows. */
void library_written(void *pointer, size_t bytes);
/* The card holds zeros there from now on: a status that says success. NULL: nothing. */
void library_zero(void *pointer, size_t bytes, void *stream);
/* Bytes of one element of a cudaDataType_t; 0 for an unknown one. */
size_t library_type_bytes(int type);

/* The version of an NVIDIA package, as major * 10000 + minor * 100 + patch, that the torch in this process was built
 * with: the requirement that begins with the name ("nvidia-cudnn-cu") in torch's own metadata. Else the given one. */
int library_version(const char *package, int otherwise);
int library_version_of_toolkit(void);
int library_version_of_cublas(void);
int library_version_of_cudnn(void);
/* Major, minor or patch of such a number. */
int library_part(int version, int part);

/* ---- what the tables call of single libraries */
int cudnn_convolution_algorithm(const void *convolution, int wanted, void *results);
int cufft_execute(int plan, void *output);
int cusparse_create(void *out, int format, int64_t rows, int64_t columns, int64_t entries, void *values, int base);
int nvml_check(const void *device);

#ifdef __cplusplus
}
#endif

#endif
