// Hugging Face's config.json as settings of Megatron-LM, and back (families: hf/families.h).
//
// UserError(checkpoint) lists everything in a config.json, or in a checkpoint's settings, that the other side
// cannot express: a model that would compute something else is never converted.
//
// GELU: GPT-2's gelu_new is the tanh form, the default here; "gelu" is that by erf (--no-bias-gelu-fusion).
// Sliding windows: W keys there, the query's own included, are --window-size W-1,0 here.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "teratron/base/dtype.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/hf/families.h"

namespace teratron {

struct HfModel {
  const HfFamily* family = nullptr;
  nlohmann::json settings;       // object: Megatron-LM's argument names -> values
  std::vector<int64_t> windows;  // for export: of each layer; empty: every query sees all keys

  bool tied() const { return !settings.at("untie_embeddings_and_output_weights").get<bool>(); }
};

/// `where` names the file in errors.
HfModel parse_hf_config(const std::string& text, const std::string& where);

/// The model in a checkpoint, from its settings; whether the tensors agree is for the caller to check.
HfModel hf_model_of(const CheckpointInfo& info);

/// config.json for export.
std::string hf_config_text(const HfModel& model, Dtype dtype);

}  // namespace teratron
