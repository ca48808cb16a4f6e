#include "work/transfers.h"

#include "core/process.h"
#include "work/capture.h"
#include "work/stale_stack.h"
#include "work/streams.h"

namespace card {

int copy_on(void *stream_handle, void *to, Strides to_strides, const void *from, Strides from_strides, Block block) {
  Stream *stream = find_stream(stream_handle);
  if (!stream) return CARD_INVALID_HANDLE;
  if (stream->capture.load(std::memory_order_relaxed)) {
    auto replay = [=] { copy_block(to, to_strides, from, from_strides, block); };
    if (add_captured(stream, NodeType::copy, replay)) return 0;
  }
  leave_stack_dirty();
  return copy_block(to, to_strides, from, from_strides, block);
}

int fill_on(void *stream_handle, void *to, Strides strides, uint32_t element, size_t element_bytes, Block block) {
  Stream *stream = find_stream(stream_handle);
  if (!stream) return CARD_INVALID_HANDLE;
  if (stream->capture.load(std::memory_order_relaxed)) {
    auto replay = [=] { fill_block(to, strides, element, element_bytes, block); };
    if (add_captured(stream, NodeType::fill, replay)) return 0;
  }
  return fill_block(to, strides, element, element_bytes, block);
}

int copy_and_wait(void *to, Strides to_strides, const void *from, Strides from_strides, Block block) {
  leave_stack_dirty();
  int status = copy_block(to, to_strides, from, from_strides, block);
  return status ? status : synchronize_stream(find_stream(nullptr));
}

}  // namespace card

int card_copy(void *to, const void *from, size_t bytes, void *stream) {
  return card::copy_on(stream, to, {}, from, {}, {bytes});
}

int card_fill(void *to, int byte, size_t bytes, void *stream) {
  return card::fill_on(stream, to, {}, static_cast<uint32_t>(byte & 0xff), 1, {bytes});
}
