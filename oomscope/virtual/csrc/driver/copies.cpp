// The driver's copies, memsets and writes of single words.
#include "core/process.h"
#include "driver/types.h"
#include "work/streams.h"
#include "work/transfers.h"

using namespace card;

namespace {

void *pointer_of(Address address) { return reinterpret_cast<void *>(address); }

enum MemoryType { on_host = 1, on_device = 2, in_array = 3, unified = 4 };

// The first byte of one side of a copy.
const char *first_byte(int type, const void *host, Address device, size_t offset) {
  const void *base = type == on_host ? host : pointer_of(device);
  return static_cast<const char *>(base) + offset;
}

template <class Send>
int copy_2d(const DriverCopy2D *p, Send send) {
  if (!p) return CARD_INVALID_VALUE;
  if (p->from_type == in_array || p->to_type == in_array) return card_unsupported("cuMemcpy2D (of arrays)");
  const char *from = first_byte(p->from_type, p->from_host, p->from_device, p->from_y * p->from_pitch + p->from_x);
  const char *to = first_byte(p->to_type, p->to_host, p->to_device, p->to_y * p->to_pitch + p->to_x);
  return send(const_cast<char *>(to), Strides{p->to_pitch, 0}, from, Strides{p->from_pitch, 0},
              Block{p->width, p->height, 1});
}

template <class Send>
int copy_3d(const DriverCopy3D *p, Send send) {
  if (!p) return CARD_INVALID_VALUE;
  if (p->from_type == in_array || p->to_type == in_array) return card_unsupported("cuMemcpy3D (of arrays)");
  Strides from_strides{p->from_pitch, p->from_pitch * p->from_height},
      to_strides{p->to_pitch, p->to_pitch * p->to_height};
  size_t from_offset = p->from_z * from_strides.slice + p->from_y * p->from_pitch + p->from_x;
  size_t to_offset = p->to_z * to_strides.slice + p->to_y * p->to_pitch + p->to_x;
  const char *from = first_byte(p->from_type, p->from_host, p->from_device, from_offset);
  const char *to = first_byte(p->to_type, p->to_host, p->to_device, to_offset);
  return send(const_cast<char *>(to), to_strides, from, from_strides, Block{p->width, p->height, p->depth});
}

int send_and_wait(void *to, Strides to_strides, const void *from, Strides from_strides, Block block) {
  return copy_and_wait(to, to_strides, from, from_strides, block);
}

auto send_on(void *stream) {
  return [stream](void *to, Strides to_strides, const void *from, Strides from_strides, Block block) {
    return copy_on(stream, to, to_strides, from, from_strides, block);
  };
}

int wait_copy(void *to, const void *from, size_t bytes) {
  return driver_call([&] { return copy_and_wait(to, {}, from, {}, {bytes}); });
}

int stream_copy(void *to, const void *from, size_t bytes, void *stream) {
  return driver_call([&] { return copy_on(stream, to, {}, from, {}, {bytes}); });
}

int fill(void *stream, Address to, uint32_t element, size_t element_bytes, size_t count) {
  return driver_call(
      [&] { return fill_on(stream, pointer_of(to), {}, element, element_bytes, {count * element_bytes}); });
}

int fill_2d(void *stream, Address to, size_t pitch, uint32_t element, size_t element_bytes, size_t width,
            size_t height) {
  Block block{width * element_bytes, height};
  return driver_call([&] { return fill_on(stream, pointer_of(to), {pitch, 0}, element, element_bytes, block); });
}

}  // namespace

CARD_API int cuMemcpy(Address to, Address from, size_t bytes) {
  return wait_copy(pointer_of(to), pointer_of(from), bytes);
}
CARD_API int cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) {
  return wait_copy(pointer_of(to), from, bytes);
}
CARD_API int cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) { return wait_copy(to, pointer_of(from), bytes); }
CARD_API int cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
  return wait_copy(pointer_of(to), pointer_of(from), bytes);
}
CARD_API int cuMemcpyPeer(Address to, void *, Address from, void *, size_t bytes) {
  return wait_copy(pointer_of(to), pointer_of(from), bytes);
}
CARD_API int cuMemcpyAsync(Address to, Address from, size_t bytes, void *stream) {
  return stream_copy(pointer_of(to), pointer_of(from), bytes, stream);
}
CARD_API int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
  return stream_copy(pointer_of(to), from, bytes, stream);
}
CARD_API int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
  return stream_copy(to, pointer_of(from), bytes, stream);
}
CARD_API int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) {
  return stream_copy(pointer_of(to), pointer_of(from), bytes, stream);
}
CARD_API int cuMemcpyPeerAsync(Address to, void *, Address from, void *, size_t bytes, void *stream) {
  return stream_copy(pointer_of(to), pointer_of(from), bytes, stream);
}
CARD_ALIAS(cuMemcpyHtoD_v2) int cuMemcpyHtoD(Address, const void *, size_t);
CARD_ALIAS(cuMemcpyDtoH_v2) int cuMemcpyDtoH(void *, Address, size_t);
CARD_ALIAS(cuMemcpyDtoD_v2) int cuMemcpyDtoD(Address, Address, size_t);
CARD_ALIAS(cuMemcpyHtoDAsync_v2) int cuMemcpyHtoDAsync(Address, const void *, size_t, void *);
CARD_ALIAS(cuMemcpyDtoHAsync_v2) int cuMemcpyDtoHAsync(void *, Address, size_t, void *);
CARD_ALIAS(cuMemcpyDtoDAsync_v2) int cuMemcpyDtoDAsync(Address, Address, size_t, void *);

