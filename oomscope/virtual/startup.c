// Loaded by LD_PRELOAD into every process of a program that is measured. Python finds oomscope's sitecustomize on
// PYTHONPATH; a script that sets that anew (export PYTHONPATH=src) would lose it. So it is put back in front before
// Python's main() reads it.
#define _POSIX_C_SOURCE 200809L  // setenv

#include <stdlib.h>
#include <string.h>

static const char *const variable = "PYTHONPATH";

__attribute__((constructor)) static void keep_the_startup_folder(void) {
  const char *folder = getenv("OOMSCOPE_STARTUP_FOLDER"), *path = getenv(variable);
  if (!folder || !*folder) return;
  if (!path || !*path) {
    setenv(variable, folder, 1);
    return;
  }
  size_t length = strlen(folder), rest = strlen(path);
  if (!strncmp(path, folder, length) && (path[length] == ':' || !path[length])) return;
  char *both = malloc(length + 1 + rest + 1);
  if (!both) return;
  memcpy(both, folder, length);
  both[length] = ':';
  memcpy(both + length + 1, path, rest + 1);
  setenv(variable, both, 1);
  free(both);
}
