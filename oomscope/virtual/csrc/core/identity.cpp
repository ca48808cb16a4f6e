#include "core/identity.h"

#include <stdio.h>
#include <string.h>

namespace card {

void device_uuid_bytes(int device, unsigned char bytes[16]) {
  memset(bytes, 0, 16);
  memcpy(bytes, "oomscope", 8);
  bytes[15] = static_cast<unsigned char>(device);
}

std::string device_uuid(int device) {
  unsigned char bytes[16];
  device_uuid_bytes(device, bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; i++) {
    char pair[4];
    snprintf(pair, sizeof pair, "%02x", bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += pair;
  }
  return text;
}

std::string device_bus_id(int device) {
  char text[32];
  snprintf(text, sizeof text, "00000000:%02X:00.0", device_bus(device));
  return text;
}

}  // namespace card
