#include "teratron/megatron/saved_args.h"

#include <algorithm>
#include <filesystem>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/megatron/structure.h"
#include "teratron/pickle/globals.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/checkpoint_args.h"

namespace teratron {

using nlohmann::json;

namespace {

using Kind = PickleValue::Kind;

// How an argument and the setting of its name become each other. `read`: it is written in another form.
// `write`: on import tensors or other arguments say it. `known`: both.
enum class Way : uint8_t { both, read, write, known };
// The models that have it; `with_experts`: read of models with experts alone.
enum class In : uint8_t { all, legacy, core, with_experts };

struct ArgRow {
  std::string_view name;
  Way way = Way::both;
  In models = In::all;

  bool is_of_core() const { return models == In::core || models == In::with_experts; }
  bool is_written() const { return way == Way::both || way == Way::write; }
  bool is_read() const { return way == Way::both || way == Way::read; }
};

using enum Way;
using enum In;

constexpr ArgRow arg_rows[] = {
#define ARG(...) {__VA_ARGS__},
#include "teratron/megatron/rows/saved_args.def"
#undef ARG
};

json value_of(const PickleValue& value) {
  if (value.is(Kind::boolean)) return value.integer() != 0;
  if (value.is(Kind::integer)) return value.integer();
  if (value.is(Kind::real)) return value.real();
  if (value.is(Kind::text)) return value.text();
  return nullptr;
}

// One of several values is a list, one is itself.
bool may_be_list(std::string_view name) {
  return name == "moe_router_load_balancing_type" || name == "moe_aux_loss_coeff";
}

void take_row(const PickleValue* args, std::string_view name, json& settings) {
  const PickleValue* const found = args == nullptr ? nullptr : args->find(name);
  if (found == nullptr) return;
  const json value = may_be_list(name) && found->is(Kind::list) ? plain_json(*found) : value_of(*found);
  if (value.is_null()) return;
  settings[name] = may_be_list(name) && !value.is_array() ? json::array({value}) : value;
}

json or_null(const json& settings, std::string_view name) {
  return settings.contains(name) ? settings[name] : json();
}

// The widths that follow from others, as Megatron-LM saves them.
void derive_widths(json& args) {
  if (args["kv_channels"].is_null() && !args["num_attention_heads"].is_null())
    args["kv_channels"] = args["hidden_size"].get<int64_t>() / args["num_attention_heads"].get<int64_t>();
  if (args["ffn_hidden_size"].is_null()) args["ffn_hidden_size"] = 4 * args["hidden_size"].get<int64_t>();
  if (args["max_position_embeddings"].is_null()) args["max_position_embeddings"] = args["seq_length"];
}

json one_or_list(const json& values) {
  return values.is_array() && values.size() == 1 ? values[0] : values;
}

json core_args(const SavedArgs& saved) {
  const json& settings = saved.settings;
  json args = json::object();
  for (const ArgRow& row : arg_rows) {
    if (row.is_written() && row.is_of_core()) args[row.name] = or_null(settings, row.name);
  }
  args["use_mcore_models"] = true;
  if (!args["hybrid_layer_pattern"].is_null()) {
    args["hybrid_override_pattern"] = args["hybrid_layer_pattern"];  // its earlier name
    args["is_hybrid_model"] = true;
  }
  if (!args["linear_attention_freq"].is_null()) {
    const std::string frequency = args["linear_attention_freq"];
    const bool number = frequency.find_first_not_of("0123456789") == frequency.npos;
    args["linear_attention_freq"] =
        number ? json(std::stoll(frequency)) : json(*parse_all_but_every(frequency, settings["num_layers"]));
  }
  // Latents are rotated there whatever the type, with YaRN unless another is named.
  if (args["multi_latent_attention"] == true && settings["position_embedding_type"] == "yarn") {
    args["position_embedding_type"] = "rope";
    args["rope_type"] = "yarn";
  }
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
  const int64_t data_ranks = std::max(saved.optimizer_ranks, saved.expert_ranks);
  return {{"tensor_model_parallel_size", saved.tensor_ranks},
          {"pipeline_model_parallel_size", stages},
          {"transformer_pipeline_model_parallel_size", stages},
          {"pipeline_model_parallel_split_rank",
           saved.stages.split > 0 && stages > 1 ? json(saved.stages.split) : json()},
          {"virtual_pipeline_model_parallel_size", nullptr},
          {"num_layers_per_virtual_pipeline_stage", nullptr},
          {"data_parallel_size", data_ranks},
          {"context_parallel_size", 1},
          {"expert_model_parallel_size", saved.expert_ranks},
          {"expert_tensor_parallel_size", saved.tensor_ranks},
          {"world_size", saved.tensor_ranks * stages * data_ranks},
          {"sequence_parallel", false},
          {"use_distributed_optimizer", saved.optimizer_ranks > 0},
          {"data_parallel_random_init", false}};
}

json model_args(const SavedArgs& saved) {
  const json& settings = saved.settings;
  const std::string position = settings.value("position_embedding_type", "learned_absolute");
  const std::vector<int64_t>& layers = saved.stages.layers;
  return {{"position_embedding_type", position == "none" ? "learned_absolute" : position},
          {"add_position_embedding", position != "none"},
          {"use_rotary_position_embeddings", saved.names == MegatronNames::legacy_v2 && position == "rope"},
          {"encoder_num_layers", layers[0]},
          {"decoder_num_layers", layers.size() > 1 ? json(layers[1]) : json()},
          {"encoder_seq_length", or_null(settings, "seq_length")},
          {"decoder_seq_length", or_null(settings, "decoder_seq_length")},
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

json saved_arg(const PickleValue* args, std::string_view name) {
  const PickleValue* const value = args == nullptr ? nullptr : args->find(name);
  return value == nullptr ? json() : value_of(*value);
}

bool has_value(const PickleValue* args, std::string_view name) {
  const PickleValue* const value = args == nullptr ? nullptr : args->find(name);
  if (value == nullptr || value->is(Kind::none)) return false;
  if (value->is(Kind::text)) return !value->text().empty();
  if (value->is(Kind::real)) return value->real() != 0;
  if (value->is(Kind::boolean) || value->is(Kind::integer)) return value->integer() != 0;
  const bool is_list = value->is(Kind::list) || value->is(Kind::tuple) || value->is(Kind::dict);
  return !is_list || !value->items().empty();
}

bool is_saved_argument(std::string_view name) {
  return std::ranges::find(arg_rows, name, &ArgRow::name) != std::end(arg_rows);
}

bool is_true(const json& value) {
  return !value.is_null() && value != false && value != 0;
}

namespace {

struct SavedTokenizer {
  std::string_view type;
  std::vector<const char*> files;
};

// Tokenizers that are the same here. NullTokenizer counts its tokens in another way.
const SavedTokenizer saved_tokenizers[] = {{"GPT2BPETokenizer", {"vocab_file", "merge_file"}},
                                           {"BertWordPieceLowerCase", {"vocab_file"}},
                                           {"BertWordPieceCase", {"vocab_file"}},
                                           {"HuggingFaceTokenizer", {"tokenizer_model"}},
                                           {"SentencePieceTokenizer", {"tokenizer_model"}},
                                           {"GPTSentencePieceTokenizer", {"tokenizer_model"}},
                                           {"Llama2Tokenizer", {"tokenizer_model"}}};

// The type and, if they are on this machine, the files.
void take_tokenizer(const PickleValue* args, json& settings) {
  const json type = saved_arg(args, "tokenizer_type");
  const auto* const known = std::ranges::find_if(
      saved_tokenizers, [&](const SavedTokenizer& each) { return type == std::string(each.type); });
  if (known == std::end(saved_tokenizers)) return;
  const bool here = std::ranges::all_of(known->files, [&](const char* name) {
    const json file = saved_arg(args, name);
    std::error_code ignored;
    return file.is_string() && std::filesystem::exists(file.get<std::string>(), ignored);
  });
  if (!here && known->files.front() == std::string_view("tokenizer_model")) return;
  settings["tokenizer_type"] = type;
  for (const char* const name : known->files) {
    if (here)
      settings[name] =
          std::filesystem::absolute(saved_arg(args, name).get<std::string>()).lexically_normal().string();
  }
}

}  // namespace

json saved_settings(const PickleValue* args) {
  json settings = json::object();
  const bool has_experts = is_true(saved_arg(args, "num_experts"));
  for (const ArgRow& row : arg_rows) {
    if (row.is_read() && (row.models != In::with_experts || has_experts)) take_row(args, row.name, settings);
  }
  // Names of earlier releases.
  if (const json old = saved_arg(args, "layernorm_epsilon");
      !old.is_null() && !settings.contains("norm_epsilon"))
    settings["norm_epsilon"] = old;
  if (const json old = saved_arg(args, "disable_bias_linear");
      !old.is_null() && !settings.contains("add_bias_linear"))
    settings["add_bias_linear"] = !is_true(old);
  take_tokenizer(args, settings);
  if (is_true(saved_arg(args, "use_rotary_position_embeddings")))
    settings["position_embedding_type"] = "rope";
  if (is_true(saved_arg(args, "group_query_attention"))) {
    settings["group_query_attention"] = true;
    settings["num_query_groups"] = saved_arg(args, "num_query_groups");
  }
  return settings;
}

void check_megatron_model(const json& settings, MegatronNames names, const std::string& where) {
  const json defaults = json::parse(to_json(Arguments()));
  const char* const models = is_core(names) ? "Megatron-Core's models" : "Megatron-LM's legacy models";
  std::vector<Problem> problems;
  const auto is_known = [names](const std::string& name) {
    const ArgRow* const row = std::ranges::find(arg_rows, std::string_view(name), &ArgRow::name);
    if (row == std::end(arg_rows) || row->way == Way::read) return false;
    return row->models == In::all || row->is_of_core() == is_core(names);
  };
  for (const std::string& name : model_fields()) {
    if (is_known(name) || !defaults.contains(name) || or_null(settings, name) == defaults[name]) continue;
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

void add_counters(const SavedArgs& saved, PickleWriter& pickle) {
  pickle.text("args");
  write_args(saved, pickle);
  pickle.text("checkpoint_version");
  pickle.real(3.0);
  pickle.text("iteration");
  pickle.integer(saved.state.value("iteration", int64_t{0}));
  pickle.text("num_floating_point_operations_so_far");
  pickle.real(saved.state.value("num_floating_point_operations_so_far", 0.0));
}

void write_args(const SavedArgs& saved, PickleWriter& pickle) {
  json args = json::object();
  for (const ArgRow& row : arg_rows) {
    if (row.is_written() && !row.is_of_core()) args[row.name] = or_null(saved.settings, row.name);
  }
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
  pickle.global("torch", torch_dtype(saved.dtype));
  pickle.end(PickledDict::name_space);
}

}  // namespace teratron
