// Decompresses Zstandard frames (RFC 8878), the form in which compilers put machine code into programs.
#pragma once
#include <stddef.h>

#include <string>

namespace card {

// Returns false where the frame is malformed, needs a dictionary, or gives more than `limit` bytes. Checksums are not
// checked.
bool decompress_zstd(const void *frame, size_t bytes, size_t limit, std::string *out);

}  // namespace card
