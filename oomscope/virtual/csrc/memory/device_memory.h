// cudaMalloc: memory of one device at fresh addresses.
//
// The driver takes physical memory in pages of 2 MiB. Requests of at most 1 MiB share pages, at multiples of 512 bytes;
// larger ones are rounded up to whole pages of their own. (Seen on cards through cudaMemGetInfo; NVIDIA documents only
// an alignment of at least 256 bytes.)
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

int device_malloc(int device, void **pointer, size_t bytes);
int device_free(void *pointer);

}  // namespace card
