// Copies and memsets, by the rules of values (values.h).
//
// Up to the copy limit bytes are really moved. Above it no memory is touched: a device destination becomes unknown, a
// read to the host counts as unknown. Copies from host to host are always real.
//
// A read of unknown bytes is reported before it is answered. Under the rule "zeros" it gives zeros, but where one
// earlier copy wrote just the range that is read, and a kernel was given it since: what was copied (was_held in
// values.h). Other rules than zeros give another number (answer in copies.cpp).
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace card {

// Rows of `width` bytes, `height` of them in each of `depth` slices.
struct Block {
  size_t width = 0, height = 1, depth = 1;
};
struct Strides {
  size_t row = 0, slice = 0;
};

int copy_block(void *to, Strides to_strides, const void *from, Strides from_strides, Block block);
inline int copy(void *to, const void *from, size_t bytes) { return copy_block(to, {}, from, {}, {bytes}); }

// The element, of 1, 2 or 4 bytes, is written over and over.
int fill_block(void *to, Strides strides, uint32_t element, size_t element_bytes, Block block);

}  // namespace card
