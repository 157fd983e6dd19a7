#include "teratron/megatron/saved_args.h"

#include <algorithm>
#include <array>

#include "teratron/base/error.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/checkpoint_args.h"

namespace teratron {

using nlohmann::json;

namespace {

// Settings of the same name and meaning.
constexpr std::array shared_names = {"num_layers",
                                     "hidden_size",
                                     "ffn_hidden_size",
                                     "num_attention_heads",
                                     "kv_channels",
                                     "group_query_attention",
                                     "num_query_groups",
                                     "max_position_embeddings",
                                     "rotary_percent",
                                     "rotary_base",
                                     "rotary_interleaved",
                                     "rotary_seq_len_interpolation_factor",
                                     "make_vocab_size_divisible_by",
                                     "normalization",
                                     "norm_epsilon",
                                     "apply_layernorm_1p",
                                     "apply_residual_connection_post_layernorm",
                                     "openai_gelu",
                                     "squared_relu",
                                     "swiglu",
                                     "bert_binary_head",
                                     "untie_embeddings_and_output_weights",
                                     "attention_dropout",
                                     "hidden_dropout",
                                     "weight_decay",
                                     "clip_grad",
                                     "adam_beta1",
                                     "adam_beta2",
                                     "adam_eps",
                                     "micro_batch_size",
                                     "global_batch_size",
                                     "bias_gelu_fusion",
                                     "add_bias_linear",
                                     "add_qkv_bias",
                                     "seed",
                                     "init_method_std",
                                     "apply_query_key_layer_scaling",
                                     "vocab_file",
                                     "merge_file",
                                     "tokenizer_type",
                                     "tokenizer_model",
                                     "vocab_extra_ids",
                                     "seq_length"};

// Model settings that the arguments express in another way.
constexpr std::array expressed = {"position_embedding_type", "encoder_num_layers", "decoder_num_layers"};

json or_null(const json& settings, const char* name) {
  return settings.contains(name) ? settings[name] : json();
}

// The widths that follow from others, as Megatron-LM saves them.
void derive_widths(json& args) {
  if (args["kv_channels"].is_null())
    args["kv_channels"] = args["hidden_size"].get<int64_t>() / args["num_attention_heads"].get<int64_t>();
  if (args["ffn_hidden_size"].is_null()) args["ffn_hidden_size"] = 4 * args["hidden_size"].get<int64_t>();
  if (args["max_position_embeddings"].is_null()) args["max_position_embeddings"] = args["seq_length"];
}

json layout_args(const SavedArgs& saved) {
  const int64_t stages = saved.stages.stages;
  return {{"tensor_model_parallel_size", saved.tensor_ranks},
          {"pipeline_model_parallel_size", stages},
          {"transformer_pipeline_model_parallel_size", stages},
          {"pipeline_model_parallel_split_rank",
           saved.stages.split > 0 && stages > 1 ? json(saved.stages.split) : json()},
          {"virtual_pipeline_model_parallel_size", nullptr},
          {"num_layers_per_virtual_pipeline_stage", nullptr},
          {"data_parallel_size", 1},
          {"context_parallel_size", 1},
          {"expert_model_parallel_size", 1},
          {"world_size", saved.tensor_ranks * stages},
          {"sequence_parallel", false},
          {"use_distributed_optimizer", false},
          {"data_parallel_random_init", false}};
}

json model_args(const SavedArgs& saved) {
  const json& settings = saved.settings;
  const std::string position = settings.value("position_embedding_type", "learned_absolute");
  const bool t5 = saved.family == MegatronFamily::t5;
  return {{"position_embedding_type", position == "none" ? "learned_absolute" : position},
          {"add_position_embedding", position != "none"},
          {"use_rotary_position_embeddings", saved.names == LegacyNames::v2 && position == "rope"},
          {"encoder_num_layers", saved.stages.encoder_layers},
          {"decoder_num_layers", t5 ? json(saved.stages.decoder_layers) : json()},
          {"encoder_seq_length", or_null(settings, "seq_length")},
          {"decoder_seq_length", t5 ? or_null(settings, "decoder_seq_length") : json()},
          {"layernorm_epsilon", or_null(settings, "norm_epsilon")},
          {"padded_vocab_size", saved.padded_vocabulary},
          {"orig_vocab_size", saved.vocabulary},
          {"fp16", saved.dtype == Dtype::f16},
          {"bf16", saved.dtype == Dtype::bf16},
          {"consumed_train_samples", saved.state.value("consumed_train_samples", int64_t{0})},
          {"consumed_valid_samples", saved.state.value("consumed_valid_samples", int64_t{0})},
          {"iteration", saved.state.value("iteration", int64_t{0})},
          {"qk_layernorm", false},
          {"num_experts", nullptr},
          {"retro_add_retriever", false},
          {"fp8", nullptr},
          {"onnx_safe", nullptr},
          {"transformer_impl", "local"},
          {"use_mcore_models", false}};
}

void write_value(const json& value, PickleWriter& pickle) {
  if (value.is_boolean()) {
    pickle.boolean(value);
  } else if (value.is_number_integer()) {
    pickle.integer(value);
  } else if (value.is_number()) {
    pickle.real(value);
  } else if (value.is_string()) {
    pickle.text(value.get_ref<const std::string&>());
  } else {
    pickle.none();
  }
}

}  // namespace

void check_legacy_model(const json& settings, const std::string& where) {
  const json defaults = json::parse(to_json(Arguments()));
  std::vector<Problem> problems;
  const auto is_known = [](const std::string& name) {
    return std::ranges::find(shared_names, name) != shared_names.end() ||
           std::ranges::find(expressed, name) != expressed.end();
  };
  for (const std::string& name : model_fields()) {
    if (is_known(name) || !defaults.contains(name) || or_null(settings, name.c_str()) == defaults[name])
      continue;
    problems.push_back({.what = fmt::format("{} = {} does not exist in Megatron-LM's legacy models", name,
                                            settings[name].dump()),
                        .where = where});
  }
  const std::string position = settings.value("position_embedding_type", "");
  if (position == "alibi" || position == "relative")
    problems.push_back(
        {.what = fmt::format("position_embedding_type = {} does not exist in Megatron-LM's legacy models",
                             position),
         .where = where});
  if (!problems.empty()) {
    problems.back().fix = "Use --to-hf where transformers has the model";
    throw UserError(ExitCode::checkpoint, std::move(problems));
  }
}

void write_args(const SavedArgs& saved, PickleWriter& pickle) {
  json args = json::object();
  for (const char* name : shared_names) args[name] = or_null(saved.settings, name);
  derive_widths(args);
  args.update(model_args(saved));
  args.update(layout_args(saved));
  pickle.begin(PickledDict::name_space);
  for (const auto& [name, value] : args.items()) {
    pickle.text(name);
    write_value(value, pickle);
  }
  pickle.text("params_dtype");
  pickle.global("torch", saved.dtype == Dtype::f16    ? "float16"
                         : saved.dtype == Dtype::bf16 ? "bfloat16"
                                                      : "float32");
  pickle.end(PickledDict::name_space);
}

}  // namespace teratron
