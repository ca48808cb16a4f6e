// The settings of the card, from OOMSCOPE_CARD: "key=value;key=value". Keys that are absent keep the default, an H100.
#include "core/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

#include "core/device.h"

namespace card {
namespace {

// NVIDIA H100 SXM, the default row of cards.csv, which names the sources.
Settings defaults() {
  Settings s;
  auto &d = s.description;
  snprintf(d.name, sizeof d.name, "NVIDIA H100 80GB HBM3");
  d.total_bytes = 85027979264;
  d.copy_limit_bytes = 1 << 20;
  d.devices = 1;
  d.multiprocessors = 132;
  d.major = 9;
  d.minor = 0;
  d.l2_bytes = 50 << 20;
  d.bus_bits = 5120;
  d.shared_per_block_bytes = 227 << 10;
  d.shared_per_multiprocessor_bytes = 228 << 10;
  d.threads_per_multiprocessor = 2048;
  d.blocks_per_multiprocessor = 32;
  return s;
}

bool read_number(const std::string &text, uint64_t most, uint64_t *number) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text.c_str(), &end, 10);
  if (errno || *end || value > most) return false;
  *number = value;
  return true;
}

struct NumberKey {
  const char *name;
  uint64_t Settings::*wide;
  uint64_t card_description::*bytes;
  int card_description::*count;
};

const NumberKey number_keys[] = {
    {"total", nullptr, &card_description::total_bytes, nullptr},
    {"used", nullptr, &card_description::used_bytes, nullptr},
    {"budget", &Settings::budget_bytes, nullptr, nullptr},
    {"copy_limit", nullptr, &card_description::copy_limit_bytes, nullptr},
    {"event_lag", &Settings::event_lag, nullptr, nullptr},
    {"devices", nullptr, nullptr, &card_description::devices},
    {"sms", nullptr, nullptr, &card_description::multiprocessors},
    {"major", nullptr, nullptr, &card_description::major},
    {"minor", nullptr, nullptr, &card_description::minor},
    {"l2", nullptr, nullptr, &card_description::l2_bytes},
    {"bus", nullptr, nullptr, &card_description::bus_bits},
    {"smem_block", nullptr, nullptr, &card_description::shared_per_block_bytes},
    {"smem_sm", nullptr, nullptr, &card_description::shared_per_multiprocessor_bytes},
    {"threads_sm", nullptr, nullptr, &card_description::threads_per_multiprocessor},
    {"blocks_sm", nullptr, nullptr, &card_description::blocks_per_multiprocessor},
};

bool set_number(Settings &s, const NumberKey &key, const std::string &value) {
  uint64_t number = 0;
  if (!read_number(value, key.count ? INT32_MAX : INT64_MAX, &number)) return false;
  if (key.wide) s.*key.wide = number;
  if (key.bytes) s.description.*key.bytes = number;
  if (key.count) s.description.*key.count = static_cast<int>(number);
  return true;
}

// By the numbers of ValueRule and AddressOrder.
constexpr const char *value_rules[] = {"zeros", "ones", "larger", "largest"};
constexpr const char *address_orders[] = {"spans", "ascending", "scattered"};

template <class Enum, size_t count>
bool choose(const char *const (&names)[count], const std::string &value, Enum *chosen) {
  auto name = std::find(names, names + count, value);
  if (name == names + count) return false;
  *chosen = static_cast<Enum>(name - names);
  return true;
}

bool set_word(Settings &s, const std::string &key, const std::string &value) {
  if (key == "name") {
    snprintf(s.description.name, sizeof s.description.name, "%s", value.c_str());
  } else if (key == "ledger") {
    s.ledger = value;
  } else if (key == "values") {
    return choose(value_rules, value, &s.values);
  } else if (key == "peers" && (value == "alike" || value == "processes")) {
    s.has_peers = value == "processes";
  } else if (key == "computed" && (value == "0" || value == "1")) {
    s.is_computed = value == "1";
  } else if (key == "addresses") {
    return choose(address_orders, value, &s.order);
  } else {
    return false;
  }
  return true;
}

bool set(Settings &s, const std::string &key, const std::string &value) {
  for (auto &known : number_keys)
    if (key == known.name) return set_number(s, known, value);
  return set_word(s, key, value);
}

std::vector<std::string> split(const std::string &text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

// The device that an entry of CUDA_VISIBLE_DEVICES names; -1: none. Every index exists, and so does a whole UUID of
// ours; the start of one is looked for among the installed devices.
int named_device(const std::string &entry, int installed) {
  uint64_t index;
  if (read_number(entry, INT32_MAX, &index)) return index < max_devices ? static_cast<int>(index) : -1;
  if (entry.compare(0, 4, "GPU-") != 0 || entry.size() < 5) return -1;
  int candidates = entry.size() == device_uuid(0).size() ? max_devices : installed;
  int found = -1;
  for (int device = 0; device < candidates; device++) {
    if (device_uuid(device).compare(0, entry.size(), entry) != 0) continue;
    if (found >= 0) return -1;  // ambiguous
    found = device;
  }
  return found;
}

// As the driver does: the list ends at the first entry that names no device; one that is named twice hides all.
std::vector<int> listed_devices(const char *list, int installed) {
  std::vector<int> listed;
  for (auto entry : split(list, ',')) {
    entry.erase(0, std::min(entry.find_first_not_of(" \t"), entry.size()));
    entry.erase(entry.find_last_not_of(" \t") + 1);
    int device = named_device(entry, installed);
    if (device < 0) break;
    if (std::count(listed.begin(), listed.end(), device)) return {};
    listed.push_back(device);
  }
  return listed;
}

// A program that lists devices was written for a machine that has them: as many are installed.
void choose_visible(Settings &s, const char *list) {
  s.visible.clear();
  for (int device = 0; !list && device < s.installed; device++) s.visible.push_back(device);
  if (list) s.visible = listed_devices(list, s.installed);
  for (int device : s.visible) s.installed = std::max(s.installed, device + 1);
}

}  // namespace

Settings read_settings() {
  Settings s = defaults();
  const char *text = getenv("OOMSCOPE_CARD");
  for (auto &part : split(text ? text : "", ';')) {
    if (part.empty()) continue;
    size_t at = part.find('=');
    bool good = at != std::string::npos && set(s, part.substr(0, at), part.substr(at + 1));
    if (!good && s.fault.empty()) s.fault = "OOMSCOPE_CARD: cannot be understood: " + part;
  }
  auto &d = s.description;
  s.budget_bytes = std::max(s.budget_bytes, d.total_bytes);
  bool sane = d.devices <= max_devices && d.multiprocessors > 0 && d.major > 0 &&
              d.threads_per_multiprocessor >= 1024 && d.blocks_per_multiprocessor > 0 && d.shared_per_block_bytes > 0;
  if (!sane && s.fault.empty()) s.fault = "OOMSCOPE_CARD: describes no possible card";
  if (s.has_peers && s.ledger.empty() && s.fault.empty()) s.fault = "OOMSCOPE_CARD: peers=processes needs a ledger";
  s.installed = std::min(d.devices, max_devices);
  choose_visible(s, getenv("CUDA_VISIBLE_DEVICES"));
  d.devices = static_cast<int>(s.visible.size());
  return s;
}

}  // namespace card
