#pragma once

namespace card {

// The driver's function of that name in that version of CUDA (major * 1000 + minor * 10); null: there is none.
void *cuda_entry_point(const char *name, int version);

}  // namespace card
