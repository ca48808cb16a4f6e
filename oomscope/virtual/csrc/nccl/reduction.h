// NCCL's reductions as arithmetic on the host, for the few bytes that the card holds.
#pragma once
#include <stddef.h>

namespace nccl {

// Numbers of ncclRedOp_t; those behind are operations that a program made (ncclRedOpCreatePreMulSum).
enum Operation { sum = 0, product = 1, maximum = 2, minimum = 3, average = 4 };

// Bytes of one element of an ncclDataType_t; 0: there is no such type.
size_t bytes_of_type(int type);

// Whether the functions below know the operation on this type. 8-bit floats and a program's own operations are not
// known.
bool is_computed(int type, int operation);

// into[i] = into[i] OP other[i]. An average only adds; finish_average divides.
void reduce_into(void *into, const void *other, size_t count, int type, int operation);
void finish_average(void *values, size_t count, int type, int ranks);

// What the reduction gives where every rank holds these values: N x for a sum, x^N for a product, else x.
void reduce_alike(void *values, size_t count, int type, int operation, int ranks);

}  // namespace nccl
