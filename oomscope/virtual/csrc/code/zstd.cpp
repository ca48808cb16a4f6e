#include "code/zstd.h"

#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "code/zstd_entropy.h"

namespace card {
namespace {

constexpr uint32_t frame_magic = 0xfd2fb528;
constexpr size_t block_limit = 128 << 10;

struct Input {
  const uint8_t *data;
  size_t bytes;

  bool skip(size_t count) {
    if (count > bytes) return false;
    data += count;
    bytes -= count;
    return true;
  }
  bool number(size_t count, uint64_t *value) {  // little-endian
    if (count > bytes) return false;
    *value = 0;
    for (size_t i = 0; i < count; i++) *value |= static_cast<uint64_t>(data[i]) << (8 * i);
    return skip(count);
  }
};

// What a code of lengths stands for: a base and how many further bits.
struct Code {
  uint32_t base;
  uint8_t bits;
};

std::vector<Code> codes(uint32_t first, const std::vector<uint8_t> &bits) {
  std::vector<Code> all;
  for (uint8_t one : bits) {
    all.push_back({first, one});
    first += 1u << one;
  }
  return all;
}

const std::vector<Code> &literal_codes() {
  static auto &all = *new auto(codes(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  1,  1,
                                         1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}));
  return all;
}

const std::vector<Code> &match_codes() {
  static auto &all =
      *new auto(codes(3, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0, 0,
                          0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}));
  return all;
}

// One of the three kinds of symbols of sequences, with its predefined distribution.
struct SequenceKind {
  unsigned log_limit, default_log;
  size_t symbol_limit;
  std::vector<int> defaults;
};

const SequenceKind &kind_of(int index) {
  static auto &all = *new std::vector<SequenceKind>{
      {9, 6, 35, {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                  2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1}},
      {8, 5, 31, {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1}},
      {9, 6, 52, {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1}}};
  return all[static_cast<size_t>(index)];
}

class Decoder {
 public:
  Decoder(char *out, size_t limit) : start_(out), at_(out), end_(out + limit) {}

  bool frame(Input in) {
    if (!header(&in)) return false;
    for (bool is_last = false; !is_last;) {
      uint64_t head;
      if (!in.number(3, &head)) return false;
      is_last = head & 1;
      size_t type = head >> 1 & 3, size = head >> 3;
      if (!block(type, size, &in)) return false;
    }
    return true;
  }

  size_t written() const { return static_cast<size_t>(at_ - start_); }

 private:
  enum { raw = 0, repeated = 1, compressed = 2, with_last_tree = 3 };

  static bool header(Input *in) {
    uint64_t magic, descriptor, ignored;
    if (!in->number(4, &magic) || magic != frame_magic || !in->number(1, &descriptor)) return false;
    bool is_single = descriptor >> 5 & 1, has_dictionary = descriptor & 3, is_reserved = descriptor >> 3 & 1;
    if (has_dictionary || is_reserved) return false;
    size_t size_bytes = size_t{1} << (descriptor >> 6);
    if (size_bytes == 1) size_bytes = is_single;
    return in->number((is_single ? 0 : 1) + size_bytes, &ignored);
  }

  size_t room() const { return static_cast<size_t>(end_ - at_); }

  bool write(const uint8_t *from, size_t count) {
    if (count > room()) return false;
    memcpy(at_, from, count);
    at_ += count;
    return true;
  }

  // Repeats what was written at an offset before; the copy may overlap itself.
  bool repeat(size_t offset, size_t count) {
    if (!offset || offset > written() || count > room()) return false;
    const char *from = at_ - offset;
    if (offset >= count) {
      memcpy(at_, from, count);
    } else {
      for (size_t i = 0; i < count; i++) at_[i] = from[i];
    }
    at_ += count;
    return true;
  }

  bool block(size_t type, size_t size, Input *in) {
    if (type == repeated) {
      if (!in->bytes || size > room()) return false;
      memset(at_, in->data[0], size);
      at_ += size;
      return in->skip(1);
    }
    if (size > in->bytes) return false;
    Input content{in->data, size};
    in->skip(size);
    if (type == raw) return write(content.data, size);
    return type == compressed && literals(&content) && sequences(content);
  }

  bool literals(Input *in) {
    if (!in->bytes) return false;
    unsigned type = in->data[0] & 3, form = in->data[0] >> 2 & 3;
    uint64_t head;
    if (type == raw || type == repeated) {
      size_t head_bytes = form == 1 ? 2 : form == 3 ? 3 : 1;
      if (!in->number(head_bytes, &head)) return false;
      size_t size = head >> (head_bytes == 1 ? 3 : 4), stored = type == raw ? size : 1;
      if (size > block_limit || stored > in->bytes) return false;
      literals_.assign(in->data, in->data + stored);
      if (type == repeated) literals_.assign(size, in->data[0]);
      return in->skip(stored);
    }
    constexpr size_t head_bytes[] = {3, 3, 4, 5};
    constexpr unsigned width[] = {10, 10, 14, 18};
    if (!in->number(head_bytes[form], &head)) return false;
    size_t mask = (size_t{1} << width[form]) - 1, size = head >> 4 & mask, stored = head >> (4 + width[form]) & mask;
    if (size > block_limit || stored > in->bytes) return false;
    Input content{in->data, stored};
    in->skip(stored);
    size_t used;
    if (type == compressed && (!tree_.read(content.data, content.bytes, &used) || !content.skip(used))) return false;
    literals_.resize(size);
    return form == 0 ? tree_.decode(content.data, content.bytes, literals_.data(), size) : four_streams(content, size);
  }

