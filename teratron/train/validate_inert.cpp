// Settings that have nothing to act on beside the others: each is told.
#include "teratron/train/validate.h"

namespace teratron {

namespace {

struct Inert {
  std::vector<std::string_view> names;
  bool always;           // under these settings
  std::string_view why;  // "--x has no effect" + why
};

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

}  // namespace

void note_inert(Validation& v) {
  for (const auto& inert : {inert_data, inert_tokenizer, inert_schedule, inert_layout}) {
    for (const Inert& group : inert(v.args)) {
      for (const std::string_view name : group.names) {
        if (group.always && v.chosen(name))
          v.note(fmt::format("{} has no effect {}", flag_of(name), group.why));
      }
    }
  }
}

}  // namespace teratron
