// Which rows of which Hugging Face tensors make up each of our tensors: one table for both directions.
//
// Ours are Megatron-Core's: weights [out, in]; linear_qkv groups its rows per query group, [q heads of the
// group, k, v] of kv_channels rows each; linear_fc1 of a gated MLP is [gate; up]. GPT-2 stores linear weights
// as [in, out] (Conv1D) and q, k, v side by side; Llama and its kin store q, k, v, gate and up on their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/hf/config_import.h"

namespace teratron {

struct HfSource {
  std::string name;
  std::vector<int64_t> shape;  // as in the file
  bool transposed = false;     // its columns are our rows
};

/// `rows` rows of a source, from `row` on. Our rows are these one after the other.
struct RowRun {
  size_t source = 0;
  int64_t row = 0;
  int64_t rows = 0;
};

/// One of our tensors, [rows, columns] (columns = 1 for vectors).
struct HfMapping {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<HfSource> sources;
  std::vector<RowRun> runs;
};

/// Every tensor of the model, in the order of the forward pass. `prefix` precedes the names of the base
/// model: "transformer." or "model.", or nothing in files of the bare base model.
std::vector<HfMapping> hf_layout(const HfModel& model, const std::string& prefix);

/// What `prefix` is in files written by the causal language model.
std::string hf_prefix(HfFamily family);
/// The base model's word embeddings, without prefix: tells which prefix a file uses.
std::string hf_embedding_name(HfFamily family);
/// Tensors that hold no parameters (masks, rotary tables) or repeat tied ones.
bool is_hf_buffer(const std::string& name);

}  // namespace teratron
