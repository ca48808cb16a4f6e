// What a device says of itself, by the numbers of CUdevice_attribute, which the runtime shares.
#pragma once

namespace card {

// Returns CARD_INVALID_VALUE for a number that no CUDA 13 knows.
int device_attribute(int attribute, int device, int *value);

}  // namespace card
