#include "memory/copies.h"

#include <string.h>

#include <algorithm>
#include <vector>

#include "core/counts.h"
#include "core/process.h"
#include "core/stack.h"
#include "memory/allocations.h"
#include "memory/memory.h"
#include "memory/space.h"
#include "memory/values.h"

namespace card {
namespace {

struct Side {
  uintptr_t address;
  Strides strides;
  bool on_device;

  Side(const void *pointer, Strides s) : address(address_of(pointer)), strides(s), on_device(in_device_space(pointer)) {}
  uintptr_t row(size_t y, size_t z) const { return address + y * strides.row + z * strides.slice; }
  // From the first byte to the last, gaps included.
  uint64_t extent(const Block &b) const { return row(b.height - 1, b.depth - 1) + b.width - address; }
  char *host(size_t y, size_t z) const { return reinterpret_cast<char *>(row(y, z)); }
};

uint64_t bytes_of(const Block &b) { return static_cast<uint64_t>(b.width) * b.height * b.depth; }

bool is_moved(const Block &b) {
  return settings().is_computed || bytes_of(b) <= settings().description.copy_limit_bytes;
}

template <class Row>
void each_row(const Block &b, Row row) {
  for (size_t z = 0; z < b.depth; z++)
    for (size_t y = 0; y < b.height; y++) row(y, z);
}

// Whether the block is a single run of bytes on this side; then it is treated as one row.
bool is_dense(const Side &side, const Block &b) {
  return (b.height == 1 || side.strides.row == b.width) && (b.depth == 1 || side.strides.slice == b.width * b.height);
}

bool check(const Side &side, const Block &b) { return !side.on_device || is_allocated(side.address, side.extent(b)); }

// What could not be written, because the kernel denies a further mapping, is not held.
void hold_if(bool is_written, uintptr_t address, size_t bytes) {
  if (is_written) {
    hold(address, bytes);
  } else {
    unhold(address, bytes);
  }
}

int to_device(const Side &to, const Side &from, const Block &b) {
  MemoryLock lock(memory_mutex());
  if (!check(to, b)) return CARD_INVALID_VALUE;
  if (!is_moved(b)) {
    unhold(to.address, to.extent(b));
    return 0;
  }
  each_row(b, [&](size_t y, size_t z) {
    hold_if(write_content(to.row(y, z), from.host(y, z), b.width), to.row(y, z), b.width);
  });
  return 0;
}

int on_device(const Side &to, const Side &from, const Block &b) {
  MemoryLock lock(memory_mutex());
  if (!check(to, b) || !check(from, b)) return CARD_INVALID_VALUE;
  if (!is_moved(b)) {
    unhold(to.address, to.extent(b));
    return 0;
  }
  each_row(b, [&](size_t y, size_t z) {
    if (move_content(to.row(y, z), from.row(y, z), b.width)) {
      move_held(to.row(y, z), from.row(y, z), b.width);
    } else {
      unhold(to.row(y, z), b.width);
    }
  });
  return 0;
}

// A number, in the types of two, four and eight bytes that programs read most often.
struct Number {
  unsigned char bfloat16[2], float32[4], int64[8];
};

// By rule. The larger numbers are 32, 37.000004 and 257, the largest 91, 91 and 512: above the least size that programs
// commonly allow (a capacity of 4). Other bytes of them are 0: in a list of booleans, too, a program counts another number
// of true ones. A single byte is true; as an integer it is 5 or 9.
constexpr Number numbers[] = {
    {},
    {{0x80, 0x3f}, {0x00, 0x00, 0x80, 0x3f}, {1}},
    {{0x00, 0x42}, {0x01, 0x00, 0x14, 0x42}, {1, 1}},
    {{0xb6, 0x42}, {0x00, 0x00, 0xb6, 0x42}, {0, 2}},
};

constexpr char single_bytes[] = {0, 1, 5, 9};

// Byte `i` of `bytes` unknown ones that are read at once: of the rule's number, in the type that is most often as long;
// a single byte is a bool, a longer read is taken for int64.
char answer(size_t i, size_t bytes) {
  const Number &number = numbers[static_cast<size_t>(settings().values)];
  if (bytes == 1) return single_bytes[static_cast<size_t>(settings().values)];
  if (bytes == 2) return static_cast<char>(number.bfloat16[i]);
  if (bytes == 4) return static_cast<char>(number.float32[i]);
  return static_cast<char>(number.int64[i % 8]);
}

// Overwrites what is unknown in a row that was read, `done` bytes after the start of a copy of `all` bytes. Under the
// rule of zeros a row that one earlier copy wrote just so stays as it was. Under another it never does: the rules must
// differ from it in every unknown byte that decides anything.
void answer_unknown(char *row, uintptr_t from, size_t bytes, size_t done, size_t all) {
  bool is_zeros = settings().values == ValueRule::zeros;
  if (is_zeros && was_held(from, bytes)) return;
  std::vector<bool> known(bytes);
  for (auto &[address, size] : held_parts(from, bytes))
    std::fill_n(known.begin() + static_cast<ptrdiff_t>(address - from), size, true);
  bool is_same = !is_zeros && was_held(from, bytes);
  for (size_t i = 0; i < bytes && is_same; i++) is_same = known[i] || row[i] == answer(done + i, all);
  for (size_t i = 0; i < bytes; i++)
    if (!known[i]) row[i] = is_same ? static_cast<char>(i == 0 ? row[i] + 1 : row[i]) : answer(done + i, all);
}

// Answers a read above the limit of copies, unless all of it is known. Page-locked memory is left as it is: offloading
// moves whole models there, and its pages would cost host memory. So is what exceeds answered_bytes.
void answer_large(const Side &to, const Block &b) {
  constexpr uint64_t answered_bytes = uint64_t{64} << 20;
  if (bytes_of(b) > answered_bytes || is_page_locked(to.address)) return;
  size_t done = 0;
  each_row(b, [&](size_t y, size_t z) {
    for (size_t i = 0; i < b.width; i++) to.host(y, z)[i] = answer(done + i, bytes_of(b));
    done += b.width;
  });
}

// What the host has computed in place of the kernels whose result this thread is about to read.
thread_local std::vector<std::vector<char>> expected;

// Answers a read of just as many bytes as are expected, none of which the card holds.
bool answer_expected(const Side &to, const Side &from, const Block &b) {
  auto next = std::find_if(expected.begin(), expected.end(), [&](auto &value) { return value.size() == b.width; });
  if (next == expected.end() || b.height * b.depth != 1) return false;
  MemoryLock lock(memory_mutex());
  if (!check(from, b) || count_unknown(from.address, b.width) != b.width) return false;
  memcpy(to.host(0, 0), next->data(), b.width);
  expected.erase(next);
  return true;
}

int to_host(const Side &to, const Side &from, const Block &b) {
  if (answer_expected(to, from, b)) return 0;
  uint64_t unknown = 0;
  {
    MemoryLock lock(memory_mutex());
    if (!check(from, b)) return CARD_INVALID_VALUE;
    each_row(b, [&](size_t y, size_t z) { unknown += count_unknown(from.row(y, z), b.width); });
  }
  bool is_answered_whole = unknown && !is_moved(b);
  if (unknown) report_unknown_read(is_answered_whole ? bytes_of(b) : unknown);
  if (is_answered_whole) {
    answer_large(to, b);
    return 0;
  }
  MemoryLock lock(memory_mutex());
  if (!check(from, b)) return CARD_INVALID_VALUE;  // freed by what was called back
  size_t done = 0;
  each_row(b, [&](size_t y, size_t z) {
    read_content(to.host(y, z), from.row(y, z), b.width);
    if (unknown) answer_unknown(to.host(y, z), from.row(y, z), b.width, done, bytes_of(b));
    done += b.width;
  });
  return 0;
}

int on_host(const Side &to, const Side &from, const Block &b) {
  each_row(b, [&](size_t y, size_t z) { memmove(to.host(y, z), from.host(y, z), b.width); });
  return 0;
}

}  // namespace

int copy_block(void *to_pointer, Strides to_strides, const void *from_pointer, Strides from_strides, Block b) {
  if (!b.width || !b.height || !b.depth) return 0;
  if (!to_pointer || !from_pointer) return CARD_INVALID_VALUE;
  Side to(to_pointer, to_strides), from(from_pointer, from_strides);
  if (is_dense(to, b) && is_dense(from, b)) b = {b.width * b.height * b.depth};
  if (to.on_device) return from.on_device ? on_device(to, from, b) : to_device(to, from, b);
  return from.on_device ? to_host(to, from, b) : on_host(to, from, b);
}

int fill_block(void *pointer, Strides strides, uint32_t element, size_t element_bytes, Block b) {
  if (!b.width || !b.height || !b.depth) return 0;
  if (!pointer) return CARD_INVALID_VALUE;
  Side to(pointer, strides);
  if (is_dense(to, b)) b = {b.width * b.height * b.depth};
  if (!to.on_device) {
    each_row(b, [&](size_t y, size_t z) {
      for (size_t i = 0; i + element_bytes <= b.width; i += element_bytes)
        memcpy(to.host(y, z) + i, &element, element_bytes);
    });
    return 0;
  }
  MemoryLock lock(memory_mutex());
  if (!check(to, b)) return CARD_INVALID_VALUE;
  if (!is_moved(b)) {
    unhold(to.address, to.extent(b));
    return 0;
  }
  std::vector<char> row(element_bytes == 1 ? 0 : b.width);
  for (size_t i = 0; i + element_bytes <= row.size(); i += element_bytes) memcpy(&row[i], &element, element_bytes);
  each_row(b, [&](size_t y, size_t z) {
    bool is_byte = element_bytes == 1 || element == 0;
    bool is_written = is_byte ? fill_content(to.row(y, z), static_cast<int>(element & 0xff), b.width)
                              : write_content(to.row(y, z), row.data(), b.width);
    hold_if(is_written, to.row(y, z), b.width);
  });
  return 0;
}

}  // namespace card

