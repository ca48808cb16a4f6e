// The driver's functions, looked up through the runtime.
#include "driver/entry_points.h"

#include <stdint.h>

#include "core/identity.h"
#include "core/process.h"

using namespace card;

CARD_API int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long,
                                              int *found) {
  return runtime_call([&]() -> int {
    constexpr int is_found = 0, is_unknown = 1;
    if (!name || !function) return CARD_INVALID_VALUE;
    *function = cuda_entry_point(name, static_cast<int>(version));
    if (found) *found = *function ? is_found : is_unknown;
    return 0;
  });
}

CARD_API int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
  return cudaGetDriverEntryPointByVersion(name, function, driver_version, flags, found);
}

CARD_API int cudaGetExportTable(const void **table, const void *) {
  if (table) *table = nullptr;
  card_unsupported("cudaGetExportTable");
  return last_error = CARD_NOT_FOUND;
}
