// Conv1D weights of GPT-2 are transposed.
#pragma once

#include <cstdint>

namespace teratron {

/// A part of a matrix, and how many elements apart the rows of both sides are.
struct Transposition {
  int64_t rows = 0, columns = 0;  // of the input
  int64_t in_stride = 0, out_stride = 0;
};

/// out[column * out_stride + row] = in[row * in_stride + column], for elements of 2, 4 or 8 bytes.
void transpose(const char* in, char* out, const Transposition& part, int64_t element_bytes);

}  // namespace teratron
