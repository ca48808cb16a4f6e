// Copies and memsets in stream order: done at once, or nodes of a graph.
#pragma once
#include "memory/copies.h"

namespace card {

int copy_on(void *stream, void *to, Strides to_strides, const void *from, Strides from_strides, Block block);
int fill_on(void *stream, void *to, Strides strides, uint32_t element, size_t element_bytes, Block block);

// A copy that waits: not allowed while its stream captures.
int copy_and_wait(void *to, Strides to_strides, const void *from, Strides from_strides, Block block);

}  // namespace card
