// The addresses of cudaMalloc under Linux, in the order of an H100's driver 580 (docs/accuracy.md, "On a real H100").
//
// The driver takes spans of whole 32 MiB, from the highest gap downwards. A request goes into the newest span that has
// room: into the smallest hole that fits, at its start. An empty span is given back. Every function is called with
// memory_mutex held.
#pragma once
#include <stdint.h>

namespace card {

// `bytes` are whole pages of 2 MiB; 0 where there is no room.
uintptr_t take_from_spans(int device, uint64_t bytes);
// Does nothing where the address is of no span.
void give_to_spans(uintptr_t address, uint64_t bytes);

}  // namespace card
