// Launcher of embedding.h. Raw device pointers.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

struct CUstream_st;

namespace teratron::cuda {

struct AddLookedUpArgs {
  int64_t rows, width;
  Dtype dtype;
  const int64_t* ids;  // [rows / rows_of_id]
  int64_t rows_of_id;
  const void* table;
  void* x;
};
void add_looked_up(const AddLookedUpArgs& args, CUstream_st* stream);

struct AddRowsArgs {
  int64_t rows, width;
  Dtype dtype;           // of dy
  const int64_t* ids;    // [rows], ascending
  const int64_t* order;  // [rows]: the row of dy that each belongs to
  const void* dy;
  void* sum;      // accumulation type
  void* partial;  // [add_rows_partials(rows), width], accumulation type
};
int64_t add_rows_partials(int64_t rows);
void add_rows(const AddRowsArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
