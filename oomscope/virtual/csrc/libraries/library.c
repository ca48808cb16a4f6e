/* Handles and outputs of library calls, in one place for all libraries. */
#define _GNU_SOURCE
#include "libraries/library.h"


static const uint32_t mark = 0x6f6f6d73;
static const uintptr_t first_page = 4096; /* below: small numbers that some libraries use as handles */

int library_create(void *out) {
  library_object *object = calloc(1, LIBRARY_OBJECT_BYTES);
  if (object) object->mark = mark;
  memcpy(out, &object, sizeof object);
  return !object;
}

int library_destroy(void *object) {
  free(object);
  return 0;
}

static const library_object *object_of(const void *pointer) {
  const library_object *object = pointer;
  return (uintptr_t)pointer >= first_page && object->mark == mark ? object : NULL;
}

void *library_stream(const void *handle) {
  const library_object *object = object_of(handle);
  return object ? object->stream : NULL;
}

int library_set_stream(void *handle, void *stream) {
  ((library_object *)handle)->stream = stream;
  return 0;
}

void *library_values(const void *descriptor) {
  const library_object *object = object_of(descriptor);
  return object ? object->values : NULL;
}

int library_set_values(void *descriptor, void *values) {
  ((library_object *)descriptor)->values = values;
  return 0;
}

int library_set(void *object, int number, int value) {
  ((library_object *)object)->settings[number] = value;
  return 0;
}

int library_get(const void *object, int number) { return ((const library_object *)object)->settings[number]; }

void library_written(void *pointer, size_t bytes) {
  if (!pointer) return;
  if (card_is_device(pointer))
    card_written(pointer);
  else if (bytes)
    card_answer_unknown(pointer, bytes);
}

void library_zero(void *pointer, size_t bytes, void *stream) {
  if (pointer && bytes) card_fill(pointer, 0, bytes, stream);
}

size_t library_type_bytes(int type) {
  /* Real and complex types alternate: 16 bits, 32, 64, integers of 8, 32, 4, 16 and 64 bits, bfloat16, 8-bit floats. */
  static const struct {
    int type;
    size_t bytes;
  } known[] = {{2, 2},  {6, 4},  {14, 2}, {15, 4}, {0, 4},  {4, 8},  {1, 8},  {5, 16}, {3, 1}, {7, 2}, {8, 1},
               {9, 2},  {10, 4}, {11, 8}, {12, 4}, {13, 8}, {20, 2}, {21, 4}, {22, 2}, {23, 4}, {24, 8},
               {25, 16}, {26, 8}, {27, 16}, {28, 1}, {29, 1}, {30, 1}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].type == type) return known[i].bytes;
  return 0;
}
