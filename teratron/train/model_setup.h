// From the settings of a run to the structs that the layers below take.
#pragma once

#include <ATen/ATen.h>

#include "teratron/comm/mesh.h"
#include "teratron/data/gpt_builder.h"
#include "teratron/optim/batch_schedule.h"
#include "teratron/optim/loss_scaler.h"
#include "teratron/optim/lr_schedule.h"
#include "teratron/train/arguments.h"
#include "teratron/train/flops.h"
#include "teratron/train/tokenizer_settings.h"
#include "teratron/train/trainer.h"

namespace teratron {

/// fp32, or what --bf16 or --fp16 say.
at::ScalarType model_dtype(const Arguments& args);
/// What --device says; "auto" is the GPU where there is one. UserError(config) where cuda is asked for and absent.
at::Device choose_device(const Arguments& args);
/// What --fp8-format and its companions say; nothing without it.
std::optional<Fp8Options> fp8_options(const Arguments& args);
/// UserError(config) where --fp8-format is given and the GPU cannot multiply in FP8.
void check_fp8_on(const Arguments& args, const std::string& gpu, int64_t compute_capability);
/// UserError(config) where --cuda-graph-impl local is given and there is no GPU.
void check_graphs_on(const Arguments& args, at::Device device);
MeshOptions mesh_options(const Arguments& args);
/// The logical vocabulary is the tokenizer's, or --vocab-size where that is larger.
GPTConfig gpt_config(const Arguments& args, int64_t tokenizer_size);
ModelShape model_shape(const GPTConfig& config);
TrainerOptions trainer_options(const Arguments& args, const GPTConfig& model, at::Device device);
OptimizerOptions optimizer_options(const Arguments& args);
LossScaler loss_scaler(const Arguments& args);
OptimizerParamScheduler lr_scheduler(const Arguments& args);
/// What --decoupled-lr gives the word embeddings and the output layer.
std::optional<ParamGroupRule> decoupled_group(const Arguments& args);
BatchSchedule batch_schedule(const Arguments& args);

}  // namespace teratron
