#include "code/zstd_entropy.h"

#include <string.h>

#include <algorithm>

namespace card {
namespace {

unsigned highest_bit(uint32_t value) { return 31 - static_cast<unsigned>(__builtin_clz(value)); }

// Bits that are read forward, lowest first: FSE descriptions are written so.
class ForwardBits {
 public:
  ForwardBits(const uint8_t *data, size_t bytes) : data_(data), bits_(bytes * 8) {}
  uint32_t peek(unsigned count) const {
    uint32_t value = 0;
    for (unsigned i = 0; i < count && position_ + i < bits_; i++)
      value |= static_cast<uint32_t>(data_[(position_ + i) / 8] >> ((position_ + i) % 8) & 1) << i;
    return value;
  }
  void skip(unsigned count) { position_ += count; }
  uint32_t read(unsigned count) {
    uint32_t value = peek(count);
    skip(count);
    return value;
  }
  bool is_past_end() const { return position_ > bits_; }
  size_t used_bytes() const { return (position_ + 7) / 8; }

 private:
  const uint8_t *data_;
  size_t bits_, position_ = 0;
};

}  // namespace

bool BackwardBits::open(const uint8_t *data, size_t bytes) {
  if (!bytes || !data[bytes - 1]) return false;
  data_ = data;
  bytes_ = bytes;
  position_ = static_cast<int64_t>((bytes - 1) * 8 + highest_bit(data[bytes - 1]));
  return true;
}

// Where fewer than eight bytes can be loaded, or the stream's start is passed.
uint64_t BackwardBits::read_at_end(unsigned count) const {
  int64_t at = std::max<int64_t>(position_, 0);
  unsigned missing = static_cast<unsigned>(at - position_);
  if (missing >= count) return 0;
  uint64_t word = 0;
  size_t byte = static_cast<size_t>(at) / 8;
  memcpy(&word, data_ + byte, std::min<size_t>(8, bytes_ - byte));
  uint64_t value = word >> (at % 8) & ((uint64_t{1} << (count - missing)) - 1);
  return value << missing;
}

void FseTable::set_single(uint8_t symbol) {
  log = 0;
  entries = {{symbol, 0, 0}};
}

bool FseTable::set_probabilities(const std::vector<int> &probabilities, unsigned table_log) {
  log = table_log;
  size_t size = size_t{1} << log, high = size;
  entries.assign(size, {});
  std::vector<uint32_t> next(probabilities.size());
  for (size_t symbol = 0; symbol < probabilities.size(); symbol++) {
    if (probabilities[symbol] == -1) entries[--high].symbol = static_cast<uint8_t>(symbol);
    next[symbol] = probabilities[symbol] == -1 ? 1 : static_cast<uint32_t>(probabilities[symbol]);
  }
  size_t step = (size >> 1) + (size >> 3) + 3, position = 0;
  for (size_t symbol = 0; symbol < probabilities.size(); symbol++)
    for (int i = 0; i < probabilities[symbol]; i++) {
      entries[position].symbol = static_cast<uint8_t>(symbol);
      do position = (position + step) & (size - 1);
      while (position >= high);
    }
  if (position) return false;
  for (auto &entry : entries) {
    uint32_t state = next[entry.symbol]++;
    entry.bits = static_cast<uint8_t>(log - highest_bit(state));
    entry.base = static_cast<uint16_t>((state << entry.bits) - size);
  }
  return true;
}

bool FseTable::read(const uint8_t *data, size_t bytes, unsigned log_limit, size_t symbol_limit, size_t *used) {
  ForwardBits bits(data, bytes);
  unsigned table_log = bits.read(4) + 5;
  if (table_log > log_limit) return false;
  int remaining = (1 << table_log) + 1;
  std::vector<int> probabilities;
  while (remaining > 1 && probabilities.size() <= symbol_limit && !bits.is_past_end()) {
    // Values below a limit take one bit less.
    unsigned width = highest_bit(static_cast<uint32_t>(remaining)) + 1;
    uint32_t low_mask = (1u << (width - 1)) - 1, limit = (1u << width) - 1 - static_cast<uint32_t>(remaining);
    uint32_t value = bits.peek(width);
    if ((value & low_mask) < limit) {
      value &= low_mask;
      bits.skip(width - 1);
    } else {
      if (value > low_mask) value -= limit;
      bits.skip(width);
    }
    int probability = static_cast<int>(value) - 1;
    remaining -= probability < 0 ? 1 : probability;
    probabilities.push_back(probability);
    if (probability) continue;
    for (uint32_t zeros = 3; zeros == 3 && !bits.is_past_end();) {
      zeros = bits.read(2);
      probabilities.insert(probabilities.end(), zeros, 0);
    }
  }
  if (remaining != 1 || bits.is_past_end() || probabilities.size() > symbol_limit + 1) return false;
  *used = bits.used_bytes();
  return set_probabilities(probabilities, table_log);
}

bool HuffmanTable::set_weights(std::vector<uint8_t> weights) {
  constexpr unsigned log_limit = 11;
  uint32_t sum = 0;
  for (uint8_t weight : weights) {
    if (weight > log_limit) return false;
    sum += weight ? 1u << (weight - 1) : 0;
  }
  if (!sum || weights.size() > 255) return false;
  log = highest_bit(sum) + 1;
  uint32_t rest = (1u << log) - sum;
  if (log > log_limit || rest & (rest - 1)) return false;
  weights.push_back(static_cast<uint8_t>(highest_bit(rest) + 1));  // the last weight makes the sum a power of two
  entries.assign(size_t{1} << log, {});
  size_t at = 0;
  for (unsigned weight = 1; weight <= log; weight++)
    for (size_t symbol = 0; symbol < weights.size(); symbol++) {
      if (weights[symbol] != weight) continue;
      size_t count = size_t{1} << (weight - 1);
      std::fill_n(entries.begin() + static_cast<ptrdiff_t>(at), count,
                  Entry{static_cast<uint8_t>(symbol), static_cast<uint8_t>(log + 1 - weight)});
      at += count;
    }
  return at == entries.size();
}

bool HuffmanTable::read(const uint8_t *data, size_t bytes, size_t *used) {
  if (!bytes) return false;
  std::vector<uint8_t> weights;
  size_t head = data[0];
  if (head >= 128) {  // four bits each
    size_t count = head - 127;
    *used = 1 + (count + 1) / 2;
    if (*used > bytes) return false;
    for (size_t i = 0; i < count; i++) weights.push_back(i % 2 ? data[1 + i / 2] & 15 : data[1 + i / 2] >> 4);
    return set_weights(std::move(weights));
  }
  *used = 1 + head;
  size_t table_bytes;
  FseTable table;
  if (*used > bytes || !table.read(data + 1, head, 6, 255, &table_bytes)) return false;
  BackwardBits bits;
  if (!bits.open(data + 1 + table_bytes, head - table_bytes)) return false;
  size_t states[2];
  for (auto &state : states) state = bits.read(table.log);
  // Two states take turns; the stream ends where one of them cannot be renewed.
  for (unsigned turn = 0; weights.size() < 256; turn ^= 1) {
    auto &entry = table.entries[states[turn]];
    weights.push_back(entry.symbol);
    if (bits.left() < entry.bits) {
      weights.push_back(table.entries[states[turn ^ 1]].symbol);
      return set_weights(std::move(weights));
    }
    states[turn] = entry.base + bits.read(entry.bits);
  }
  return false;
}

bool HuffmanTable::decode(const uint8_t *data, size_t bytes, uint8_t *out, size_t count) const {
  BackwardBits bits;
  if (entries.empty() || !bits.open(data, bytes)) return false;
  const Entry *table = entries.data();
  size_t mask = entries.size() - 1, state = bits.read(log);
  for (size_t i = 0; i < count; i++) {
    Entry entry = table[state];
    out[i] = entry.symbol;
    state = ((state << entry.bits) & mask) | bits.read(entry.bits);
  }
  return bits.left() == -static_cast<int64_t>(log);
}

}  // namespace card
