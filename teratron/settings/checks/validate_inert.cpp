// Settings that have nothing to act on beside the others: each is told.
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

std::vector<Inert> inert_data(const Arguments& a) {
  return {{{"split", "data_cache_path", "mid_level_dataset_surplus"}, a.mock_data, "with --mock-data"},
          {{"data_sharding"}, a.dataloader_type != "cyclic", "without --dataloader-type cyclic"},
          {{"eval_interval"}, a.eval_iters == 0, "with --eval-iters 0"}};
}

std::vector<Inert> inert_tokenizer(const Arguments& a) {
  const std::string type = a.tokenizer_type.value_or("");
  const bool bpe = type == "GPT2BPETokenizer";
  const bool bert = type.starts_with("BertWordPiece");
  constexpr std::string_view why = "with this --tokenizer-type";
  return {{{"vocab_file"}, !bpe && !bert, why},
          {{"merge_file"}, !bpe, why},
          {{"tokenizer_model"}, bpe || bert || type == "NullTokenizer", why},
          {{"tiktoken_pattern", "tiktoken_num_special_tokens", "tokenizer_special_tokens"},
           type != "TikTokenizer",
           "without --tokenizer-type TikTokenizer"},
          {{"vocab_extra_ids"},
           !bert && type.find("entencePiece") == type.npos && type != "Llama2Tokenizer",
           why},
          {{"make_vocab_size_divisible_by"}, a.padded_vocab_size.has_value(), "with --padded-vocab-size"}};
}

std::vector<Inert> inert_schedule(const Arguments& a) {
  const bool warms_up = a.lr_warmup_iters > 0 || a.lr_warmup_samples > 0 || a.lr_warmup_fraction.has_value();
  return {{{"lr_wsd_decay_style", "lr_wsd_decay_iters", "lr_wsd_decay_samples"},
           a.lr_decay_style != "WSD",
           "without --lr-decay-style WSD"},
          {{"lr_warmup_init"}, !warms_up, "without a warm-up"},
          {{"min_lr"}, a.lr_decay_style == "constant", "with --lr-decay-style constant"},
          {{"init_method_std"}, a.init_method_xavier_uniform, "with --init-method-xavier-uniform"},
          {{"initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"},
           a.fp16 && a.loss_scale.has_value(),
           "with a constant --loss-scale"}};
}

std::vector<Inert> inert_layout(const Arguments& a) {
  const bool one_replica = a.data_parallel_size == 1;
  return {{{"use_distributed_optimizer", "overlap_param_gather", "ddp_bucket_size",
            "ddp_average_in_collective", "grad_reduce_in_bf16"},
           one_replica,
           "at data_parallel_size 1"},
          {{"check_weight_hash_across_dp_replicas_interval"},
           one_replica && a.tensor_model_parallel_size == 1,
           "at data_parallel_size 1 and tensor_model_parallel_size 1"},
          {{"async_tensor_model_parallel_allreduce"},
           a.tensor_model_parallel_size == 1,
           "at tensor_model_parallel_size 1"},
          {{"use_tp_pp_dp_mapping"},
           one_replica || a.pipeline_model_parallel_size == 1,
           "unless there are several pipeline stages and data-parallel ranks"}};
}

// The flag that gave a setting its value.
std::string flag_behind(std::string_view name, const Arguments& args) {
  const Arguments defaults;
  const Field& field = arguments_schema().field(name);
  const bool off = get_value(field, &args) == Value(false) && get_value(field, &defaults) == Value(true);
  return off ? "--no" + flag_of(name).substr(1) : flag_of(name);
}

}  // namespace

std::vector<Inert> inert_model(const Arguments& a) {
  const bool rotary = a.position_embedding_type == "rope";
  return {{{"num_query_groups"}, !a.group_query_attention, "without --group-query-attention"},
          {{"rotary_percent", "rotary_base", "rotary_interleaved", "rotary_seq_len_interpolation_factor",
            "use_rope_scaling", "rope_scaling_factor"},
           !rotary,
           "without --position-embedding-type rope"},
          {{"rope_scaling_factor"}, rotary && !a.use_rope_scaling, "without --use-rope-scaling"},
          {{"window_attn_skip_freq"}, !a.window_size, "without --window-size"},
          {{"bias_gelu_fusion"},
           a.swiglu || a.geglu || a.squared_relu || a.openai_gelu,
           "on another activation than GELU"}};
}

void note_inert(Validation& v) {
  for (const auto& inert : {inert_model, inert_data, inert_tokenizer, inert_schedule, inert_layout}) {
    for (const Inert& group : inert(v.args)) {
      for (const std::string_view name : group.names) {
        if (group.always && v.chosen(name))
          v.note(fmt::format("{} has no effect {}", flag_behind(name, v.args), group.why));
      }
    }
  }
}

}  // namespace teratron
