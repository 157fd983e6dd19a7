// Converts the settings to options of the engine, its optimizer and its schedules.
#pragma once

#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "teratron/optim/batch_schedule.h"
#include "teratron/optim/loss_scaler.h"
#include "teratron/optim/lr_schedule.h"
#include "teratron/settings/arguments.h"
#include "teratron/train/engine/engine.h"

namespace teratron {

/// The device of --device; "auto" is the GPU if there is one. UserError(config) if cuda is requested and
/// absent.
at::Device choose_device(const Arguments& args);
/// UserError(config) for a GPU without bf16 tensor cores.
void check_kernels_on(const std::string& gpu, int64_t compute_capability);
/// UserError(config) if --fp8-format is given and the GPU has no FP8 GEMMs.
void check_fp8_on(const Arguments& args, const std::string& gpu, int64_t compute_capability);
/// UserError(config) if --cuda-graph-impl local is given and there is no GPU.
void check_graphs_on(const Arguments& args, at::Device device);
/// UserError(config) if --cuda-graph-impl local is given and the GPU's GEMMs of experts wait for the device.
void check_expert_graphs_on(const Arguments& args, const std::string& gpu, int64_t compute_capability);
/// Whether GEMMs of experts with weights of this type wait for the device, so that no step is a CUDA graph.
bool experts_wait_for_device(const Arguments& args, at::Device device, at::ScalarType dtype);
EngineOptions engine_options(const Arguments& args, const ModelPlan& model, at::Device device);
/// Whether rows are trained on without their padding (--remove-padding). UserError(config) if the user asks
/// for it and the model or the train step does not take packed rows.
bool packs_rows(const Arguments& args, const EngineOptions& options);
OptimizerOptions optimizer_options(const Arguments& args);
LossScaler loss_scaler(const Arguments& args);
OptimizerParamScheduler lr_scheduler(const Arguments& args);
/// Learning rates of --decoupled-lr for the word embeddings and the output layer.
std::optional<ParamGroupOverrides> decoupled_group(const Arguments& args);

}  // namespace teratron
