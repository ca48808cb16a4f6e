#include "code/fat_binary.h"

#include <dlfcn.h>
#include <string.h>

#include <algorithm>

#include "card.h"
#include "code/cubin.h"

namespace card {
namespace {

constexpr uint32_t wrapper_magic = 0x466243b1, header_magic = 0xba55ed50;
constexpr uint16_t kind_ptx = 1, kind_machine_code = 2;
constexpr uint64_t flag_exact = 0x100000;  // code for one capability only, such as sm_90a
constexpr uint64_t flag_zstd = 0x8000, flag_lz4 = 0x2000;
constexpr uint64_t whole_limit = 1 << 30;

struct Wrapper {
  uint32_t magic, version;
  const unsigned char *image;
  const void *unused;
};
struct Header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct Image {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t padded_bytes;
  uint32_t bytes;  // compressed
  uint32_t unused[2];
  uint32_t capability;
  uint32_t word_bits, unused2;
  uint64_t flags, unused3;
  uint64_t whole_bytes;
};

// The system's library for Zstandard, the form in which compilers put machine code into programs. Null: there is none.
struct Zstd {
  size_t (*frame_bytes)(const void *from, size_t bytes);
  size_t (*decompress)(void *to, size_t room, const void *from, size_t bytes);
};

// Looked for while a program is loaded: later another thread may hold the loader's lock and wait for one of ours.
const Zstd &zstd() {
  static const Zstd found = [] {
    void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    void *frame_bytes = library ? dlsym(library, "ZSTD_findFrameCompressedSize") : nullptr;
    void *decompress = library ? dlsym(library, "ZSTD_decompress") : nullptr;
    return Zstd{reinterpret_cast<decltype(Zstd::frame_bytes)>(frame_bytes),
                reinterpret_cast<decltype(Zstd::decompress)>(decompress)};
  }();
  return found;
}

// False where the frame is damaged, gives more than `limit` bytes, or cannot be read here.
bool decompress(const unsigned char *frame, size_t bytes, size_t limit, std::string *out) {
  if (!zstd().frame_bytes || !zstd().decompress) {
    card_unsupported("exact arguments of kernels (libzstd.so.1 is not installed)");
    return false;
  }
  size_t packed = zstd().frame_bytes(frame, bytes);  // an error is a number beyond any size
  if (packed > bytes) return false;
  out->resize(limit);
  size_t written = zstd().decompress(&(*out)[0], limit, frame, packed);
  out->resize(written <= limit ? written : 0);
  return written <= limit;
}

}  // namespace

FatBinary::FatBinary(const void *wrapper) : wrapper_(wrapper) { zstd(); }

struct FatBinary::Choice {
  int code = 0, ptx = 0;
  Image image{};
  const unsigned char *data = nullptr;  // of the machine code
};

FatBinary::Choice FatBinary::choose(int major, int minor) const {
  Choice choice;
  auto *wrapper = static_cast<const Wrapper *>(wrapper_);
  if (!wrapper || wrapper->magic != wrapper_magic || !wrapper->image) return choice;
  Header header;
  memcpy(&header, wrapper->image, sizeof header);
  if (header.magic != header_magic) return choice;
  int card = major * 10 + minor;
  auto *at = wrapper->image + header.header_bytes, *end = at + header.bytes;
  while (at + sizeof(Image) <= end) {
    Image image;
    memcpy(&image, at, sizeof image);
    int capability = static_cast<int>(image.capability);
    bool fits = image.flags & flag_exact ? capability == card : capability <= card;
    if (image.kind == kind_ptx && fits && capability > choice.ptx) choice.ptx = capability;
    if (image.kind == kind_machine_code && fits && capability / 10 == major && capability > choice.code) {
      choice.code = capability;
      choice.image = image;
      choice.data = at + image.header_bytes;
    }
    uint64_t step = image.header_bytes + image.padded_bytes;
    if (!step || step > static_cast<uint64_t>(end - at)) break;
    at += step;
  }
  return choice;
}

ImageVersion FatBinary::version_for(int major, int minor) const {
  Choice choice = choose(major, minor);
  if (choice.code) return {choice.code, choice.code};
  return choice.ptx ? ImageVersion{choice.ptx, major * 10 + minor} : ImageVersion{0, 0};
}

const CubinKernel *FatBinary::kernel(const std::string &name, int major, int minor) {
  if (!kernels_) {
    kernels_ = std::make_unique<std::unordered_map<std::string, CubinKernel>>();
    Choice choice = choose(major, minor);
    std::string whole;
    const void *code = choice.data;
    size_t bytes = choice.image.padded_bytes;
    if (choice.image.flags & flag_zstd && code) {
      size_t limit = choice.image.whole_bytes < whole_limit ? choice.image.whole_bytes : 0;
      code = decompress(choice.data, choice.image.bytes, limit, &whole) ? whole.data() : nullptr;
      bytes = whole.size();
    }
    if (code && !(choice.image.flags & flag_lz4))
      for (auto &found : kernels_of_cubin(code, bytes)) (*kernels_)[found.name] = std::move(found);
  }
  auto found = kernels_->find(name);
  return found != kernels_->end() ? &found->second : nullptr;
}

}  // namespace card