void card_written(const void *pointer) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  if (!card::might_be_held(address)) return;
  card::MemoryLock lock(card::memory_mutex());
  card::unhold_at(address);
}

void card_answer_unknown(void *value, size_t bytes) {
  card::report_unknown_read(bytes);
  auto out = static_cast<char *>(value);
  for (size_t i = 0; i < bytes; i++) out[i] = card::answer(i, bytes);
}

namespace {

// The runs of bytes of a tensor: `dims` loops around runs of `run` bytes. Stops where `each` returns false.
template <class Each>
bool each_run(uintptr_t address, size_t run, int dims, const size_t *sizes, const size_t *strides, Each each) {
  if (!dims) return each(address, run);
  for (size_t i = 0; i < sizes[0]; i++)
    if (!each_run(address + i * strides[0], run, dims - 1, sizes + 1, strides + 1, each)) return false;
  return true;
}

}  // namespace

CARD_API int oomscope_card_holds(uintptr_t address, size_t run, int dims, const size_t *sizes, const size_t *strides) {
  card::MemoryLock lock(card::memory_mutex());
  return each_run(address, run, dims, sizes, strides,
                  [](uintptr_t first, size_t bytes) { return !card::count_unknown(first, bytes); });
}

CARD_API void oomscope_card_hold(uintptr_t address, size_t run, int dims, const size_t *sizes, const size_t *strides) {
  card::wipe_stack();
  card::MemoryLock lock(card::memory_mutex());
  each_run(address, run, dims, sizes, strides, [](uintptr_t first, size_t bytes) {
    card::hold_computed(first, bytes);
    return true;
  });
  if (!dims) card::hold_apart(address, run);
}

