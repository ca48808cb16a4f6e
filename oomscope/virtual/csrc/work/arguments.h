// The device pointers among the arguments of a kernel.
//
// A launch passes an array of pointers to the arguments; their number and sizes are in the kernel's machine code.
// Reading that takes milliseconds, so a guess comes first: whatever may be an argument, up to 4 KiB each, is searched
// for pointers into held ranges. Only where one is found the signature is asked for, and then exactly the arguments
// count. Where the machine code cannot be read the guess stands: it finds every pointer in the first 4 KiB of each
// argument, and may find more.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "code/cubin.h"

namespace card {

// Gives a kernel's signature; null: unknown. `resolve`: take the time to read the machine code.
using Signer = const Signature *(*)(const void *kernel, bool resolve);

// Marks the held ranges that the arguments of a kernel point into as unknown. Cheap where nothing is held.
void unhold_arguments(void **arguments, Signer sign, const void *kernel);
void unhold_buffer(const void *buffer, size_t bytes);

// Marks everything as unknown where the kernel's filters keep this process from reading its own arguments.
void unhold_all_if_blind();

// All words of the arguments that may be device pointers.
std::vector<uintptr_t> pointers_in_arguments(void **arguments, Signer sign, const void *kernel);
std::vector<uintptr_t> pointers_in_buffer(const void *buffer, size_t bytes);

}  // namespace card
