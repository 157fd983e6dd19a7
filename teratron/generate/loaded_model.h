// A model for inference from a checkpoint, built from the settings saved with it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/comm/mesh/mesh.h"
#include "teratron/generate/language_model.h"
#include "teratron/models/family.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// LoRA adapters in PEFT's format.
struct NamedAdapter {
  std::string name, folder;
};

/// The model with weights that adapters changed; all others share the model's memory.
struct LoadedAdapter {
  std::string name;
  std::unique_ptr<ParameterSet> parameters;
  LanguageModel model;
};

/// The model refers to the parameters.
struct LoadedModel {
  Arguments args;  // the checkpoint's, overridden by the user's
  CheckpointInfo checkpoint;
  std::unique_ptr<ParameterSet> parameters;
  LanguageModel model;
  std::vector<LoadedAdapter> adapters = {};
};

struct InferenceOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  bool generates = false;                       // text; refused for models that do not
  std::span<const Family> families = {};        // of a program on the library, besides the built-in ones
  std::span<const NamedAdapter> adapters = {};  // to be loaded beside the model
};

/// The part of this rank of `mesh` in a model that is divided as `args` say. UserError(config) if an
/// encoder-decoder model is to have several stages and --pipeline-model-parallel-split-rank is missing.
InferenceRanks inference_ranks(const Arguments& args, const ModelPlan& plan, const Mesh& mesh);

/// Reads --load (and --ckpt-step), a checkpoint of ours or of Megatron-LM, or the folder of --hf.
/// UserError(checkpoint) if there is no checkpoint, UserError(config) for a given setting of the model that
/// is not the checkpoint's. Collective.
LoadedModel load_for_inference(const ParsedArguments& given, const InferenceOptions& options,
                               const Mesh& mesh);

}  // namespace teratron