CARD_API void oomscope_card_unhold(uintptr_t address, size_t run, int dims, const size_t *sizes,
                                   const size_t *strides) {
  card::MemoryLock lock(card::memory_mutex());
  each_run(address, run, dims, sizes, strides, [](uintptr_t first, size_t bytes) {
    card::unhold(first, bytes);
    return true;
  });
}

CARD_API void oomscope_card_unhold_new(uintptr_t address, size_t bytes) {
  card::MemoryLock lock(card::memory_mutex());
  card::unhold_new(address, bytes);
}

CARD_API void oomscope_card_read(void *to, const void *from, size_t bytes) {
  card::MemoryLock lock(card::memory_mutex());
  card::read_content(to, reinterpret_cast<uintptr_t>(from), bytes);
}

CARD_API int oomscope_card_write(void *to, const void *from, size_t bytes) {
  card::MemoryLock lock(card::memory_mutex());
  return card::write_content(reinterpret_cast<uintptr_t>(to), from, bytes);
}

CARD_API void oomscope_card_keep_held(void) {
  card::MemoryLock lock(card::memory_mutex());
  card::keep_held();
}

CARD_API void oomscope_card_restore_held(const size_t *written, size_t count) {
  card::MemoryLock lock(card::memory_mutex());
  card::restore_held();
  for (size_t i = 0; i < count; i++) card::unhold(written[2 * i], written[2 * i + 1]);
}

CARD_API void oomscope_card_expect(const void *values, const size_t *bytes, size_t count) {
  card::expected.clear();
  auto first = static_cast<const char *>(values);
  for (size_t i = 0; i < count; first += bytes[i++]) card::expected.emplace_back(first, first + bytes[i]);
}
