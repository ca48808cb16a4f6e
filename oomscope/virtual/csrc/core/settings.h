// What this process is told of its card.
#pragma once
#include <string>
#include <vector>

#include "card.h"

namespace card {

constexpr int max_devices = 64;  // of a machine

enum class AddressOrder { spans, ascending, scattered };

// What unknown values are read as (memory/copies.cpp).
enum class ValueRule { zeros, ones, larger, largest };

struct Settings {
  card_description description{};
  AddressOrder order = AddressOrder::spans;
  ValueRule values = ValueRule::zeros;
  uint64_t budget_bytes = 0;  // what a device gives out in all, with what others hold; at least what it tells
  uint64_t event_lag = 0;    // polls of a stream after which an event on it completes
  bool is_computed = false;  // the host computes what kernels would, in device memory: all of it is accessible then
  bool has_peers = false;    // the other ranks of a world are processes that share the ledger (nccl/exchange.h)
  std::string ledger;        // file through which processes of one machine share its cards; empty: none
  int installed = 1;         // devices in the machine, with all that this process lists in CUDA_VISIBLE_DEVICES
  std::vector<int> visible;  // which of them this process sees, in the order of its ordinals
  std::string fault;         // what is wrong with the settings; empty: nothing
};

// Reads OOMSCOPE_CARD and CUDA_VISIBLE_DEVICES.
Settings read_settings();

// The settings of this process: fixed from its first CUDA call on, until then those of the environment.
const Settings &settings();

}  // namespace card
