/* nvJitLink: what is linked is a text that the driver stand-in loads as a module. */
#include "libraries/library.h"

enum { SUCCESS = 0, INTERNAL_ERROR = 6, NULL_INPUT = 10 };

typedef struct {
  uint32_t inputs;
} link_state;

static const char image[] = "// virtual card: linked\n";

CARD_API int nvJitLinkVersion(unsigned *major, unsigned *minor) {
  unsigned toolkit = (unsigned)library_version_of_toolkit();
  *major = toolkit / 10000, *minor = toolkit / 100 % 100;
  return SUCCESS;
}
CARD_API int nvJitLinkCreate(link_state **out, uint32_t options, const char **texts) {
  (void)options, (void)texts;
  *out = calloc(1, sizeof **out);
  return *out ? SUCCESS : INTERNAL_ERROR;
}
CARD_API int nvJitLinkDestroy(link_state **link) {
  if (!link) return NULL_INPUT;
  free(*link);
  *link = NULL;
  return SUCCESS;
}
CARD_API int nvJitLinkAddData(link_state *link, int kind, const void *data, size_t bytes, const char *name) {
  (void)kind, (void)bytes, (void)name;
  if (!data) return NULL_INPUT;
  link->inputs++;
  return SUCCESS;
}
CARD_API int nvJitLinkAddFile(link_state *link, int kind, const char *file) {
  (void)kind;
  if (!file) return NULL_INPUT;
  link->inputs++;
  return SUCCESS;
}
CARD_API int nvJitLinkComplete(link_state *link) { return link->inputs ? SUCCESS : NULL_INPUT; }
#define OUTPUT(name, text)                                                     \
  CARD_API int nvJitLinkGet##name##Size(link_state *link, size_t *bytes) {     \
    (void)link;                                                                \
    *bytes = sizeof text;                                                      \
    return SUCCESS;                                                            \
  }                                                                            \
  CARD_API int nvJitLinkGet##name(link_state *link, void *out) {               \
    (void)link;                                                                \
    memcpy(out, text, sizeof text);                                            \
    return SUCCESS;                                                            \
  }
OUTPUT(LinkedCubin, image)
OUTPUT(LinkedPtx, image)
OUTPUT(ErrorLog, "")
OUTPUT(InfoLog, "")
