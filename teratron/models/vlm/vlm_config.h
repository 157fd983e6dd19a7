// Configuration of a language model that reads images.
#pragma once

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/vlm/vision_config.h"
#include "teratron/nn/mlp.h"

namespace teratron {

struct Validation;

struct VlmConfig {
  GPTConfig language;
  VisionConfig vision;
  MlpOptions projector;
  bool projector_frozen = false;
  int64_t image_token = -200;
};

/// From the command-line arguments.
VlmConfig vlm_config(const Arguments& args, int64_t tokenizer_size);

/// Settings of the tower that are not given, and the length of the sequences.
void derive_vlm(Validation& v);
void check_vlm(const Arguments& args, std::vector<Problem>& problems);

}  // namespace teratron
