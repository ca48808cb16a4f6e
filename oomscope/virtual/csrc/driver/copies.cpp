// The driver's copies, memsets and writes of single words.
#include "core/process.h"
#include "driver/types.h"
#include "work/streams.h"

using namespace card;

namespace {

enum MemoryType { on_host = 1, on_device = 2, in_array = 3, unified = 4 };

// The first byte of one side of a copy.
char *first_byte(int type, const void *host, Address device, size_t offset) {
  const void *base = type == on_host ? host : pointer_of(device);
  return const_cast<char *>(static_cast<const char *>(base)) + offset;
}

int copy_2d(Order order, const DriverCopy2D *p) {
  if (!p) return CARD_INVALID_VALUE;
  if (p->from_type == in_array || p->to_type == in_array) return card_unsupported("cuMemcpy2D (of arrays)");
  char *from = first_byte(p->from_type, p->from_host, p->from_device, p->from_y * p->from_pitch + p->from_x);
  char *to = first_byte(p->to_type, p->to_host, p->to_device, p->to_y * p->to_pitch + p->to_x);
  return transfer(order, to, {p->to_pitch, 0}, from, {p->from_pitch, 0}, {p->width, p->height, 1});
}

int copy_3d(Order order, const DriverCopy3D *p) {
  if (!p) return CARD_INVALID_VALUE;
  if (p->from_type == in_array || p->to_type == in_array) return card_unsupported("cuMemcpy3D (of arrays)");
  Strides from_strides{p->from_pitch, p->from_pitch * p->from_height},
      to_strides{p->to_pitch, p->to_pitch * p->to_height};
  size_t from_offset = p->from_z * from_strides.slice + p->from_y * p->from_pitch + p->from_x;
  size_t to_offset = p->to_z * to_strides.slice + p->to_y * p->to_pitch + p->to_x;
  char *from = first_byte(p->from_type, p->from_host, p->from_device, from_offset);
  char *to = first_byte(p->to_type, p->to_host, p->to_device, to_offset);
  return transfer(order, to, to_strides, from, from_strides, {p->width, p->height, p->depth});
}

int copy(Order order, Address to, Address from, size_t bytes) {
  return driver_call([&] { return transfer(order, pointer_of(to), pointer_of(from), bytes); });
}

int fill(void *stream, Address to, size_t pitch, uint32_t element, size_t element_bytes, size_t width,
         size_t height = 1) {
  Block block{width * element_bytes, height};
  return driver_call([&] { return fill_on(stream, pointer_of(to), {pitch, 0}, element, element_bytes, block); });
}

}  // namespace

// The direction of a copy is told by the addresses; those of the host are addresses too.
CARD_API int cuMemcpy(Address to, Address from, size_t bytes) { return copy(waiting, to, from, bytes); }
CARD_API int cuMemcpyAsync(Address to, Address from, size_t bytes, void *stream) {
  return copy(on(stream), to, from, bytes);
}
CARD_API int cuMemcpyPeer(Address to, void *, Address from, void *, size_t bytes) {
  return copy(waiting, to, from, bytes);
}
CARD_API int cuMemcpyPeerAsync(Address to, void *, Address from, void *, size_t bytes, void *stream) {
  return copy(on(stream), to, from, bytes);
}

CARD_API int cuMemcpy2D_v2(const DriverCopy2D *parameters) {
  return driver_call([&] { return copy_2d(waiting, parameters); });
}
CARD_API int cuMemcpy2DAsync_v2(const DriverCopy2D *parameters, void *stream) {
  return driver_call([&] { return copy_2d(on(stream), parameters); });
}
CARD_API int cuMemcpy3D_v2(const DriverCopy3D *parameters) {
  return driver_call([&] { return copy_3d(waiting, parameters); });
}
CARD_API int cuMemcpy3DAsync_v2(const DriverCopy3D *parameters, void *stream) {
  return driver_call([&] { return copy_3d(on(stream), parameters); });
}

// ---- memsets: in order of a stream, or of the default one
#define FILL(bits, type)                                                                                               \
  CARD_API int cuMemsetD##bits##_v2(Address to, type value, size_t count) {                                            \
    return fill(nullptr, to, 0, value, bits / 8, count);                                                               \
  }                                                                                                                    \
  CARD_API int cuMemsetD##bits##Async(Address to, type value, size_t count, void *stream) {                            \
    return fill(stream, to, 0, value, bits / 8, count);                                                                \
  }                                                                                                                    \
  CARD_API int cuMemsetD2D##bits##_v2(Address to, size_t pitch, type value, size_t width, size_t height) {             \
    return fill(nullptr, to, pitch, value, bits / 8, width, height);                                                   \
  }                                                                                                                    \
  CARD_API int cuMemsetD2D##bits##Async(Address to, size_t pitch, type value, size_t width, size_t height,             \
                                        void *stream) {                                                                \
    return fill(stream, to, pitch, value, bits / 8, width, height);                                                    \
  }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)

CARD_API int cuStreamWriteValue32_v2(void *stream, Address to, uint32_t value, unsigned) {
  return fill(stream, to, 0, value, 4, 1);
}
CARD_API int cuStreamWriteValue64_v2(void *stream, Address to, uint64_t value, unsigned) {
  int status = fill(stream, to, 0, static_cast<uint32_t>(value), 4, 1);
  return status ? status : fill(stream, to + 4, 0, static_cast<uint32_t>(value >> 32), 4, 1);
}
