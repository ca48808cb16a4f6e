// The runtime's copies and memsets. The direction is told by the addresses, as with cudaMemcpyDefault.
#include "core/process.h"
#include "runtime/types.h"
#include "work/streams.h"
#include "work/transfers.h"

using namespace card;

namespace {

enum { host_to_host, host_to_device, device_to_host, device_to_device, by_address };

bool is_kind(int kind) { return kind >= host_to_host && kind <= by_address; }
constexpr int bad_direction = 21, bad_pitch = 12;

struct Plan {
  void *to;
  const void *from;
  Strides to_strides, from_strides;
  Block block;
};

void *at(const PitchedPointer &p, const Position &position) {
  size_t offset = (position.z * p.rows + position.y) * p.pitch + position.x;
  return static_cast<char *>(p.pointer) + offset;
}

Strides strides_of(const PitchedPointer &p) { return {p.pitch, p.pitch * p.rows}; }

template <class Parameters>
int plan(const Parameters *p, Plan *out) {
  if (!p) return CARD_INVALID_VALUE;
  if (p->from_array || p->to_array) return card_unsupported("cudaMemcpy3D (of arrays)");
  *out = {at(p->to, p->to_position),
          at(p->from, p->from_position),
          strides_of(p->to),
          strides_of(p->from),
          {p->extent.width, p->extent.height, p->extent.depth}};
  return 0;
}

template <class Parameters>
int copy_3d(const Parameters *parameters) {
  Plan p;
  int status = plan(parameters, &p);
  return status ? status : copy_and_wait(p.to, p.to_strides, p.from, p.from_strides, p.block);
}

template <class Parameters>
int copy_3d_on(Stream_t stream, const Parameters *parameters) {
  Plan p;
  int status = plan(parameters, &p);
  return status ? status : copy_on(stream, p.to, p.to_strides, p.from, p.from_strides, p.block);
}

int check_2d(size_t to_pitch, size_t from_pitch, size_t width, int kind) {
  if (!is_kind(kind)) return bad_direction;
  return width > to_pitch || width > from_pitch ? bad_pitch : 0;
}

uint32_t byte(int value) { return static_cast<uint32_t>(value) & 0xff; }

int wait_for_default() { return synchronize_stream(find_stream(nullptr)); }

}  // namespace

CARD_API int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  return runtime_call([&] { return is_kind(kind) ? copy_and_wait(to, {}, from, {}, {bytes}) : bad_direction; });
}

CARD_API int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream_t stream) {
  return runtime_call([&] { return is_kind(kind) ? copy_on(stream, to, {}, from, {}, {bytes}) : bad_direction; });
}

CARD_API int cudaMemcpyPeer(void *to, int, const void *from, int, size_t bytes) {
  return runtime_call([&] { return copy_and_wait(to, {}, from, {}, {bytes}); });
}

CARD_API int cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, Stream_t stream) {
  return runtime_call([&] { return copy_on(stream, to, {}, from, {}, {bytes}); });
}

CARD_API int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                          int kind) {
  return runtime_call([&] {
    int status = check_2d(to_pitch, from_pitch, width, kind);
    return status ? status : copy_and_wait(to, {to_pitch, 0}, from, {from_pitch, 0}, {width, height});
  });
}

CARD_API int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                               size_t height, int kind, Stream_t stream) {
  return runtime_call([&] {
    int status = check_2d(to_pitch, from_pitch, width, kind);
    return status ? status : copy_on(stream, to, {to_pitch, 0}, from, {from_pitch, 0}, {width, height});
  });
}

CARD_API int cudaMemcpy3D(const Copy3D *parameters) {
  return runtime_call([&] { return copy_3d(parameters); });
}

CARD_API int cudaMemcpy3DAsync(const Copy3D *parameters, Stream_t stream) {
  return runtime_call([&] { return copy_3d_on(stream, parameters); });
}

CARD_API int cudaMemcpy3DPeer(const PeerCopy3D *parameters) {
  return runtime_call([&] { return copy_3d(parameters); });
}

CARD_API int cudaMemcpy3DPeerAsync(const PeerCopy3D *parameters, Stream_t stream) {
  return runtime_call([&] { return copy_3d_on(stream, parameters); });
}

CARD_API int cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes, size_t count, void *,
                                  size_t *, size_t, Stream_t stream) {
  return runtime_call([&]() -> int {
    if (!to || !from || !bytes) return CARD_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
      if (int status = copy_on(stream, to[i], {}, from[i], {}, {bytes[i]})) return status;
    return 0;
  });
}

CARD_API int cudaMemset(void *pointer, int value, size_t bytes) {
  return runtime_call([&] { return fill_block(pointer, {}, byte(value), 1, {bytes}); });
}

CARD_API int cudaMemsetAsync(void *pointer, int value, size_t bytes, Stream_t stream) {
  return runtime_call([&] { return fill_on(stream, pointer, {}, byte(value), 1, {bytes}); });
}

CARD_API int cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height) {
  return runtime_call([&] {
    int status = fill_block(pointer, {pitch, 0}, byte(value), 1, {width, height});
    return status ? status : wait_for_default();
  });
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
