// Settings without effect next to others: each gives a notice.
#include <algorithm>

#include "teratron/base/strings.h"
#include "teratron/settings/checks/conditions.h"
#include "teratron/settings/checks/graphs.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

enum class IgnoredIf : uint8_t { with, without };
using enum IgnoredIf;

struct IgnoredFlags {
  std::string_view names;
  IgnoredIf when;
  std::string_view condition;  // find_held
};

// The first row that applies to a setting counts.
// clang-format off
constexpr IgnoredFlags ignored_flags[] = {
    // Model
    {"num_query_groups", without, "--group-query-attention"},
    {"rotary_percent rotary_base rotary_interleaved rotary_seq_len_interpolation_factor", without,
     "--position-embedding-type rope|yarn"},
    {"use_rope_scaling rope_scaling_factor rope_scaling_original_max_position_embeddings rope_scaling_high_freq_factor", without,
     "--position-embedding-type rope"},
    {"rotary_scaling_factor yarn_original_max_position_embeddings yarn_beta_fast yarn_beta_slow "
     "yarn_correction_range_round_to_int mscale mscale_all_dim", without,
     "--position-embedding-type yarn or --multi-latent-attention"},
    {"rotary_scaling_factor yarn_original_max_position_embeddings yarn_beta_fast yarn_beta_slow "
     "yarn_correction_range_round_to_int mscale mscale_all_dim", with, "--rope-type rope"},
    {"q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim rope_type latent_norm_epsilon "
     "latent_rotary_halves cache_mla_latents", without, "--multi-latent-attention"},
    {"latent_norm_epsilon", without, "--qk-layernorm"},
    {"mtp_loss_scaling_factor", without, "--mtp-num-layers"},
    {"kv_channels", with, "--multi-latent-attention"},
    {"yarn_original_max_position_embeddings yarn_beta_fast yarn_beta_slow yarn_correction_range_round_to_int mscale "
     "mscale_all_dim", with, "--rotary-scaling-factor 1.0"},
    {"rope_scaling_factor rope_scaling_original_max_position_embeddings rope_scaling_high_freq_factor", without,
     "--use-rope-scaling"},
    {"position_embedding_offset", without, "--position-embedding-type learned_absolute"},
    {"relative_attention_num_buckets relative_attention_max_distance", without, "--position-embedding-type relative"},
    {"lm_head_bias", with, "--untie-embeddings-and-output-weights"},
    {"qk_layernorm_all_heads qk_layernorm_per_head", without, "--qk-layernorm"},
    {"attention_temperature_scale", without, "--no-rope-freq"},
    {"attention_temperature_step", with, "--attention-temperature-scale 0.0"},
    {"apply_layernorm_1p", with, "--norm-weights none"},
    {"window_attn_skip_freq rotary_base_local", without, "--window-size"},
    {"no_rope_freq rotary_base_local longrope_short_factors longrope_long_factors rotary_reversed", without,
     "--position-embedding-type rope|yarn"},
    {"longrope_original_max_position_embeddings longrope_attention_factor", without, "--longrope-short-factors"},
    {"quick_geglu_slope", without, "--quick-geglu"},
    {"bias_gelu_fusion", with, "--swiglu or --geglu or --quick-geglu or --relu or --squared-relu or --openai-gelu"},
    {"init_method_std", with, "--init-method-xavier-uniform"},
    {"recompute_method recompute_num_layers", without, "--recompute-granularity full"},
    {"moe_layer_freq moe_ffn_hidden_size moe_router_topk moe_router_score_function moe_router_pre_softmax "
     "moe_router_topk_scaling_factor moe_router_num_groups moe_router_group_topk moe_router_enable_expert_bias "
     "moe_router_bias_update_rate moe_router_dtype moe_router_load_balancing_type moe_aux_loss_coeff moe_z_loss_coeff "
     "moe_input_jitter_eps moe_router_force_load_balancing moe_expert_capacity_factor moe_token_drop_policy "
     "moe_pad_expert_input_to_capacity moe_shared_expert_intermediate_size moe_shared_expert_gate "
     "moe_token_dispatcher_type moe_layer_recompute moe_latent_size moe_router_group_score_topk moe_router_unnormalized "
     "moe_router_normalize_one moe_router_least_sum moe_apply_probs_on_input", without, "--num-experts"},
    {"moe_router_group_score_topk", without, "--moe-router-num-groups"},
    {"moe_router_unnormalized moe_router_normalize_one", with, "--moe-router-score-function softmax"},
    {"moe_router_normalize_one", with, "--moe-router-unnormalized"},
    {"linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim "
     "linear_allow_negative_eigenvalues linear_norm_epsilon", without,
     "--experimental-attention-variant or --hybrid-layer-pattern"},
    {"moe_router_bias_update_rate", without, "--moe-router-enable-expert-bias"},
    {"moe_token_drop_policy", without, "--moe-expert-capacity-factor"},
    {"moe_token_dispatcher_type", with, "--expert-model-parallel-size 1"},
    // Parallelism
    {"use_distributed_optimizer overlap_param_gather ddp_bucket_size ddp_average_in_collective grad_reduce_in_bf16",
     without, "data_parallel_size > 1 or --context-parallel-size > 1"},
    {"cp_comm_type", without, "--context-parallel-size > 1"},
    {"ddp_average_in_collective", with, "--calculate-per-token-loss"},
    {"check_weight_hash_across_dp_replicas_interval", without,
     "data_parallel_size > 1 or --tensor-model-parallel-size > 1 or --context-parallel-size > 1"},
    {"async_tensor_model_parallel_allreduce", with, "--tensor-model-parallel-size 1"},
    {"use_tp_pp_dp_mapping", with, "data_parallel_size 1 or --pipeline-model-parallel-size 1"},
    {"decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers account_for_embedding_in_pipeline_split "
     "account_for_loss_in_pipeline_split overlap_p2p_comm", with, "--pipeline-model-parallel-size 1"},
    // Precision
    {"loss_scale initial_loss_scale min_loss_scale loss_scale_window hysteresis", without, "--fp16"},
    {"initial_loss_scale min_loss_scale loss_scale_window hysteresis", with, "--loss-scale"},
    {"fp8_recipe fp8_margin fp8_amax_history_len fp8_amax_compute_algo fp8_wgrad fp8_output_proj first_last_layers_bf16 "
     "num_layers_at_start_in_bf16 num_layers_at_end_in_bf16", without, "--fp8-format"},
    {"fp8_margin fp8_amax_history_len fp8_amax_compute_algo", with, "--fp8-recipe tensorwise"},
    {"num_layers_at_start_in_bf16 num_layers_at_end_in_bf16", without, "--first-last-layers-bf16"},
    // Training
    {"cuda_graph_warmup_steps", with, "--cuda-graph-impl none"},
    {"adam_beta1 adam_beta2 adam_eps", with, "--optimizer sgd"},
    {"sgd_momentum", without, "--optimizer sgd"},
    {"decoupled_min_lr", without, "--decoupled-lr"},
    {"no_weight_decay_cond_type", without, "--qk-layernorm"},
    {"lr_wsd_decay_style lr_wsd_decay_iters lr_wsd_decay_samples", without, "--lr-decay-style WSD"},
    {"lr_warmup_init", without, "--lr-warmup-iters or --lr-warmup-samples or --lr-warmup-fraction"},
    {"min_lr", with, "--lr-decay-style constant"},
    {"adlr_autoresume_interval autoresume_file", without, "--adlr-autoresume"},
    {"eval_interval return_logits logits_out gather_logits", with, "--eval-iters 0"},
    {"lora_alpha lora_dropout lora_targets lora_out", without, "--lora-rank or --lora"},
    {"sft_tokenizer_prompt_format sft_packing sft_overlong", without, "--sft"},
    {"reset_position_ids reset_attention_mask eod_mask_loss mid_level_dataset_surplus", with, "--sft"},
    // Checkpoints
    {"save_interval save_each_epoch save_retain_interval keep_last no_save_optim async_save log_progress", without, "--save"},
    {"ckpt_step", without, "--load or --save"},
    {"no_load_optim exit_on_missing_checkpoint use_checkpoint_args override_opt_param_scheduler "
     "use_checkpoint_opt_param_scheduler", without, "--load or --pretrained-checkpoint or --save"},
    // Data and tokenizer
    {"save_each_epoch", without, "--num-train-epochs"},
    {"split mmap_warmup data_cache_path mid_level_dataset_surplus", with, "--mock-data"},
    {"data_sharding", without, "--dataloader-type cyclic"},
    {"vocab_file", without, "--tokenizer-type GPT2BPETokenizer|BertWordPieceLowerCase|BertWordPieceCase"},
    {"merge_file", without, "--tokenizer-type GPT2BPETokenizer"},
    {"tokenizer_model", with, "--tokenizer-type GPT2BPETokenizer|BertWordPieceLowerCase|BertWordPieceCase|NullTokenizer"},
    {"tiktoken_pattern tiktoken_num_special_tokens tokenizer_special_tokens", without, "--tokenizer-type TikTokenizer"},
    {"vocab_extra_ids", without, "--tokenizer-type BertWordPieceLowerCase|BertWordPieceCase|SentencePieceTokenizer|"
     "GPTSentencePieceTokenizer|Llama2Tokenizer"},
    {"make_vocab_size_divisible_by", with, "--padded-vocab-size"},
    // Logging
    {"profile_step_start profile_step_end profile_ranks", without, "--profile"},
    {"wandb_exp_name wandb_save_dir", without, "--wandb-project"},
    {"tensorboard_log_interval log_learning_rate_to_tensorboard log_loss_scale_to_tensorboard log_timers_to_tensorboard "
     "log_validation_ppl_to_tensorboard log_memory_to_tensorboard log_world_size_to_tensorboard",
     without, "--tensorboard-dir"},
};
// clang-format on

}  // namespace

