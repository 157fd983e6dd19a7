// Which rows of which Hugging Face tensors make up each of our tensors: one table for both directions.
//
// Ours are Megatron-Core's: weights [out, in]; linear_qkv groups its rows per query group, [q heads of the
// group, k, v] of kv_channels rows each; linear_fc1 of a gated MLP is [gate; up].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/hf/config.h"

namespace teratron {

struct HfSource {
  std::string name;
  std::vector<int64_t> shape;  // as in the file
  bool transposed = false;     // its columns are our rows
};

/// `rows` rows of a source, from `row` on.
struct RowSlice {
  size_t source = 0;
  int64_t row = 0;
  int64_t rows = 0;
};

/// One of our tensors, [rows, columns] (columns = 1 for vectors): the concatenation of the slices.
struct HfTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<HfSource> sources;
  std::vector<RowSlice> slices;
};

/// Every tensor of the model, in the order of the forward pass. `prefix` precedes the names of the base
/// model's tensors: the family's, or nothing in files of the bare base model.
std::vector<HfTensor> hf_name_map(const HfModel& model, std::string_view prefix);

/// Tensors that hold no parameters: masks and rotary tables.
bool is_hf_buffer(std::string_view name);

}  // namespace teratron
