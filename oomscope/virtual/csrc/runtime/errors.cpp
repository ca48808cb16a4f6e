#include "core/errors.h"

#include "core/process.h"
#include "work/stale_stack.h"

using namespace card;

CARD_API int cudaGetLastError(void) {
  tidy_stack();
  int status = last_error;
  last_error = 0;
  return status;
}

CARD_API int cudaPeekAtLastError(void) {
  tidy_stack();
  return last_error;
}

CARD_API const char *cudaGetErrorString(int status) {
  auto *found = error_text(status);
  return found ? found->text : "unrecognized error code";
}

CARD_API const char *cudaGetErrorName(int status) {
  auto *found = error_text(status);
  return found ? found->runtime_name : "unrecognized error code";
}