  bool four_streams(Input in, size_t size) {
    uint64_t sizes[4];
    size_t each = (size + 3) / 4, sum = 0;
    for (int i = 0; i < 3; i++) {
      if (!in.number(2, &sizes[i])) return false;
      sum += sizes[i];
    }
    if (sum > in.bytes || each * 3 > size) return false;
    sizes[3] = in.bytes - sum;
    for (size_t i = 0; i < 4; i++) {
      size_t count = i < 3 ? each : size - 3 * each;
      if (!tree_.decode(in.data, sizes[i], literals_.data() + i * each, count)) return false;
      in.skip(sizes[i]);
    }
    return true;
  }

  bool sequences(Input in) {
    uint64_t count, modes, more;
    if (!in.number(1, &count)) return false;
    if (count == 255) {
      if (!in.number(2, &more)) return false;
      count = more + 0x7f00;
    } else if (count >= 128) {
      if (!in.number(1, &more)) return false;
      count = ((count - 128) << 8) + more;
    }
    if (count) {
      if (!in.number(1, &modes) || modes & 3) return false;
      for (int kind = 0; kind < 3; kind++)
        if (!table(kind, modes >> (6 - 2 * kind) & 3, &in)) return false;
    }
    return execute(in, count);
  }

  bool table(int kind, size_t mode, Input *in) {
    enum { predefined, single, described, last };
    auto &k = kind_of(kind);
    FseTable &table = tables_[kind];
    size_t used = 1;
    if (mode == predefined) return table.set_probabilities(k.defaults, k.default_log);
    if (mode == last) return !table.entries.empty();
    if (mode == single) {
      if (!in->bytes || in->data[0] > k.symbol_limit) return false;
      table.set_single(in->data[0]);
    } else if (!table.read(in->data, in->bytes, k.log_limit, k.symbol_limit, &used)) {
      return false;
    }
    return in->skip(used);
  }

  // Sequences: so many literals, then a copy of what was written at an offset before.
  bool execute(Input in, uint64_t count) {
    const uint8_t *literal = literals_.data(), *end = literal + literals_.size();
    BackwardBits bits;
    if (count && !bits.open(in.data, in.bytes)) return false;
    auto &literal_lengths = literal_codes();
    auto &match_lengths = match_codes();
    size_t states[3];
    for (int kind = 0; count && kind < 3; kind++) states[kind] = bits.read(tables_[kind].log);
    for (uint64_t i = 0; i < count; i++) {
      auto symbol = [&](int kind) { return tables_[kind].entries[states[kind]].symbol; };
      unsigned offset_bits = symbol(1);
      Code match_code = match_lengths[symbol(2)];
      Code literal_code = literal_lengths[symbol(0)];
      uint64_t value = (uint64_t{1} << offset_bits) + bits.read(offset_bits);
      size_t match = match_code.base + bits.read(match_code.bits);
      size_t length = literal_code.base + bits.read(literal_code.bits);
      if (i + 1 < count)
        for (int kind : {0, 2, 1}) {
          auto &entry = tables_[kind].entries[states[kind]];
          states[kind] = entry.base + bits.read(entry.bits);
        }
      size_t offset = offset_of(value, length == 0);
      if (length > static_cast<size_t>(end - literal) || bits.left() < 0) return false;
      if (!write(literal, length) || !repeat(offset, match)) return false;
      literal += length;
    }
    if (count && bits.left()) return false;
    return write(literal, static_cast<size_t>(end - literal));
  }

  // Values 1 to 3 name one of the last three offsets; the order of these is kept.
  size_t offset_of(uint64_t value, bool no_literals) {
    size_t index = value + no_literals - 1, offset;  // 0, 1, 2: that one; 3: the last but one byte of the last
    if (value > 3) {
      offset = value - 3, index = 2;
    } else {
      offset = index < 3 ? offsets_[index] : offsets_[0] - 1;
    }
    if (index > 1) offsets_[2] = offsets_[1];
    if (index > 0) offsets_[1] = offsets_[0];
    offsets_[0] = offset;
    return offset;
  }

  char *start_, *at_, *end_;
  std::vector<uint8_t> literals_;
  HuffmanTable tree_;
  FseTable tables_[3];  // literal lengths, offsets, match lengths
  size_t offsets_[3] = {1, 4, 8};
};

}  // namespace

bool decompress_zstd(const void *frame, size_t bytes, size_t limit, std::string *out) {
  out->resize(limit);
  Decoder decoder(&(*out)[0], limit);
  bool is_whole = decoder.frame({static_cast<const uint8_t *>(frame), bytes});
  out->resize(is_whole ? decoder.written() : 0);
  return is_whole;
}

}  // namespace card
