#include "teratron/train/model_setup.h"

#include <algorithm>

#include "teratron/base/attention_windows.h"
#include "teratron/base/error.h"
#include "teratron/train/device.h"
#include "teratron/train/pipeline_setup.h"

namespace teratron {

namespace {

PositionEmbedding position_embedding(const Arguments& args) {
  if (args.position_embedding_type == "rope") return PositionEmbedding::rope;
  if (args.position_embedding_type == "alibi") return PositionEmbedding::alibi;
  if (args.position_embedding_type == "none") return PositionEmbedding::none;
  TERATRON_ASSERT(args.position_embedding_type == "learned_absolute", "{}", args.position_embedding_type);
  return PositionEmbedding::learned_absolute;
}

Activation activation(const Arguments& args) {
  if (args.swiglu) return Activation::swiglu;
  if (args.geglu) return Activation::geglu;
  if (args.squared_relu) return Activation::squared_relu;
  return args.openai_gelu || args.bias_gelu_fusion ? Activation::gelu : Activation::gelu_erf;
}

// Published models may have more rows than their tokenizer has tokens: --vocab-size says how many.
int64_t model_vocabulary(const Arguments& args, int64_t tokenizer_size) {
  if (args.tokenizer_type == "NullTokenizer") return tokenizer_size;  // made from vocab_size
  return std::max(tokenizer_size, args.vocab_size.value_or(0));
}

RotaryConfig rotary_config(const Arguments& args) {
  return {.base = static_cast<double>(args.rotary_base),
          .percent = args.rotary_percent,
          .interleaved = args.rotary_interleaved,
          .interpolation = static_cast<double>(args.rotary_seq_len_interpolation_factor.value_or(1)),
          .llama3_factor = args.use_rope_scaling ? args.rope_scaling_factor : 0.0};
}

RecomputeConfig recompute_config(const Arguments& args) {
  using Granularity = RecomputeConfig::Granularity;
  using Method = RecomputeConfig::Method;
  if (args.recompute_granularity == "selective") return {.granularity = Granularity::attention_core};
  if (!args.recompute_granularity) return {};
  return {.granularity = Granularity::layers,
          .method = args.recompute_method == "block" ? Method::block : Method::uniform,
          .layers = args.recompute_num_layers.value(),
          .distribute_inputs = args.distribute_saved_activations};
}

}  // namespace

at::ScalarType model_dtype(const Arguments& args) {
  if (args.bf16) return at::kBFloat16;
  return args.fp16 ? at::kHalf : at::kFloat;
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
  return present ? current_gpu() : at::Device(at::kCPU);
}

std::optional<Fp8Options> fp8_options(const Arguments& args) {
  if (!args.fp8) return std::nullopt;
  using Recipe = Fp8Options::Recipe;
  return Fp8Options{.recipe = args.fp8_recipe == "delayed" ? Recipe::delayed : Recipe::tensorwise,
                    .gradients = args.fp8 == "hybrid" ? Fp8Format::e5m2 : Fp8Format::e4m3,
                    .weight_gradients = args.fp8_wgrad,
                    .margin = args.fp8_margin,
                    .history = args.fp8_amax_history_len,
                    .most_recent = args.fp8_amax_compute_algo == "most_recent"};
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

MeshOptions mesh_options(const Arguments& args) {
  return {.tp = args.tensor_model_parallel_size,
          .pp = args.pipeline_model_parallel_size,
          .cp = args.context_parallel_size,
          .ep = args.expert_model_parallel_size,
          .etp = args.expert_tensor_parallel_size.value_or(0),
          .order = args.use_tp_pp_dp_mapping ? "tp-cp-ep-pp-dp" : MeshOptions().order};
}

GPTConfig gpt_config(const Arguments& args, int64_t tokenizer_size) {
  const int64_t vocabulary = model_vocabulary(args, tokenizer_size);
  const int64_t heads = args.num_attention_heads.value();
  return {.layers = args.num_layers.value(),
          .hidden = args.hidden_size.value(),
          .ffn_hidden = args.ffn_hidden_size.value(),
          .heads = heads,
          .query_groups = args.group_query_attention ? args.num_query_groups : heads,
          .kv_channels = args.kv_channels.value(),
          .vocabulary = vocabulary,
          .padded_vocabulary = padded_vocab_size(args, vocabulary),
          .max_positions = args.max_position_embeddings.value(),
          .position = position_embedding(args),
          .rope = rotary_config(args),
          .norm = {.kind = args.normalization == "RMSNorm" ? NormKind::rms : NormKind::layer,
                   .eps = args.norm_epsilon,
                   .zero_centered = args.apply_layernorm_1p},
          .activation = activation(args),
          .linear_bias = args.add_bias_linear,
          .qkv_bias = args.add_qkv_bias,
          .tied_embeddings = !args.untie_embeddings_and_output_weights,
          .qk_norm = args.qk_layernorm,
          .residual_after_norm = args.apply_residual_connection_post_layernorm,
          .fp32_residual = args.fp32_residual_connection && (args.bf16 || args.fp16),
          .query_key_layer_scaling = args.apply_query_key_layer_scaling,
          .windows = attention_windows({args.window_size, args.window_attn_skip_freq}, *args.num_layers),
          .init_std = args.init_method_std,
          .xavier_init = args.init_method_xavier_uniform,
          .hidden_dropout = args.hidden_dropout,
          .attention_dropout = args.attention_dropout,
          .dropout_seed = static_cast<uint64_t>(args.seed),
          .recompute = recompute_config(args),
          .loss_chunks = args.loss_chunks,
          .bf16_layers_at_start = args.first_last_layers_bf16 ? args.num_layers_at_start_in_bf16 : 0,
          .bf16_layers_at_end = args.first_last_layers_bf16 ? args.num_layers_at_end_in_bf16 : 0,
          .fp8_output_layer = args.fp8_output_proj};
}

ModelShape model_shape(const GPTConfig& config) {
  return {.layers = config.layers,
          .hidden = config.hidden,
          .heads = config.heads,
          .kv_channels = config.kv_channels,
          .query_groups = config.query_groups,
          .ffn_hidden = config.ffn_hidden,
          .padded_vocab = config.padded_vocabulary,
          .swiglu = is_gated(config.activation)};
}

OptimizerOptions optimizer_options(const Arguments& args) {
  return {.kind = args.optimizer == "sgd" ? OptimizerKind::sgd : OptimizerKind::adam,
          .adam = {.beta1 = args.adam_beta1, .beta2 = args.adam_beta2, .eps = args.adam_eps},
          .sgd_momentum = args.sgd_momentum,
          .clip_grad = args.clip_grad,
          .skip_nonfinite = args.fp16 || args.check_for_nan_in_loss_and_grad,
          .count_zeros = args.log_num_zeros_in_grad};
}

TrainerOptions trainer_options(const Arguments& args, const GPTConfig& model, at::Device device) {
  const int64_t default_bucket = std::max<int64_t>(40'000'000, 1'000'000 * args.data_parallel_size.value());
  return {.model = model,
          .layout = pipeline_layout(layout_options(args)),
          .microbatch_group = args.microbatch_group_size_per_vp_stage.value_or(0),
          .overlap_p2p = args.overlap_p2p_comm,
          .optimizer = optimizer_options(args),
          .dtype = model_dtype(args),
          .fp8 = fp8_options(args),
          .device = device,
          .seed = static_cast<uint64_t>(args.seed),
          .sequence_parallel = args.sequence_parallel && args.tensor_model_parallel_size > 1,
          .overlap_tensor_parallel = args.async_tensor_model_parallel_allreduce,
          .sharded_optimizer = args.use_distributed_optimizer,
          .overlap_param_gather = args.overlap_param_gather,
          .average_in_collective = args.ddp_average_in_collective,
          .per_token_loss = args.calculate_per_token_loss,
          .reduce_in_bf16 = args.grad_reduce_in_bf16,
          .bucket_size = args.ddp_bucket_size.value_or(default_bucket),
          .report_parameter_norm = args.log_params_norm,
          .graphs_after = args.cuda_graph_impl == "local" ? args.cuda_graph_warmup_steps : 0};
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
  resolve_lengths({.train_iters = args.train_iters,
                   .train_samples = args.train_samples,
                   .global_batch_size = args.global_batch_size.value(),
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

std::optional<ParamGroupRule> decoupled_group(const Arguments& args) {
  if (!args.decoupled_lr) return std::nullopt;
  return ParamGroupRule{.max_lr = args.decoupled_lr, .min_lr = args.decoupled_min_lr.value_or(args.min_lr)};
}

BatchSchedule batch_schedule(const Arguments& args) {
  const BatchLayout layout = {.micro_batch_size = args.micro_batch_size.value(),
                              .data_parallel_size = args.data_parallel_size.value()};
  const int64_t final_size = args.global_batch_size.value();
  const std::vector<int64_t>& ramp = args.rampup_batch_size;
  if (ramp.empty()) return BatchSchedule::constant(final_size, layout);
  return BatchSchedule::ramp({.start = ramp.at(0), .increment = ramp.at(1), .samples = ramp.at(2)},
                             final_size, layout);
}

}  // namespace teratron