CARD_API int cuMemcpyBatchAsync_v2(const Address *to, const Address *from, const size_t *bytes, size_t count, void *,
                                   size_t *, size_t, void *stream) {
  return driver_call([&]() -> int {
    if (!to || !from || !bytes) return CARD_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
      if (int status = copy_on(stream, pointer_of(to[i]), {}, pointer_of(from[i]), {}, {bytes[i]})) return status;
    return 0;
  });
}

CARD_API int cuMemcpy2D_v2(const DriverCopy2D *parameters) {
  return driver_call([&] { return copy_2d(parameters, send_and_wait); });
}
CARD_API int cuMemcpy2DUnaligned_v2(const DriverCopy2D *parameters) { return cuMemcpy2D_v2(parameters); }
CARD_API int cuMemcpy2DAsync_v2(const DriverCopy2D *parameters, void *stream) {
  return driver_call([&] { return copy_2d(parameters, send_on(stream)); });
}
CARD_API int cuMemcpy3D_v2(const DriverCopy3D *parameters) {
  return driver_call([&] { return copy_3d(parameters, send_and_wait); });
}
CARD_API int cuMemcpy3DAsync_v2(const DriverCopy3D *parameters, void *stream) {
  return driver_call([&] { return copy_3d(parameters, send_on(stream)); });
}

CARD_API int cuMemsetD8_v2(Address to, unsigned char value, size_t count) { return fill(nullptr, to, value, 1, count); }
CARD_API int cuMemsetD16_v2(Address to, unsigned short value, size_t count) {
  return fill(nullptr, to, value, 2, count);
}
CARD_API int cuMemsetD32_v2(Address to, unsigned value, size_t count) { return fill(nullptr, to, value, 4, count); }
CARD_ALIAS(cuMemsetD8_v2) int cuMemsetD8(Address, unsigned char, size_t);
CARD_ALIAS(cuMemsetD16_v2) int cuMemsetD16(Address, unsigned short, size_t);
CARD_ALIAS(cuMemsetD32_v2) int cuMemsetD32(Address, unsigned, size_t);
CARD_API int cuMemsetD8Async(Address to, unsigned char value, size_t count, void *stream) {
  return fill(stream, to, value, 1, count);
}
CARD_API int cuMemsetD16Async(Address to, unsigned short value, size_t count, void *stream) {
  return fill(stream, to, value, 2, count);
}
CARD_API int cuMemsetD32Async(Address to, unsigned value, size_t count, void *stream) {
  return fill(stream, to, value, 4, count);
}
CARD_API int cuMemsetD2D8_v2(Address to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill_2d(nullptr, to, pitch, value, 1, width, height);
}
CARD_API int cuMemsetD2D32_v2(Address to, size_t pitch, unsigned value, size_t width, size_t height) {
  return fill_2d(nullptr, to, pitch, value, 4, width, height);
}
CARD_API int cuMemsetD2D8Async(Address to, size_t pitch, unsigned char value, size_t width, size_t height,
                               void *stream) {
  return fill_2d(stream, to, pitch, value, 1, width, height);
}
CARD_API int cuMemsetD2D32Async(Address to, size_t pitch, unsigned value, size_t width, size_t height, void *stream) {
  return fill_2d(stream, to, pitch, value, 4, width, height);
}

CARD_API int cuStreamWriteValue32_v2(void *stream, Address to, uint32_t value, unsigned) {
  return fill(stream, to, value, 4, 1);
}
CARD_ALIAS(cuStreamWriteValue32_v2) int cuStreamWriteValue32(void *, Address, uint32_t, unsigned);

CARD_API int cuStreamWriteValue64_v2(void *stream, Address to, uint64_t value, unsigned) {
  int status = fill(stream, to, static_cast<uint32_t>(value), 4, 1);
  return status ? status : fill(stream, to + 4, static_cast<uint32_t>(value >> 32), 4, 1);
}
CARD_ALIAS(cuStreamWriteValue64_v2) int cuStreamWriteValue64(void *, Address, uint64_t, unsigned);

// A stream that waits for a value has nothing to wait for: all work is done when it is asked for.
CARD_API int cuStreamWaitValue32_v2(void *stream, Address, uint32_t, unsigned) {
  return driver_call([&]() -> int { return find_stream(stream) ? 0 : CARD_INVALID_HANDLE; });
}
CARD_API int cuStreamWaitValue64_v2(void *stream, Address, uint64_t, unsigned) {
  return driver_call([&]() -> int { return find_stream(stream) ? 0 : CARD_INVALID_HANDLE; });
}
CARD_ALIAS(cuStreamWaitValue32_v2) int cuStreamWaitValue32(void *, Address, uint32_t, unsigned);
CARD_ALIAS(cuStreamWaitValue64_v2) int cuStreamWaitValue64(void *, Address, uint64_t, unsigned);
