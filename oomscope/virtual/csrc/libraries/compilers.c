/* NVRTC: a program "compiles" to a text, which the driver stand-in loads as a module.
 *
 * Lowered names are the expressions themselves: kernels of such modules are looked up by name only. */
#define _GNU_SOURCE
#include <stdio.h>

#include "libraries/library.h"

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, INVALID_PROGRAM = 4, NO_LOWERED_NAMES = 9, NOT_VALID = 10 };

typedef struct name {
  struct name *next;
  char text[];
} name;
typedef struct {
  name *names;
  char image[128];
  int is_compiled;
} program;

CARD_API const char *nvrtcGetErrorString(int status) {
  return status ? "NVRTC_ERROR: the virtual card does not support this" : "NVRTC_SUCCESS";
}
/* The capabilities that CUDA 13 compiles for; TransformerEngine asks for the highest. */
static const int capabilities[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
CARD_API int nvrtcGetSupportedArchs(int *out) {
  memcpy(out, capabilities, sizeof capabilities);
  return SUCCESS;
}

CARD_API int nvrtcCreateProgram(program **out, const char *source, const char *file, int headers,
                                const char *const *contents, const char *const *includes) {
  (void)headers, (void)contents, (void)includes;
  if (!out || !source) return INVALID_INPUT;
  *out = calloc(1, sizeof **out);
  if (!*out) return OUT_OF_MEMORY;
  snprintf((*out)->image, sizeof (*out)->image, "// virtual card: %s, %zu bytes of source\n", file ? file : "program",
           strlen(source));
  return SUCCESS;
}
CARD_API int nvrtcDestroyProgram(program **p) {
  if (!p || !*p) return INVALID_PROGRAM;
  for (name *each = (*p)->names, *next; each; each = next) {
    next = each->next;
    free(each);
  }
  free(*p);
  *p = NULL;
  return SUCCESS;
}
CARD_API int nvrtcAddNameExpression(program *p, const char *expression) {
  size_t bytes = strlen(expression) + 1;
  name *added = malloc(sizeof *added + bytes);
  if (!added) return OUT_OF_MEMORY;
  memcpy(added->text, expression, bytes);
  added->next = p->names;
  p->names = added;
  return SUCCESS;
}
CARD_API int nvrtcCompileProgram(program *p, int options, const char *const *texts) {
  (void)options, (void)texts;
  p->is_compiled = 1;
  return SUCCESS;
}
CARD_API int nvrtcGetLoweredName(program *p, const char *expression, const char **lowered) {
  if (!p->is_compiled) return NO_LOWERED_NAMES;
  for (name *each = p->names; each; each = each->next)
    if (!strcmp(each->text, expression)) {
      *lowered = each->text;
      return SUCCESS;
    }
  return NOT_VALID;
}
#define COMPILED(kind)                                                 \
  CARD_API int nvrtcGet##kind##Size(program *p, size_t *bytes) {       \
    *bytes = p->is_compiled ? strlen(p->image) + 1 : 0;                \
    return SUCCESS;                                                    \
  }                                                                    \
  CARD_API int nvrtcGet##kind(program *p, char *out) {                 \
    if (!p->is_compiled) return INVALID_PROGRAM;                       \
    memcpy(out, p->image, strlen(p->image) + 1);                       \
    return SUCCESS;                                                    \
  }
COMPILED(PTX)
COMPILED(CUBIN)
