// Hugging Face's config.json as Megatron-LM's settings, and back.
//
// Known model types: gpt2, llama (2, 3, 3.1...), mistral, qwen2 (and 2.5), qwen3. What a file asks for and
// these settings cannot express (another activation, a rope type) is a UserError(checkpoint) that lists everything found: a model that would compute something else is never
// converted.
//
// GELU: GPT-2's gelu_new is the tanh form, the default here; "gelu" is that by erf (--no-bias-gelu-fusion).
// Sliding windows: W keys there, the query's own included, are --window-size W-1,0 here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "teratron/base/dtype.h"
#include "teratron/ckpt/checkpoint.h"

namespace teratron {

enum class HfFamily : uint8_t { gpt2, llama, mistral, qwen2, qwen3 };

/// What decides names and shapes of the tensors.
struct HfModel {
  HfFamily family = HfFamily::gpt2;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t ffn = 0;
  int64_t heads = 0;
  int64_t groups = 0;       // key/value heads
  int64_t kv_channels = 0;  // width of a head
  int64_t vocabulary = 0;
  int64_t positions = 0;
  bool tied = false;         // output layer = word embeddings
  bool linear_bias = false;  // in all linear layers
  bool qkv_bias = false;     // in the QKV projection, whatever linear_bias says
};

struct HfConfig {
  HfModel model;
  std::string settings;  // JSON object: Megatron-LM's argument names -> values
};

HfConfig parse_hf_config(const std::string& text, const std::string& where);

/// The model that a checkpoint of ours holds, from its settings and the shapes of its tensors.
HfModel model_of_checkpoint(const CheckpointInfo& info);

/// config.json of a model for export; `settings` as saved in the checkpoint.
std::string hf_config_text(const HfModel& model, const std::string& settings, Dtype dtype);

}  // namespace teratron
