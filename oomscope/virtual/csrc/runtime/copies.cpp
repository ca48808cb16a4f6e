// The runtime's copies and memsets. The direction is told by the addresses, as with cudaMemcpyDefault.
#include "core/process.h"
#include "runtime/types.h"
#include "work/streams.h"

using namespace card;

namespace {

enum { host_to_host, host_to_device, device_to_host, device_to_device, by_address };

bool is_kind(int kind) { return kind >= host_to_host && kind <= by_address; }
constexpr int bad_direction = 21, bad_pitch = 12;

void *at(const PitchedPointer &p, const Position &position) {
  size_t offset = (position.z * p.rows + position.y) * p.pitch + position.x;
  return static_cast<char *>(p.pointer) + offset;
}

Strides strides_of(const PitchedPointer &p) { return {p.pitch, p.pitch * p.rows}; }

template <class Parameters>
int copy_3d(Order order, const Parameters *p) {
  if (!p) return CARD_INVALID_VALUE;
  if (p->from_array || p->to_array) return card_unsupported("cudaMemcpy3D (of arrays)");
  return transfer(order, at(p->to, p->to_position), strides_of(p->to), at(p->from, p->from_position),
                  strides_of(p->from), {p->extent.width, p->extent.height, p->extent.depth});
}

int copy_2d(Order order, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
            int kind) {
  if (!is_kind(kind)) return bad_direction;
  if (width > to_pitch || width > from_pitch) return bad_pitch;
  return transfer(order, to, {to_pitch, 0}, from, {from_pitch, 0}, {width, height});
}

uint32_t byte(int value) { return static_cast<uint32_t>(value) & 0xff; }

}  // namespace

CARD_API int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  return runtime_call([&] { return is_kind(kind) ? transfer(waiting, to, from, bytes) : bad_direction; });
}
CARD_API int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream_t stream) {
  return runtime_call([&] { return is_kind(kind) ? transfer(on(stream), to, from, bytes) : bad_direction; });
}
CARD_API int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                          int kind) {
  return runtime_call([&] { return copy_2d(waiting, to, to_pitch, from, from_pitch, width, height, kind); });
}
CARD_API int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                               size_t height, int kind, Stream_t stream) {
  return runtime_call([&] { return copy_2d(on(stream), to, to_pitch, from, from_pitch, width, height, kind); });
}
CARD_API int cudaMemcpy3D(const Copy3D *parameters) {
  return runtime_call([&] { return copy_3d(waiting, parameters); });
}
CARD_API int cudaMemcpy3DAsync(const Copy3D *parameters, Stream_t stream) {
  return runtime_call([&] { return copy_3d(on(stream), parameters); });
}
CARD_API int cudaMemcpy3DPeer(const PeerCopy3D *parameters) {
  return runtime_call([&] { return copy_3d(waiting, parameters); });
}
CARD_API int cudaMemcpy3DPeerAsync(const PeerCopy3D *parameters, Stream_t stream) {
  return runtime_call([&] { return copy_3d(on(stream), parameters); });
}
CARD_API int cudaMemset(void *pointer, int value, size_t bytes) {
  return runtime_call([&] { return fill_block(pointer, {}, byte(value), 1, {bytes}); });
}
CARD_API int cudaMemsetAsync(void *pointer, int value, size_t bytes, Stream_t stream) {
  return runtime_call([&] { return fill_on(stream, pointer, {}, byte(value), 1, {bytes}); });
}
CARD_API int cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height) {
  return runtime_call([&] { return fill_block(pointer, {pitch, 0}, byte(value), 1, {width, height}); });
}
CARD_API int cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t height, Stream_t stream) {
  return runtime_call([&] { return fill_on(stream, pointer, {pitch, 0}, byte(value), 1, {width, height}); });
}
CARD_API int cudaMemset3D(PitchedPointer p, int value, Extent extent) {
  return runtime_call([&] {
    return fill_block(p.pointer, strides_of(p), byte(value), 1, {extent.width, extent.height, extent.depth});
  });
}
CARD_API int cudaMemset3DAsync(PitchedPointer p, int value, Extent extent, Stream_t stream) {
  return runtime_call([&] {
    return fill_on(stream, p.pointer, strides_of(p), byte(value), 1, {extent.width, extent.height, extent.depth});
  });
}
