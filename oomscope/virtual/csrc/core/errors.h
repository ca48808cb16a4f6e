// Names and texts of the status codes, which the driver and the runtime share.
#pragma once

namespace card {

struct ErrorText {
  int code;
  const char *driver_name, *runtime_name, *text;
};

const ErrorText *error_text(int code);  // null: no such code

}  // namespace card
