// A model out of a checkpoint, built from the settings that were saved with it.
#pragma once

#include <memory>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/comm/mesh/mesh.h"
#include "teratron/models/gpt/gpt.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// Weights, model and settings; lives as long as any of its members is used.
struct LoadedModel {
  Arguments args;  // the checkpoint's, overridden by what the user gave
  CheckpointInfo checkpoint;
  std::unique_ptr<ParameterSet> parameters;
  std::unique_ptr<GPT> model;
};

struct InferenceOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

/// Reads --load (and --ckpt-step). UserError(checkpoint) where there is no checkpoint. Collective.
LoadedModel load_for_inference(const ParsedArguments& given, const InferenceOptions& options,
                               const Mesh& mesh);

/// The settings of the checkpoint at --load with those that the user gave on top.
Arguments with_checkpoint_settings(const ParsedArguments& given, const CheckpointInfo& checkpoint);

}  // namespace teratron
