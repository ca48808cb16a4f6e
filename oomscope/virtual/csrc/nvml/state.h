// What the calls of NVML share. NVML tells of all installed devices, whatever CUDA_VISIBLE_DEVICES says, and never
// makes a process one that uses the card: it may be asked before a fork.
#pragma once
#include <stdint.h>

#include "core/ledger.h"
#include "core/settings.h"

namespace card {

enum NvmlStatus {
  nvml_success = 0,
  nvml_uninitialized = 1,
  nvml_invalid_argument = 2,
  nvml_not_supported = 3,
  nvml_not_found = 6,
  nvml_insufficient_size = 7
};

struct NvmlDevice;  // opaque: the handle is the device's index and a mark

NvmlDevice *nvml_handle(int device);
int nvml_index(const NvmlDevice *handle);  // -1: no handle of ours
bool nvml_is_initialized();

// Runs the body with the index of the device.
template <class Body>
int nvml_call(const NvmlDevice *handle, Body body) {
  if (!nvml_is_initialized()) return nvml_uninitialized;
  int device = nvml_index(handle);
  return device < 0 ? static_cast<int>(nvml_invalid_argument) : static_cast<int>(body(device));
}

template <class Value>
int nvml_value(const NvmlDevice *handle, Value *out, Value value) {
  return nvml_call(handle, [&](int) {
    if (!out) return nvml_invalid_argument;
    *out = value;
    return nvml_success;
  });
}

}  // namespace card
