// The entropy coding of Zstandard (RFC 8878, section 4): bit streams that are read backwards, FSE tables, Huffman
// tables. A stream or a table that is malformed makes a function return false; reading beyond a stream's start gives
// zeros.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <vector>

namespace card {

// Bits of a stream whose end is its first bit: the highest set bit of the last byte marks it.
class BackwardBits {
 public:
  bool open(const uint8_t *data, size_t bytes);
  uint64_t read(unsigned count) {  // at most 56
    position_ -= count;
    size_t byte = static_cast<size_t>(position_) / 8;
    if (__builtin_expect(position_ < 0 || byte + 8 > bytes_, 0)) return read_at_end(count);
    uint64_t word;
    memcpy(&word, data_ + byte, sizeof word);
    return word >> (position_ % 8) & ((uint64_t{1} << count) - 1);
  }
  // Bits that are left; negative when more were read than there are.
  int64_t left() const { return position_; }

 private:
  uint64_t read_at_end(unsigned count) const;

  const uint8_t *data_ = nullptr;
  size_t bytes_ = 0;
  int64_t position_ = 0;
};

struct FseTable {
  struct Entry {
    uint8_t symbol, bits;
    uint16_t base;
  };
  unsigned log = 0;
  std::vector<Entry> entries;

  void set_single(uint8_t symbol);
  bool set_probabilities(const std::vector<int> &probabilities, unsigned log);
  // Reads a table's description; *used is its size in bytes.
  bool read(const uint8_t *data, size_t bytes, unsigned log_limit, size_t symbol_limit, size_t *used);
};

struct HuffmanTable {
  struct Entry {
    uint8_t symbol, bits;
  };
  unsigned log = 0;
  std::vector<Entry> entries;

  bool read(const uint8_t *data, size_t bytes, size_t *used);
  bool decode(const uint8_t *data, size_t bytes, uint8_t *out, size_t count) const;

 private:
  bool set_weights(std::vector<uint8_t> weights);
};

}  // namespace card
