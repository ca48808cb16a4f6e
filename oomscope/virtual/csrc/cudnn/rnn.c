/* cuDNN's recurrent networks: where each weight lies in the caller's buffer, and sizes of the buffers.
 *
 * Weights lie dense, as torch.nn's flattened parameters need them: all matrices of a layer (each direction is a layer of
 * its own), input before recurrent, gate after gate, then the projection; behind all matrices the biases in the same
 * order. Sizes of temporary and reserve space are estimates: cuDNN's own are not published. */
#include "cudnn/cudnn.h"

enum { RELU = 0, TANH = 1, LSTM = 2, GRU = 3 };
enum { NO_BIAS = 0, INPUT_BIAS = 1, BOTH_BIASES = 2, RECURRENT_BIAS = 3 };
enum { SKIP_INPUT = 1 };
enum { INFERENCE = 0 };

typedef struct {
  library_object object;
  int cell, bias, direction, input_mode, type, input, hidden, projection, layers;
} network;

typedef struct {
  library_object object;
  int longest, batch;
} sequence;

CARD_API int cudnnSetRNNDescriptor_v8(network *n, int algorithm, int cell, int bias, int direction, int input_mode,
                                      int type, int precision, int math, int32_t input, int32_t hidden,
                                      int32_t projection, int32_t layers, void *dropout, uint32_t flags) {
  (void)algorithm, (void)precision, (void)math, (void)dropout, (void)flags;
  n->cell = cell, n->bias = bias, n->direction = direction, n->input_mode = input_mode, n->type = type;
  n->input = input, n->hidden = hidden, n->projection = projection, n->layers = layers;
  return CUDNN_SUCCESS;
}
CARD_API int cudnnSetRNNDataDescriptor(sequence *s, int type, int layout, int longest, int batch, int width,
                                       const int *lengths, void *padding) {
  (void)type, (void)layout, (void)width, (void)lengths, (void)padding;
  s->longest = longest, s->batch = batch;
  return CUDNN_SUCCESS;
}

static int gates(const network *n) { return n->cell == LSTM ? 4 : n->cell == GRU ? 3 : 1; }
static int directions(const network *n) { return n->direction ? 2 : 1; }
static int output_width(const network *n) { return n->projection > 0 ? n->projection : n->hidden; }
static int is_projected(const network *n) { return n->projection > 0 && n->projection != n->hidden; }
static int input_width(const network *n, int layer) {
  if (layer >= directions(n)) return output_width(n) * directions(n);
  return n->input_mode == SKIP_INPUT ? 0 : n->input;
}
/* Elements of one layer: its matrices, and its biases. */
static size_t matrix_elements(const network *n, int layer) {
  size_t rows = (size_t)gates(n) * (size_t)n->hidden;
  size_t projection = is_projected(n) ? (size_t)n->projection * (size_t)n->hidden : 0;
  return rows * (size_t)(input_width(n, layer) + output_width(n)) + projection;
}
static size_t bias_elements(const network *n) {
  static const int biases[] = {0, 1, 2, 1};
  return (size_t)biases[n->bias & 3] * (size_t)gates(n) * (size_t)n->hidden;
}
static size_t all_matrix_elements(const network *n, int layers) {
  size_t elements = 0;
  for (int layer = 0; layer < layers; layer++) elements += matrix_elements(n, layer);
  return elements;
}

CARD_API int cudnnGetRNNWeightSpaceSize(void *handle, const network *n, size_t *bytes) {
  int layers = n->layers * directions(n);
  (void)handle;
  *bytes = (all_matrix_elements(n, layers) + (size_t)layers * bias_elements(n)) * cudnn_type_bytes(n->type);
  return CUDNN_SUCCESS;
}

/* One weight: `number` counts the gates of the input, then those of the recurrence, then the projection. */
CARD_API int cudnnGetRNNWeightParams(void *handle, const network *n, int32_t layer, size_t bytes, const void *space,
                                     int32_t number, cudnn_tensor *matrix, void **matrix_at, cudnn_tensor *bias,
                                     void **bias_at) {
  int count = gates(n), layers = n->layers * directions(n), is_input = number < count;
  int is_projection = number == 2 * count;
  int rows = is_projection ? n->projection : n->hidden;
  int columns = is_projection ? n->hidden : is_input ? input_width(n, layer) : output_width(n);
  int has_bias = !is_projection && (n->bias == BOTH_BIASES || n->bias == (is_input ? INPUT_BIAS : RECURRENT_BIAS));
  size_t element = cudnn_type_bytes(n->type), hidden = (size_t)n->hidden, at = all_matrix_elements(n, layer), bias_from;
  (void)handle, (void)bytes;
  if (layer < 0 || layer >= layers || number < 0 || number > 2 * count || (is_projection && !is_projected(n)))
    return CUDNN_BAD_PARAM;

  at += (size_t)(is_input ? number : count) * hidden * (size_t)input_width(n, layer);
  if (!is_input) at += (size_t)(number - count) * hidden * (size_t)output_width(n);
  if (matrix) cudnn_set_dense(matrix, n->type, 3, (int[]){1, rows, columns});
  if (matrix_at) *matrix_at = columns ? (char *)(uintptr_t)space + at * element : NULL;

  bias_from = all_matrix_elements(n, layers) + (size_t)layer * bias_elements(n);
  bias_from += (size_t)(n->bias == BOTH_BIASES || is_input ? number : number - count) * hidden;
  if (bias) cudnn_set_dense(bias, n->type, 3, (int[]){1, has_bias ? n->hidden : 0, 1});
  if (bias_at) *bias_at = has_bias ? (char *)(uintptr_t)space + bias_from * element : NULL;
  return CUDNN_SUCCESS;
}

/* Numbers that each layer keeps for its backward, for every token and hidden unit: as cuDNN 9.19.0 on an H100 does for
 * two layers in one direction (docs/accuracy.md). */
static size_t kept(const network *n) { return n->cell == LSTM ? 5 : n->cell == GRU ? 6 : 1; }

/* Estimates. Workspace: the gates of one layer for all time steps; that H100 took 2.5 to 7.6 times as much. Reserve, in
 * training: what the layers keep, the inputs of all but the first, and 256 bytes. */
CARD_API int cudnnGetRNNTempSpaceSizes(void *handle, const network *n, int mode, const sequence *x, size_t *workspace,
                                       size_t *reserve) {
  size_t element = cudnn_type_bytes(n->type), steps = (size_t)x->longest * (size_t)x->batch;
  size_t layers = (size_t)n->layers * (size_t)directions(n), hidden = (size_t)n->hidden, gate = (size_t)gates(n);
  size_t inputs = ((size_t)n->layers - 1) * (size_t)output_width(n) * (size_t)directions(n);
  (void)handle;
  card_unknown_workspace("cudnnGetRNNTempSpaceSizes");
  if (workspace) *workspace = steps * gate * hidden * (size_t)directions(n) * element;
  if (reserve) *reserve = mode == INFERENCE ? 0 : steps * (layers * kept(n) * hidden + inputs) * element + 256;
  return CUDNN_SUCCESS;
}
