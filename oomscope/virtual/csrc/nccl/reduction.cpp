#include "nccl/reduction.h"

#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <type_traits>

namespace nccl {
namespace {

// IEEE 754 binary16: 5 bits of exponent, 10 of fraction.
float from_half(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(fraction) / (1 << 24);
    return sign ? -value : value;
  }
  uint32_t wide = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
  memcpy(&value, &wide, sizeof value);
  return value;
}

// Drops the lower bits of a number, to the nearest, ties to the even one.
uint32_t rounded_off(uint32_t number, unsigned bits) {
  uint32_t half = 1u << (bits - 1), odd = number >> bits & 1;
  return (number + half - 1 + odd) >> bits;
}

uint16_t to_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);   // not a number
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
  if (magnitude < 0x38800000) {                                              // less than 2^-14
    float scaled = (value < 0 ? -value : value) * (1 << 24);
    auto whole = static_cast<uint32_t>(scaled);
    float rest = scaled - static_cast<float>(whole);
    if (rest > 0.5f || (rest == 0.5f && whole % 2)) whole++;
    return static_cast<uint16_t>(sign | whole);
  }
  return static_cast<uint16_t>(sign | rounded_off(magnitude - (112u << 23), 13));
}

struct Half {
  using Value = float;
  uint16_t bits;
  static float load(Half stored) { return from_half(stored.bits); }
  static Half store(float value) { return {to_half(value)}; }
};

struct BFloat16 {  // the upper half of a binary32
  using Value = float;
  uint16_t bits;
  static float load(BFloat16 stored) {
    uint32_t wide = static_cast<uint32_t>(stored.bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  static BFloat16 store(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    bool is_number = (wide & 0x7fffffff) <= 0x7f800000;
    return {static_cast<uint16_t>(is_number ? rounded_off(wide, 16) : 0x7fc0)};
  }
};

template <class T>
struct Plain {
  using Value = T;
  T value;
  static T load(Plain stored) { return stored.value; }
  static Plain store(T value) { return {value}; }
};

template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else return a + b;
}

template <class T>
T multiply(T a, T b) {  // integers wrap
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return a * b;
}

template <class T>
T combined(T a, T b, int operation) {
  switch (operation) {
    case product: return multiply(a, b);
    case maximum: return std::max(a, b);
    case minimum: return std::min(a, b);
    default: return add(a, b);
  }
}

template <class T>
T combined_alike(T value, int operation, int ranks) {
  if (operation == sum) return multiply(value, static_cast<T>(ranks));
  if (operation != product) return value;
  T result = value;
  for (int rank = 1; rank < ranks; rank++) result = multiply(result, value);
  return result;
}

// Calls `change` with each value; buffers of a program need not be aligned.
template <class Stored, class Change>
void each(void *values, size_t count, Change change) {
  auto *at = static_cast<char *>(values);
  for (size_t i = 0; i < count; i++) {
    Stored stored;
    memcpy(&stored, at + i * sizeof stored, sizeof stored);
    stored = Stored::store(change(Stored::load(stored), i));
    memcpy(at + i * sizeof stored, &stored, sizeof stored);
  }
}

template <class Body>
void with_type(int type, Body body) {  // numbers of ncclDataType_t
  switch (type) {
    case 0: return body(Plain<int8_t>{});
    case 1: return body(Plain<uint8_t>{});
    case 2: return body(Plain<int32_t>{});
    case 3: return body(Plain<uint32_t>{});
    case 4: return body(Plain<int64_t>{});
    case 5: return body(Plain<uint64_t>{});
    case 6: return body(Half{});
    case 7: return body(Plain<float>{});
    case 8: return body(Plain<double>{});
    case 9: return body(BFloat16{});
  }
}
constexpr int last_computed_type = 9;

}  // namespace

size_t bytes_of_type(int type) {
  static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // the last two: 8-bit floats
  return type >= 0 && type < static_cast<int>(sizeof bytes) ? bytes[type] : 0;
}

bool is_computed(int type, int operation) {
  return type >= 0 && type <= last_computed_type && operation >= sum && operation <= average;
}

void reduce_into(void *into, const void *other, size_t count, int type, int operation) {
  with_type(type, [&](auto stored) {
    using Stored = decltype(stored);
    auto *from = static_cast<const char *>(other);
    each<Stored>(into, count, [&](typename Stored::Value value, size_t i) {
      Stored second;
      memcpy(&second, from + i * sizeof second, sizeof second);
      return combined(value, Stored::load(second), operation);
    });
  });
}

void finish_average(void *values, size_t count, int type, int ranks) {
  with_type(type, [&](auto stored) {
    using Value = typename decltype(stored)::Value;
    each<decltype(stored)>(values, count, [&](Value value, size_t) {
      return static_cast<Value>(value / static_cast<Value>(ranks));
    });
  });
}

void reduce_alike(void *values, size_t count, int type, int operation, int ranks) {
  with_type(type, [&](auto stored) {
    using Value = typename decltype(stored)::Value;
    each<decltype(stored)>(values, count, [&](Value value, size_t) {
      return combined_alike(value, operation, ranks);
    });
  });
}

}  // namespace nccl
