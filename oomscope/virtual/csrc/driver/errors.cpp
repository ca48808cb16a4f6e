#include "core/errors.h"

#include "core/process.h"

using namespace card;

CARD_API int cuGetErrorString(int status, const char **text) {
  auto *found = error_text(status);
  if (text) *text = found && found->driver_name ? found->text : nullptr;
  return text && *text ? 0 : CARD_INVALID_VALUE;
}

CARD_API int cuGetErrorName(int status, const char **name) {
  auto *found = error_text(status);
  if (name) *name = found ? found->driver_name : nullptr;
  return name && *name ? 0 : CARD_INVALID_VALUE;
}
