#include "work/kernels.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "core/counts.h"
#include "core/process.h"
#include "core/stack.h"
#include "work/arguments.h"
#include "work/graphs.h"

namespace card {
namespace {

// torch registers a hundred thousand kernels while it is loaded: an open hash table, filled without allocation for
// each.
struct Registry {
  std::mutex mutex;
  std::vector<Registered> slots = std::vector<Registered>(1 << 12);
  size_t used = 0;

  Registered &slot(const void *host) {
    size_t i = (reinterpret_cast<uintptr_t>(host) >> 4) * 0x9e3779b97f4a7c15 >> 20;
    for (;; i++) {
      Registered &one = slots[i & (slots.size() - 1)];
      if (!one.host || one.host == host) return one;
    }
  }

  void add(FatBinary *code, const void *host, const char *name) {
    if (used * 2 >= slots.size()) {
      auto old = std::vector<Registered>(slots.size() * 2);
      old.swap(slots);
      for (auto &one : old)
        if (one.host) slot(one.host) = one;
    }
    Registered &one = slot(host);
    used += !one.host;
    one = {host, name, code, nullptr};
  }
};

Registry &registry() {
  static Registry &all = *new Registry;
  return all;
}

int check(const Shape &s) {
  constexpr unsigned block_limit[3] = {1024, 1024, 64}, grid_limit[3] = {INT32_MAX, 65535, 65535};
  uint64_t threads = 1;
  for (int i = 0; i < 3; i++) {
    if (!s.grid[i] || !s.block[i] || s.grid[i] > grid_limit[i] || s.block[i] > block_limit[i])
      return invalid_configuration;
    threads *= s.block[i];
  }
  if (threads > 1024) return invalid_configuration;
  bool has_shared = s.shared <= static_cast<uint64_t>(settings().description.shared_per_block_bytes);
  return has_shared ? 0 : CARD_INVALID_VALUE;
}

void replay_kernel(const std::vector<uintptr_t> &pointers) {
  add(counts.launches, 1);
  for (uintptr_t pointer : pointers) card_written(reinterpret_cast<const void *>(pointer));
  unhold_all_if_blind();
}

// Of a kernel that is launched by the address of its host function, or as one of a library.
const Signature *sign_host(const void *host, bool resolve) {
  auto &all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  Registered &one = all.slot(host);
  if (!one.host) {
    Kernel *kernel = find_kernel(host);
    return kernel && kernel->signature.is_known ? &kernel->signature : nullptr;
  }
  auto &d = settings().description;
  if (!one.signature && resolve) {
    const CubinKernel *found = one.code->kernel(one.name, d.major, d.minor);
    one.signature = found && found->signature.is_known ? &found->signature : nullptr;
  }
  return one.signature;
}

const Signature *sign_kernel(const void *handle, bool) {
  auto *kernel = static_cast<const Kernel *>(handle);
  return kernel->signature.is_known ? &kernel->signature : nullptr;
}

// What is launched with CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE instead of an array of pointers.
bool buffer_of(void **extra, const void **buffer, size_t *bytes) {
  constexpr uintptr_t end = 0, pointer = 1, size = 2;
  *buffer = nullptr, *bytes = 0;
  for (int i = 0; extra && i < 8 && reinterpret_cast<uintptr_t>(extra[i]) != end; i += 2) {
    if (reinterpret_cast<uintptr_t>(extra[i]) == pointer) *buffer = extra[i + 1];
    if (reinterpret_cast<uintptr_t>(extra[i]) == size) *bytes = *static_cast<size_t *>(extra[i + 1]);
  }
  return *buffer && *bytes;
}

}  // namespace

void register_kernel(FatBinary *code, const void *host, const char *name) {
  auto &all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  all.add(code, host, name);
}

Registered find_registered(const void *host) {
  auto &all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  return all.slot(host);
}

Kernel *find_kernel(const void *handle) {
  auto *kernel = static_cast<Kernel *>(const_cast<void *>(handle));
  return kernel && kernel->mark == Kernel::live ? kernel : nullptr;
}

int launch_host(const void *host, const Shape &shape, void *stream_handle, void **arguments) {
  Stream *stream = find_stream(stream_handle);
  if (!stream) return CARD_INVALID_HANDLE;
  if (int status = check(shape)) return status;
  if (__builtin_expect(stream->capture.load(std::memory_order_relaxed) != nullptr, 0)) {
    auto pointers = pointers_in_arguments(arguments, sign_host, host);
    if (add_captured(stream, NodeType::kernel, [pointers] { replay_kernel(pointers); })) return 0;
  }
  add(counts.launches, 1);
  unhold_arguments(arguments, sign_host, host);
  tidy_stack();
  return 0;
}

int launch_kernel(Kernel *kernel, const Shape &shape, void *stream_handle, void **arguments, void **extra) {
  Stream *stream = find_stream(stream_handle);
  if (!kernel || !stream) return CARD_INVALID_HANDLE;
  if (check(shape)) return CARD_INVALID_VALUE;
  const void *buffer;
  size_t bytes;
  bool has_buffer = buffer_of(extra, &buffer, &bytes);
  if (stream->capture.load(std::memory_order_relaxed)) {
    auto pointers =
        has_buffer ? pointers_in_buffer(buffer, bytes) : pointers_in_arguments(arguments, sign_kernel, kernel);
    if (add_captured(stream, NodeType::kernel, [pointers] { replay_kernel(pointers); })) return 0;
  }
  add(counts.launches, 1);
  if (has_buffer) {
    unhold_buffer(buffer, bytes);
  } else {
    unhold_arguments(arguments, sign_kernel, kernel);
  }
  tidy_stack();
  return 0;
}

int occupancy_of(const void *host, int threads, uint64_t shared) {
  auto &d = settings().description;
  auto &all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  Registered &one = all.slot(host);
  const CubinKernel *found = one.host ? one.code->kernel(one.name, d.major, d.minor) : nullptr;
  if (!found || found->registers < 1) return occupancy(plausible_registers, threads, shared);
  return occupancy(found->registers, threads, shared + static_cast<uint64_t>(found->static_shared));
}

int occupancy(int registers, int threads, uint64_t shared) {
  auto &d = settings().description;
  constexpr int registers_of_multiprocessor = 65536, reserved_shared = 1024;
  if (threads <= 0 || threads > 1024) return 0;
  int warps = (threads + 31) / 32, registers_of_warp = (registers * 32 + 255) / 256 * 256;  // taken 256 at a time
  int blocks = std::min(d.blocks_per_multiprocessor, d.threads_per_multiprocessor / (warps * 32));
  constexpr int partitions = 4;  // each has its share of the registers
  int warps_that_fit = registers_of_multiprocessor / partitions / registers_of_warp * partitions;
  blocks = std::min(blocks, warps_that_fit / warps);
  uint64_t needed = shared + reserved_shared;
  return static_cast<int>(
      std::min<uint64_t>(static_cast<uint64_t>(blocks), d.shared_per_multiprocessor_bytes / needed));
}

}  // namespace card

void card_launched(void *stream_handle) {
  using namespace card;
  Stream *stream = find_stream(stream_handle);
  if (!add_captured(stream, NodeType::kernel, [] { add(counts.launches, 1); })) add(counts.launches, 1);
}

int card_is_capturing(void *stream_handle) {
  card::Stream *stream = card::find_stream(stream_handle);
  return stream && stream->capture.load() != nullptr;
}

void card_host_function(void *stream_handle, void (*function)(void *), void *argument) {
  using namespace card;
  auto run = [function, argument] { function(argument); };
  if (!add_captured(find_stream(stream_handle), NodeType::host, run)) run();
}

int card_check_kernel(const void *kernel) {
  return card::driver_call([&]() -> int { return card::find_kernel(kernel) ? 0 : CARD_INVALID_HANDLE; });
}

