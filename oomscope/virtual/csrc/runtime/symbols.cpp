// Variables on the device that compiled programs register.
#include <mutex>
#include <unordered_map>

#include "core/process.h"
#include "runtime/types.h"
#include "work/kernels.h"
#include "work/streams.h"

using namespace card;

namespace {

constexpr int invalid_symbol = 13;

struct Symbol {
  size_t bytes;
  uintptr_t address[max_devices];  // on each device, from its first use on
};

struct Symbols {
  std::mutex mutex;
  std::unordered_map<const void *, Symbol> all;
};
Symbols &symbols() {
  static Symbols &all = *new Symbols;
  return all;
}

int symbol_memory(const void *host, void **pointer, size_t *bytes) {
  std::lock_guard<std::mutex> guard(symbols().mutex);
  auto found = symbols().all.find(host);
  if (found == symbols().all.end()) return invalid_symbol;
  uintptr_t &address = found->second.address[current_device];
  if (!address) address = variable_memory(found->second.bytes);
  *pointer = reinterpret_cast<void *>(address);
  *bytes = found->second.bytes;
  return address ? 0 : CARD_OUT_OF_MEMORY;
}

// Calls `copy` with the address at an offset of a symbol.
template <class Copy>
int with_symbol(const void *symbol, size_t bytes, size_t offset, Copy copy) {
  return runtime_call([&]() -> int {
    void *pointer = nullptr;
    size_t whole = 0;
    if (int status = symbol_memory(symbol, &pointer, &whole)) return status;
    if (offset > whole || bytes > whole - offset) return CARD_INVALID_VALUE;
    return copy(static_cast<char *>(pointer) + offset);
  });
}

}  // namespace

// Called while a library is loaded: these touch no card.
CARD_API void __cudaRegisterVar(void **, char *host, char *, const char *, int, size_t bytes, int, int) {
  std::lock_guard<std::mutex> guard(symbols().mutex);
  symbols().all[host] = {bytes, {}};
}
CARD_API void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int) {
  card_unsupported("__managed__ variables");
}

CARD_API int cudaGetSymbolAddress(void **pointer, const void *symbol) {
  return runtime_call([&]() -> int {
    size_t bytes;
    return pointer ? symbol_memory(symbol, pointer, &bytes) : CARD_INVALID_VALUE;
  });
}

CARD_API int cudaGetSymbolSize(size_t *bytes, const void *symbol) {
  return runtime_call([&]() -> int {
    void *pointer;
    return bytes ? symbol_memory(symbol, &pointer, bytes) : CARD_INVALID_VALUE;
  });
}

CARD_API int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int) {
  return with_symbol(symbol, bytes, offset, [&](void *at) { return transfer(waiting, at, from, bytes); });
}
CARD_API int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int) {
  return with_symbol(symbol, bytes, offset, [&](void *at) { return transfer(waiting, to, at, bytes); });
}
CARD_API int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, int,
                                     Stream_t stream) {
  return with_symbol(symbol, bytes, offset, [&](void *at) { return transfer(on(stream), at, from, bytes); });
}
CARD_API int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, int,
                                       Stream_t stream) {
  return with_symbol(symbol, bytes, offset, [&](void *at) { return transfer(on(stream), to, at, bytes); });
}
