// What a device says of itself, the same in the driver, the runtime and NVML.
#pragma once
#include <string>

namespace card {

constexpr int driver_version = 13000;  // CUDA 13.0: what every build for CUDA 13 runs on
constexpr const char *driver_release = "580.95.05";

// By the numbers of CUdevice_attribute. Returns CARD_INVALID_VALUE for a number that no CUDA 13 knows.
int device_attribute(int attribute, int device, int *value);

// Here `device` counts the installed devices, not the visible ones.
std::string device_uuid(int device);  // "GPU-6f6f6d73-..."
void device_uuid_bytes(int device, unsigned char bytes[16]);
std::string device_bus_id(int device);  // "00000000:18:00.0"
inline int device_bus(int device) { return 0x18 + device; }

}  // namespace card