std::vector<IgnoredSetting> ignored_settings(const Arguments& args, const Sources& sources) {
  std::vector<IgnoredSetting> ignored;
  for (const IgnoredFlags& row : ignored_flags) {
    const auto held = find_held(row.condition, args, sources);
    if (held.has_value() != (row.when == with)) continue;
    const std::string why = held ? "with " + held->flag : fmt::format("without {}", row.condition);
    for (const std::string& name : split(row.names)) {
      if (std::ranges::find(ignored, name, &IgnoredSetting::name) == ignored.end())
        ignored.push_back({name, why});
    }
  }
  return ignored;
}

void warn_ignored(Validation& v) {
  for (const IgnoredSetting& setting : ignored_settings(v.args, v.sources)) {
    const auto source = v.sources.find(setting.name);
    if (source == v.sources.end() || !is_users(source->second)) continue;
    const Field& field = arguments_schema().field(setting.name);
    const std::string flag = flag_for(field, get_value(field, &v.args));
    v.note(fmt::format("{} has no effect {}", flag, setting.why));
  }
  // Settings without effect only if they are on.
  const Arguments& a = v.args;
  if (a.sequence_parallel && a.tensor_model_parallel_size == 1)
    v.note("--sequence-parallel has no effect with --tensor-model-parallel-size 1");
  if (a.fp32_residual_connection && !a.fp16 && !a.bf16)
    v.note("--fp32-residual-connection has no effect without --bf16 or --fp16");
  if (a.max_nan_iterations > 0 && a.fp16)
    v.note("--max-nan-iterations has no effect with --fp16, which skips steps that overflow");
  const bool layers_split = a.tensor_model_parallel_size > 1 || a.pipeline_model_parallel_size > 1;
  if (a.cuda_graph_impl == "auto" && v.chosen("cuda_graph_impl") && layers_split)
    v.note("--cuda-graph-impl auto has no effect with tensor or pipeline parallelism");
  if (a.cuda_graph_impl == "auto" && v.chosen("cuda_graph_impl") && !layers_split) {
    for (const GraphObstacle& obstacle : expert_graph_obstacles(a))
      v.note(fmt::format("--cuda-graph-impl auto has no effect: {}", obstacle.reason));
  }
  if (a.cuda_graph_impl != "local") return;
  if (a.timing_log_level >= 2)
    v.note("--timing-log-level 2: forward-compute does not include micro-batches replayed as CUDA graphs");
  for (const std::string_view name : {"overlap_grad_reduce", "overlap_param_gather"}) {
    if (v.chosen(name) && a.data_parallel_size != 1)
      v.note(fmt::format("{} has no effect once micro-batches are replayed as CUDA graphs", flag_of(name)));
  }
}

}  // namespace teratron
