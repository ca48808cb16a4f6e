// Looking up functions of the driver by name.
#include <dlfcn.h>

#include <string>

#include "core/process.h"
#include "driver/types.h"

using namespace card;

namespace {

// Where a version of the interface has a form of a function that is neither "name_v2" nor "name".
struct Form {
  const char *name;
  int since;
  const char *symbol;
};
const Form forms[] = {
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"},
    {"cuStreamGetCtx", 0, "cuStreamGetCtx"},
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
    {"cuCtxGetDevice", 0, "cuCtxGetDevice"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuMemAdvise", 13000, "cuMemAdvise_v2"},
    {"cuMemAdvise", 0, "cuMemAdvise"},
    {"cuMemPrefetchAsync", 13000, "cuMemPrefetchAsync_v2"},
    {"cuMemPrefetchAsync", 0, "cuMemPrefetchAsync"},
};

void *symbol_of(const std::string &name) {
  static void *self = [] {
    Dl_info info;
    return dladdr(reinterpret_cast<const void *>(&cuda_entry_point), &info)
               ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
               : nullptr;
  }();
  return self ? dlsym(self, name.c_str()) : nullptr;
}

}  // namespace

void *card::cuda_entry_point(const char *name, int version) {
  for (auto &form : forms)
    if (std::string(form.name) == name && version >= form.since) return symbol_of(form.symbol);
  void *found = symbol_of(std::string(name) + "_v2");
  return found ? found : symbol_of(name);
}

CARD_API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t, int *found) {
  if (!name || !function) return CARD_INVALID_VALUE;
  constexpr int is_found = 0, is_unknown = 1;
  *function = cuda_entry_point(name, version);
  if (found) *found = *function ? is_found : is_unknown;
  return *function ? 0 : CARD_NOT_FOUND;
}

CARD_API int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// Undocumented tables. NVIDIA's runtime asks for them first of all, so that the caller is a library that has one inside,
// and is named.
CARD_API int cuGetExportTable(const void **table, const void *) {
  if (table) *table = nullptr;
  Dl_info caller;
  bool is_known = dladdr(__builtin_return_address(0), &caller) && caller.dli_fname;
  card_unsupported(("cuGetExportTable of " + std::string(is_known ? caller.dli_fname : "?")).c_str());
  return CARD_NOT_FOUND;
}
