// `teratron logits` from a safetensors file: i64 tensors [B, S], and f32 tensors of images, by the names of
// the model's inputs.
#pragma once

#include <string>

#include "teratron/generate/language_model.h"

namespace teratron {

/// Whether the file is safetensors by its name or contents; else it is text.
bool is_safetensors(const std::string& path);

/// Reads all inputs of the model on the CPU: [B, S], or of items. UserError(data) that lists the tensors
/// which are missing or not the model's, of another dtype or shape, longer than the model's positions, or
/// have values out of range.
NamedTensors read_inputs(const std::string& path, const LanguageModel& model);

/// Their number in what read_inputs() gives.
int64_t sequences_in(const LanguageModel& model, const NamedTensors& inputs);

struct OutputChoice {
  std::string path;
  bool embeddings = false;  // these alone; else all but them. UserError(config) for a model without them
  bool writes = true;       // false: only computes
};
/// Computes the outputs for `inputs`, which are from the file `where`, and writes them.
void write_outputs(const LanguageModel& model, const NamedTensors& inputs, const std::string& where,
                   const OutputChoice& choice);

}  // namespace teratron
