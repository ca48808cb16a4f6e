// Page-locked and managed host memory. It is ordinary memory that costs nothing before it is touched; it is counted.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

int pinned_malloc(void **pointer, size_t bytes, unsigned flags);
int pinned_free(void *pointer);
int host_register(void *pointer, size_t bytes, unsigned flags);
int host_unregister(void *pointer);
// Whether it lies in page-locked memory of this process.
bool is_page_locked(uintptr_t address);

// Managed memory lies on the host until a device touches it, which nothing does here: it takes no device memory.
int managed_malloc(void **pointer, size_t bytes, unsigned flags);
int managed_free(void *pointer);

}  // namespace card
