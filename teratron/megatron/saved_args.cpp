#include "teratron/megatron/saved_args.h"

#include <algorithm>
#include <array>

#include "teratron/base/config/layer_pattern.h"
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

// The same of Megatron-Core's models.
constexpr std::array core_names = {"qk_layernorm",
                                   "num_experts",
                                   "moe_ffn_hidden_size",
                                   "moe_router_topk",
                                   "moe_router_score_function",
                                   "moe_router_pre_softmax",
                                   "moe_router_topk_scaling_factor",
                                   "moe_router_num_groups",
                                   "moe_router_group_topk",
                                   "moe_router_enable_expert_bias",
                                   "moe_router_bias_update_rate",
                                   "moe_router_dtype",
                                   "moe_z_loss_coeff",
                                   "moe_input_jitter_eps",
                                   "moe_expert_capacity_factor",
                                   "moe_pad_expert_input_to_capacity",
                                   "moe_token_drop_policy",
                                   "moe_shared_expert_intermediate_size",
                                   "moe_shared_expert_gate",
                                   "moe_token_dispatcher_type"};
constexpr std::array core_expressed = {"moe_layer_freq"};
constexpr std::array legacy_only = {"apply_residual_connection_post_layernorm"};

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

// One of several values is a list, one is itself.
json one_or_list(const json& values) {
  return values.is_array() && values.size() == 1 ? values[0] : values;
}

json core_args(const SavedArgs& saved) {
  const json& settings = saved.settings;
  json args = json::object();
  for (const char* name : core_names) args[name] = or_null(settings, name);
  args["use_mcore_models"] = true;
  args["transformer_impl"] = saved.names == MegatronNames::core_te ? "transformer_engine" : "local";
  if (args["num_experts"].is_null()) return args;
  if (args["moe_ffn_hidden_size"].is_null()) args["moe_ffn_hidden_size"] = settings["ffn_hidden_size"];
  args["moe_grouped_gemm"] = saved.names == MegatronNames::core_te;
  args["moe_router_load_balancing_type"] = one_or_list(settings["moe_router_load_balancing_type"]);
  args["moe_aux_loss_coeff"] = one_or_list(settings["moe_aux_loss_coeff"]);
  const std::string frequency = settings["moe_layer_freq"];
  const bool number = frequency.find_first_not_of("0123456789") == frequency.npos;
  args["moe_layer_freq"] =
      number ? json(std::stoll(frequency)) : json(*parse_layer_pattern(frequency, settings["num_layers"]));
  return args;
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
          {"data_parallel_size", saved.expert_ranks},
          {"context_parallel_size", 1},
          {"expert_model_parallel_size", saved.expert_ranks},
          {"expert_tensor_parallel_size", saved.tensor_ranks},
          {"world_size", saved.tensor_ranks * stages * saved.expert_ranks},
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
          {"use_rotary_position_embeddings", saved.names == MegatronNames::legacy_v2 && position == "rope"},
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
  } else if (value.is_array()) {
    pickle.begin_list();
    for (const json& item : value) write_value(item, pickle);
    pickle.end_list();
  } else {
    pickle.none();
  }
}

}  // namespace

void check_megatron_model(const json& settings, MegatronNames names, const std::string& where) {
  const json defaults = json::parse(to_json(Arguments()));
  const char* const models = is_core(names) ? "Megatron-Core's GPT" : "Megatron-LM's legacy models";
  std::vector<Problem> problems;
  const auto is_known = [names](const std::string& name) {
    const auto is_in = [&name](const auto& list) { return std::ranges::find(list, name) != list.end(); };
    if (is_core(names) && is_in(legacy_only)) return false;
    if (is_core(names) && (is_in(core_names) || is_in(core_expressed))) return true;
    return is_in(shared_names) || is_in(expressed);
  };
  for (const std::string& name : model_fields()) {
    if (is_known(name) || !defaults.contains(name) || or_null(settings, name.c_str()) == defaults[name])
      continue;
    problems.push_back(
        {.what = fmt::format("{} = {} does not exist in {}", name, settings[name].dump(), models),
         .where = where});
  }
  const std::string position = settings.value("position_embedding_type", "");
  if (position == "alibi" || position == "relative")
    problems.push_back(
        {.what = fmt::format("position_embedding_type = {} does not exist in {}", position, models),
         .where = where});
  if (!problems.empty()) {
    problems.back().fix = is_core(names) ? "Use --to-hf where transformers has the model"
                                         : "Use --megatron-names mcore where Megatron-Core has the model, or "
                                           "--to-hf where transformers has it";
    throw UserError(ExitCode::checkpoint, std::move(problems));
  }
}

void write_args(const SavedArgs& saved, PickleWriter& pickle) {
  json args = json::object();
  for (const char* name : shared_names) args[name] = or_null(saved.settings, name);
  derive_widths(args);
  args.update(model_args(saved));
  args.update(layout_args(saved));
  if (is_core(saved.names)) args.update(core_args(saved));
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
