#include "core/process.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <mutex>

#include "core/counts.h"
#include "core/ledger.h"

namespace card {

std::atomic<int> process_state{0};
__thread int current_device = 0;
__thread int last_error = 0;

namespace {

constexpr int fresh = 0, failed = 2;

std::mutex &settling() {
  static std::mutex &mutex = *new std::mutex;
  return mutex;
}
std::atomic<const Settings *> chosen{nullptr};  // never deleted: threads may hold it until the process ends
int failure = 0;

void in_forked_child() {
  if (process_state.load() == fresh) return;
  process_state = process_forked;
  leave_ledger_in_child();
}

std::string environment_text() {
  std::string text;
  for (const char *name : {"OOMSCOPE_CARD", "CUDA_VISIBLE_DEVICES"}) {
    const char *value = getenv(name);
    text += value ? std::string("=") + value : "";
    text += '\n';
  }
  return text;
}

// Reads the settings anew where the environment has changed; `settling` is held.
const Settings *current_settings() {
  static std::string &read_from = *new std::string;
  auto *settings = chosen.load();
  std::string text = environment_text();
  if (!settings || text != read_from) {
    settings = new Settings(read_settings());
    read_from = text;
    chosen = settings;
  }
  return settings;
}

int settle() {
  const Settings &s = *current_settings();
  pthread_atfork(nullptr, nullptr, in_forked_child);
  std::string fault = s.fault.empty() ? open_ledger(s.ledger, s.installed) : s.fault;
  if (!fault.empty()) {
    fprintf(stderr, "oomscope: virtual card: %s\n", fault.c_str());
    return CARD_NOT_INITIALIZED;
  }
  counts.entered = 1;
  return s.visible.empty() ? CARD_NO_DEVICE : CARD_SUCCESS;
}

}  // namespace

int enter_slowly() {
  if (process_state.load() == process_forked) return CARD_NOT_INITIALIZED;
  std::lock_guard<std::mutex> guard(settling());
  if (process_state.load() == fresh) {
    failure = settle();
    process_state = failure ? failed : process_ready;
  }
  return process_state.load() == process_ready ? 0 : failure;
}

const Settings &settings() {
  if (process_state.load(std::memory_order_acquire) != fresh) return *chosen.load(std::memory_order_relaxed);
  std::lock_guard<std::mutex> guard(settling());
  return process_state.load() == fresh ? *current_settings() : *chosen.load();
}

}  // namespace card

int card_enter(void) { return card::enter(); }
int card_check_device(int device) {
  return card::device_call(device, [] { return 0; });
}
int card_runtime_status(int status) {
  if (__builtin_expect(status != 0, 0)) card::last_error = status;
  return status;
}
const card_description *card_describe(void) { return &card::settings().description; }
int card_current_device(void) { return card::current_device; }
