#include "teratron/train/engine/engine_options.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/device/device.h"
#include "teratron/models/finetuning.h"
#include "teratron/models/lora.h"
#include "teratron/models/precision.h"
#include "teratron/settings/checks/graphs.h"
#include "teratron/settings/component_options.h"
#include "teratron/settings/optimizer_rules.h"
#include "teratron/settings/param_group_settings.h"

namespace teratron {

namespace {

// On others the host reads where the rows of an expert end: for torch's grouped GEMM, and for FP8 on all
// but Hopper.
bool groups_experts_on_device(const Arguments& args, int64_t compute_capability) {
  const int64_t major = compute_capability / 10;
  return major == 9 || (major == 10 && !args.fp8);
}

bool experts_can_be_captured(const Arguments& args, at::Device device) {
  return !args.num_experts ||
         (expert_graph_obstacles(args).empty() && groups_experts_on_device(args, compute_capability(device)));
}

std::vector<std::string> added_head_patterns() {
  std::vector<std::string> patterns;
  for (const std::string_view head : added_heads) patterns.push_back(std::string(head) + "*");
  return patterns;
}

}  // namespace

bool experts_wait_for_device(const Arguments& args, at::Device device, at::ScalarType dtype) {
  if (!args.num_experts || !device.is_cuda()) return false;
  return dtype != at::kBFloat16 || !groups_experts_on_device(args, compute_capability(device));
}

at::Device choose_device(const Arguments& args) {
  if (args.device == "cpu") return at::kCPU;
  const bool present = gpu_count() > 0;
  if (args.device == "cuda" && !present) {
    throw config_error({.what = "--device cuda, but no GPU is visible to this process",
                        .where = "--device",
                        .fix = "Use --device cpu, or check the driver and CUDA_VISIBLE_DEVICES with "
                               "`teratron env`"});
  }
  if (!present) return at::kCPU;
  check_kernels_on(device_name(current_gpu()), compute_capability(current_gpu()));
  return current_gpu();
}

void check_kernels_on(const std::string& gpu, int64_t compute_capability) {
  constexpr int64_t ampere = 80;
  if (compute_capability >= ampere) return;
  throw config_error({.what = fmt::format("{} has compute capability {}.{}, and the kernels need 8.0", gpu,
                                          compute_capability / 10, compute_capability % 10),
                      .where = "--device",
                      .fix = "Use Ampere or later GPUs, or --device cpu"});
}

void check_fp8_on(const Arguments& args, const std::string& gpu, int64_t compute_capability) {
  constexpr int64_t ada = 89;
  if (!args.fp8 || compute_capability >= ada) return;
  throw config_error({.what = fmt::format("fp8 = {}, but {} has compute capability {}.{} and FP8 needs 8.9",
                                          *args.fp8, gpu, compute_capability / 10, compute_capability % 10),
                      .where = "--fp8-format",
                      .fix = "Leave it out, or train on Ada, Hopper or later GPUs"});
}

void check_graphs_on(const Arguments& args, at::Device device) {
  if (args.cuda_graph_impl != "local" || device.is_cuda()) return;
  throw config_error(
      {.what = "cuda_graph_impl = local, but no GPU is visible to this process",
       .where = "--cuda-graph-impl",
       .fix = "Leave it out, or check the driver and CUDA_VISIBLE_DEVICES with `teratron env`"});
}

void check_expert_graphs_on(const Arguments& args, const std::string& gpu, int64_t compute_capability) {
  if (args.cuda_graph_impl != "local" || !args.num_experts ||
      groups_experts_on_device(args, compute_capability))
    return;
  throw config_error(
      {.what = fmt::format("cuda_graph_impl = local, but {} has compute capability {}.{}, where "
                           "GEMMs of experts wait for the device",
                           gpu, compute_capability / 10, compute_capability % 10),
       .where = "--cuda-graph-impl",
       .fix = "Leave it out, or train on Hopper or Blackwell data-center GPUs"});
}

OptimizerOptions optimizer_options(const Arguments& args) {
  return {.clip_grad = args.clip_grad,
          .skip_nonfinite = args.fp16 || args.check_for_nan_in_loss_and_grad,
          .count_zeros = args.log_num_zeros_in_grad};
}

// With "auto" nothing is refused: what "local" does not support, and what the user wants to see, runs eagerly.
int64_t graphs_after(const Arguments& args, at::Device device) {
  if (args.cuda_graph_impl == "local") return args.cuda_graph_warmup_steps;
  const bool can_be_captured = args.cuda_graph_impl == "auto" && device.is_cuda() &&
                               args.remove_padding != "always" && args.tensor_model_parallel_size == 1 &&
                               args.pipeline_model_parallel_size == 1 && args.context_parallel_size == 1 &&
                               args.cpu_offloading_num_layers == 0 && args.timing_log_level < 2 &&
                               experts_can_be_captured(args, device);
  return can_be_captured ? args.cuda_graph_warmup_steps : 0;
}

EngineOptions engine_options(const Arguments& args, const ModelPlan& model, at::Device device) {
  const int64_t default_bucket = std::max<int64_t>(40'000'000, 1'000'000 * args.data_parallel_size.value());
  return {.model = model,
          .parallel = {.pipeline = pipeline_layout(args, model),
                       .microbatch_group = args.microbatch_group_size_per_vp_stage.value_or(0),
                       .overlap_p2p = args.overlap_p2p_comm,
                       .sequence_parallel = args.sequence_parallel && args.tensor_model_parallel_size > 1,
                       .overlap_tensor_parallel = args.async_tensor_model_parallel_allreduce},
          .rules = optimizer_rules(args),
          .param_group_rules = param_group_rules(args, added_head_patterns()),
          .optimizer = optimizer_options(args),
          .precision = {.dtype = model_dtype(args), .fp8 = fp8_options(args)},
          .lora = lora_options(args, model),
          .device = device,
          .seed = static_cast<uint64_t>(args.seed),
          .reduction = {.sharded = args.use_distributed_optimizer,
                        .bucket_size = args.ddp_bucket_size.value_or(default_bucket),
                        .average_in_collective = args.ddp_average_in_collective,
                        .reduce_in_bf16 = args.grad_reduce_in_bf16,
                        .overlap_param_gather = args.overlap_param_gather},
          .per_token_loss = args.calculate_per_token_loss,
          .report_parameter_norm = args.log_params_norm,
          .save_batches = args.check_for_nan_in_loss_and_grad && !args.fp16,
          .return_logits = args.return_logits,
          .graphs_after = graphs_after(args, device),
          .graphs_where_host_bound = args.cuda_graph_impl == "auto"};
}

bool packs_rows(const Arguments& args, const EngineOptions& options) {
  if (args.remove_padding == "never") return false;
  const bool model = options.model.packs_rows, step = !options.step || options.step->takes_packed_rows();
  const bool always = args.remove_padding == "always";
  if (model && step && args.context_parallel_size == 1) {
    // Whether graphs of padded rows take over depends on time, and packed rows are rounded differently.
    const bool reproducible = !args.deterministic_mode || options.graphs_after == 0;
    const bool padded = find_column(options.model.batch, "segment_start") != nullptr;
    return padded && (always || (options.device.is_cuda() && reproducible));
  }
  if (!always) return false;
  const char* const what = !model  ? "this model does not take rows without padding"
                           : !step ? "the train step does not take rows without padding"
                                   : "context-parallel ranks share each row with its padding";
  throw config_error({.what = what, .where = "--remove-padding always", .fix = "Leave it out"});
}

LossScaler loss_scaler(const Arguments& args) {
  if (!args.fp16) return LossScaler::constant(1.0F);
  if (args.loss_scale) return LossScaler::constant(static_cast<float>(*args.loss_scale));
  return LossScaler::dynamic({.initial_scale = static_cast<float>(args.initial_loss_scale),
                              .min_scale = static_cast<float>(args.min_loss_scale),
                              .growth_interval = static_cast<int64_t>(args.loss_scale_window),
                              .hysteresis = args.hysteresis});
}

OptimizerParamScheduler lr_scheduler(const Arguments& args) {
  if (args.skip_train) {
    return OptimizerParamScheduler({.decay_steps = 1, .decay_style = LrDecayStyle::constant});
  }
  LrScheduleOptions options{
      .init_lr = args.lr_warmup_init,
      .max_lr = args.lr.value(),
      .min_lr = args.min_lr,
      .decay_style = lr_decay_style_from_name(args.lr_decay_style).value(),
      .wsd_decay_style = wsd_decay_style_from_name(args.lr_wsd_decay_style).value(),
      .start_weight_decay = args.start_weight_decay.value_or(args.weight_decay),
      .end_weight_decay = args.end_weight_decay.value_or(args.weight_decay),
      .weight_decay_style = weight_decay_style_from_name(args.weight_decay_incr_style).value()};
  std::function<int64_t(int64_t)> samples_of;
  if (args.step_batch_size_schedule || !args.rampup_batch_size.empty()) {
    samples_of = [batches = batch_schedule(args)](int64_t iterations) {
      return batches.consumed_after(iterations);
    };
  }
  resolve_lengths({.train_iters = args.train_iters,
                   .train_samples = args.train_samples,
                   .global_batch_size = args.global_batch_size.value(),
                   .samples_of = samples_of,
                   .lr_decay_iters = args.lr_decay_iters,
                   .lr_decay_samples = args.lr_decay_samples,
                   .lr_wsd_decay_iters = args.lr_wsd_decay_iters,
                   .lr_wsd_decay_samples = args.lr_wsd_decay_samples,
                   .lr_warmup_fraction = args.lr_warmup_fraction,
                   .lr_warmup_iters = args.lr_warmup_iters,
                   .lr_warmup_samples = args.lr_warmup_samples},
                  options);
  return OptimizerParamScheduler(options);
}

std::optional<ParamGroupOverrides> decoupled_group(const Arguments& args) {
  if (!args.decoupled_lr) return std::nullopt;
  return ParamGroupOverrides{.max_lr = args.decoupled_lr,
                             .min_lr = args.decoupled_min_lr.value_or(args.min_lr)};
}

}  // namespace teratron
