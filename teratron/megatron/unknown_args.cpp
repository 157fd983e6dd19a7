#include "teratron/megatron/unknown_args.h"

#include <algorithm>
#include <span>

#include "teratron/megatron/saved_args.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

// Arguments that have another name than their flag, and what Megatron-LM adds to them at run time.
constexpr std::string_view no_flags[] = {"DDP_impl",
                                         "apply_rope_fusion",
                                         "adlr_autoresume_object",
                                         "add_position_embedding",
                                         "barrier_with_L1_time",
                                         "blend",
                                         "blend_per_split",
                                         "ckpt_fully_parallel_save_deprecated",
                                         "compat",
                                         "consumed_train_samples",
                                         "consumed_valid_samples",
                                         "cuda_graph_scope_deprecated",
                                         "curr_iteration",
                                         "data_parallel_size",
                                         "dataloader_type",
                                         "decoder_seq_length",
                                         "deprecated_use_mcore_models",
                                         "disable_bias_linear",
                                         "disable_msc_deprecated",
                                         "dist_ckpt_format_deprecated",
                                         "do_test",
                                         "do_train",
                                         "do_valid",
                                         "embedding_weights_in_fp32",
                                         "encoder_seq_length",
                                         "eod_mask_loss",
                                         "extra_vocab_size",
                                         "fully_parallel_load",
                                         "fully_parallel_save",
                                         "inference_dynamic_batching_enable_prefix_caching",
                                         "iteration",
                                         "layernorm_epsilon",
                                         "logit_dtype",
                                         "metadata_path",
                                         "model_type",
                                         "muon_split_qkv",
                                         "nccl_ub",
                                         "num_floating_point_operations_so_far",
                                         "offset_sampling_seed_by_dp_rank",
                                         "orig_vocab_size",
                                         "overlap_p2p_comm_warmup_flush",
                                         "padded_vocab_size",
                                         "params_dtype",
                                         "perform_initialization",
                                         "rank",
                                         "reset_attention_mask",
                                         "reset_position_ids",
                                         "retro_verify_neighbor_count",
                                         "sft",
                                         "sft_tokenizer_prompt_format",
                                         "skipped_train_samples",
                                         "special_tokens",
                                         "torch_fsdp2_reshard_after_forward",
                                         "transformer_pipeline_model_parallel_size",
                                         "use_contiguous_buffers_in_local_ddp",
                                         "use_dist_ckpt_deprecated",
                                         "use_gloo_process_groups",
                                         "use_mamba_mem_eff_path",
                                         "variable_seq_lengths",
                                         "virtual_pipeline_model_parallel_size",
                                         "world_size"};

bool is_flag_of_megatron(const std::string& name) {
  const Schema::Target* const target = arguments_schema().find(name);
  return target != nullptr && !(target->field && target->field->since == "here");
}

bool is_flag(const std::string& name) {
  return is_flag_of_megatron(name) || is_flag_of_megatron("no_" + name);
}

bool is_known(const std::string& name) {
  return is_saved_argument(name) || std::ranges::find(no_flags, name) != std::end(no_flags) || is_flag(name);
}

}  // namespace

std::vector<std::string> unknown_arguments(const PickleValue* args) {
  std::vector<std::string> unknown;
  if (args == nullptr) return unknown;
  const std::span<PickleValue* const> items = args->items();
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::string name(items[i]->text());
    if (!is_known(name) && has_value(args, name)) unknown.push_back(name);
  }
  return unknown;
}

}  // namespace teratron
