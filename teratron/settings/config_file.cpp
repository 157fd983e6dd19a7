#include "teratron/settings/config_file.h"

#include <algorithm>
#include <map>
#include <set>

#include "teratron/base/config/yaml.h"
#include "teratron/base/strings.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

// A key of Accelerate's configuration. Other keys must be fields.
struct AccelerateKey {
  enum class Kind : uint8_t { renamed, launcher, only, absent, usual, no_op, all_logging, python };
  std::string_view key;
  Kind kind;
  /// renamed: the field; only: the supported values, "a|b"; absent: what to use in its place; usual: values
  /// that need no notice; no_op: the reason
  std::string_view text;
};

using Kind = AccelerateKey::Kind;

constexpr AccelerateKey top_keys[] = {
    {"compute_environment", Kind::only, "LOCAL_MACHINE"},
    {"distributed_type", Kind::only, "MEGATRON_LM|NO|MULTI_GPU|MULTI_CPU"},
    {"downcast_bf16", Kind::only, "no|false"},
    {"gpu_ids", Kind::launcher, ""},
    {"machine_rank", Kind::launcher, ""},
    {"main_process_ip", Kind::launcher, ""},
    {"main_process_port", Kind::launcher, ""},
    {"num_machines", Kind::launcher, ""},
    {"num_processes", Kind::launcher, ""},
    {"debug", Kind::usual, "false"},
    {"enable_cpu_affinity", Kind::usual, "false"},
    {"main_training_function", Kind::usual, "main"},
    {"rdzv_backend", Kind::usual, "static"},
    {"same_network", Kind::usual, "true|false"},
    {"tpu_env", Kind::usual, ""},
    {"tpu_use_cluster", Kind::usual, "false"},
    {"tpu_use_sudo", Kind::usual, "false"},
};

// Fields of Accelerate's MegatronLMPlugin that are not fields here under the same name.
constexpr AccelerateKey plugin_keys[] = {
    {"tp_degree", Kind::renamed, "tensor_model_parallel_size"},
    {"pp_degree", Kind::renamed, "pipeline_model_parallel_size"},
    {"sequence_parallelism", Kind::renamed, "sequence_parallel"},
    {"gradient_clipping", Kind::renamed, "clip_grad"},
    {"decoder_last_pipeline_num_layers", Kind::renamed, "decoder_last_pipeline_num_layers"},
    {"attention_backend", Kind::no_op, "the fastest applicable attention kernel is used"},
    {"is_train_batch_min", Kind::no_op, "the batch size of a rank is micro_batch_size"},
    {"megatron_dataset_flag", Kind::no_op, "datasets are always in Megatron-LM's format"},
    {"use_custom_fsdp", Kind::absent,
     "parameters are not sharded over data-parallel ranks. use_distributed_optimizer shards the optimizer's "
     "state over them, tp_degree and pp_degree the parameters"},
    {"optimizer_cpu_offload", Kind::absent,
     "the optimizer's state stays where its parameters are. use_distributed_optimizer divides it by the "
     "data-parallel size"},
    {"use_precision_aware_optimizer", Kind::absent,
     "the optimizer's state is in fp32. use_distributed_optimizer divides it by the data-parallel size"},
    {"overlap_cpu_optimizer_d2h_h2d", Kind::absent, "the optimizer's state is never copied to the host"},
    {"set_all_logging_options", Kind::all_logging, ""},
    {"consumed_samples", Kind::absent,
     "a training that goes on has them from its checkpoint (--load, --save). iterations_to_skip leaves steps "
     "of a new one out"},
    {"custom_train_step_class", Kind::python, ""},
    {"custom_train_step_kwargs", Kind::python, ""},
    {"custom_model_provider_function", Kind::python, ""},
    {"custom_prepare_model_function", Kind::python, ""},
    {"custom_megatron_datasets_provider_function", Kind::python, ""},
    {"custom_get_batch_function", Kind::python, ""},
    {"custom_loss_function", Kind::python, ""},
};

// Case-insensitive membership in "a|b".
bool is_one_of(const std::string& value, std::string_view values) {
  const std::vector<std::string> all = split(to_lower(std::string(values)), '|');
  return std::find(all.begin(), all.end(), to_lower(value)) != all.end();
}

class ConfigFile {
 public:
  ConfigFile(const Schema& schema, ParseResult& result) : schema_(schema), result_(result) {}

  void add(const YamlEntry& entry) {
    const size_t before = result_.assignments.size();
    dispatch(entry);
    for (size_t i = before; i < result_.assignments.size(); ++i) check_twice(entry, result_.assignments[i]);
  }

  void note_launcher_keys() {
    if (!launcher_keys_.empty()) {
      result_.notices.push_back(fmt::format("only `teratron launch --config-file` uses: {}", launcher_keys_));
    }
  }

 private:
  // Two spellings of a field in one file are a duplicate key, unless the values are equal.
  void check_twice(const YamlEntry& entry, const Assignment& assignment) {
    const std::string file = entry.where.substr(0, entry.where.rfind(':', entry.where.rfind(':') - 1));
    const auto [first, fresh] =
        set_by_.emplace(file + '\n' + std::string(assignment.field->name), assignment);
    if (fresh || first->second.value == assignment.value) return;
    reject(entry, fmt::format("{} is set twice; first at {}", assignment.field->name, first->second.where),
           "Remove one of them");
  }

  void dispatch(const YamlEntry& entry) {
    const std::string key = canonical_name(entry.key);
    if (entry.section.empty()) return add_top(key, entry);
    if (entry.section == "megatron_lm_config") return add_plugin(key, entry);
    if (entry.section == "megatron_lm_config.other_megatron_args" ||
        entry.section == "megatron_lm_config.megatron_lm_other_megatron_args") {
      return pass(entry.key, entry);
    }
    // Sections of Megatron-LM's YAML files.
    if (entry.section == "language_model" || entry.section == "model_parallel")
      return add_megatron(key, entry);
    reject_section(entry);
  }

  void pass(const std::string& key, const YamlEntry& entry) {
    add_option(schema_,
               {.key = key,
                .values = entry.values,
                .where = entry.where,
                .value_where = entry.value_where,
                .null = entry.null},
               result_);
  }

  void assign(std::string_view key, std::string value, const YamlEntry& entry) {
    add_option(schema_, {.key = std::string(key), .values = {std::move(value)}, .where = entry.value_where},
               result_);
  }

  void reject(const YamlEntry& entry, std::string what, std::string fix) {
    result_.problems.push_back({.what = std::move(what), .where = entry.value_where, .fix = std::move(fix)});
  }

  // A mapping under a key of the plugin that takes a value.
  void reject_nested(const YamlEntry& entry) {
    const std::string key = entry.section.substr(entry.section.find('.') + 1);
    if (!rejected_sections_.insert(entry.section).second) return;
    YamlEntry value = entry;
    value.values = {"..."};
    constexpr std::string_view prefix = "megatron_lm_";
    const std::string name = key.starts_with(prefix) ? key.substr(prefix.size()) : key;
    const auto* known = std::ranges::find(plugin_keys, name, &AccelerateKey::key);
    if (known != std::end(plugin_keys) && known->kind == Kind::python) return apply_key(*known, value);
    reject(entry, fmt::format("'{}' of megatron_lm_config holds keys, not a value", printable(key)),
           "Give it one value; only other_megatron_args holds more, the flags of the training");
  }

  void reject_section(const YamlEntry& entry) {
    if (entry.section.starts_with("megatron_lm_config.")) return reject_nested(entry);
    const std::string section = entry.section.substr(0, entry.section.find('.'));
    if (!rejected_sections_.insert(section).second) return;
    const bool other = section == "deepspeed_config" || section == "fsdp_config";
    reject(entry, fmt::format("section '{}' is not {}", printable(section), other ? "supported" : "known"),
           other ? "Use megatron_lm_config, or remove the section"
                 : "Sections are megatron_lm_config, language_model and model_parallel");
  }

  void apply_key(const AccelerateKey& known, const YamlEntry& entry) {
    if (entry.null) return;
    const std::string value = entry.values.size() == 1 ? entry.values[0] : "";
    switch (known.kind) {
      case Kind::renamed:
        return pass(std::string(known.text), entry);
      case Kind::launcher:
        launcher_keys_ += (launcher_keys_.empty() ? "" : ", ") + std::string(known.key);
        return;
      case Kind::only:
        if (is_one_of(value, known.text)) return;
        return reject(entry, fmt::format("{} = '{}' is not supported", known.key, printable(value)),
                      fmt::format("Remove it; the only supported value is {}", known.text));
      case Kind::absent:
        if (std::ranges::all_of(entry.values, [](const auto& v) { return is_one_of(v, "false|no|0"); }))
          return;
        return reject(entry, fmt::format("{} is not supported: {}", known.key, known.text), "Remove it");
      case Kind::usual:
        if (entry.values.empty() || is_one_of(value, known.text)) return;
        result_.notices.push_back(fmt::format("{} = '{}' has no effect", known.key, printable(value)));
        return;
      case Kind::no_op:
        result_.notices.push_back(fmt::format("{} has no effect: {}", known.key, known.text));
        return;
      case Kind::python:
        return reject(entry, fmt::format("{} is for Accelerate's Python programs", known.key),
                      "Remove it; examples/custom_loss shows a custom train step in C++");
      case Kind::all_logging:
        return add_all_logging(known, entry);
    }
  }

  // False for an invalid boolean, which is a problem.
  bool is_true(std::string_view key, const YamlEntry& entry) {
    Problem problem{.where = entry.value_where};
    const Value value = parse_value({.name = key, .type = FieldType::boolean}, entry.values, problem);
    if (std::holds_alternative<std::monostate>(value)) result_.problems.push_back(std::move(problem));
    return value == Value(true);
  }

  // Accelerate's set_all_logging_options: every log_* switch.
  void add_all_logging(const AccelerateKey& known, const YamlEntry& entry) {
    if (!is_true(known.key, entry)) return;
    for (const Field& field : schema_.fields()) {
      const bool switches = field.type == FieldType::boolean && field.name.starts_with("log_");
      if (switches && field.status == FieldStatus::active) assign(field.name, "true", entry);
    }
  }

  void add_top(const std::string& key, const YamlEntry& entry) {
    const auto* known =
        std::find_if(std::begin(top_keys), std::end(top_keys), [&](const auto& k) { return k.key == key; });
    if (known != std::end(top_keys)) return apply_key(*known, entry);
    const bool section = key == "megatron_lm_config" || key == "deepspeed_config" || key == "fsdp_config";
    if (section && (entry.null || entry.values.empty())) return;
    if (key == "mixed_precision") return add_precision(entry);
    if (key == "use_cpu") return add_use_cpu(entry);
    pass(entry.key, entry);
  }

  void add_precision(const YamlEntry& entry) {
    const std::string value = entry.values.size() == 1 ? to_lower(entry.values[0]) : "";
    if (entry.null || value == "no" || value == "false") return;
    if (value == "fp16" || value == "bf16") return assign(value, "true", entry);
    if (value == "fp8") {
      assign("bf16", "true", entry);
      return assign("fp8", "hybrid", entry);
    }
    reject(entry, fmt::format("mixed_precision = '{}' is not a valid choice", printable(value)),
           "Use one of no, fp16, bf16, fp8");
  }

  void add_use_cpu(const YamlEntry& entry) {
    if (!entry.null && is_true("use_cpu", entry)) assign("device", "cpu", entry);
  }

  void add_plugin(const std::string& full_key, const YamlEntry& entry) {
    constexpr std::string_view prefix = "megatron_lm_";
    const std::string key = full_key.starts_with(prefix) ? full_key.substr(prefix.size()) : full_key;
    if (entry.null) return;  // not set
    const auto* known = std::find_if(std::begin(plugin_keys), std::end(plugin_keys),
                                     [&](const auto& k) { return k.key == key; });
    if (known != std::end(plugin_keys)) return apply_key(*known, entry);
    pass(key, entry);
  }

  // Megatron-LM's YAML uses the names of its dataclasses, some of which differ from the flags.
  void add_megatron(const std::string& key, const YamlEntry& entry) {
    if (key != "activation_func") return pass(entry.key, entry);
    const std::string value = entry.values.size() == 1 ? to_lower(entry.values[0]) : "";
    if (value == "gelu") return;
    if (value == "swiglu") return assign("swiglu", "true", entry);
    if (value == "squaredrelu") return assign("squared_relu", "true", entry);
    reject(entry, fmt::format("activation_func = '{}' is not a valid choice", printable(value)),
           "Use one of gelu, swiglu, squaredrelu");
  }

  const Schema& schema_;
  ParseResult& result_;
  std::string launcher_keys_;
  std::set<std::string> rejected_sections_;
  std::map<std::string, Assignment> set_by_;  // file and field -> first assignment
};

}  // namespace

void read_config_file(const ConfigFileRequest& request, ParseResult& result) {
  ConfigFile file(request.schema, result);
  const YamlEntries yaml = read_yaml(request.path, request.where, result.problems);
  result.unreadable = !yaml.complete;
  for (const YamlEntry& entry : yaml.entries) file.add(entry);
  if (!request.launched) file.note_launcher_keys();
}

void read_accelerate_environment(const Environment& environment, ParseResult& result) {
  const std::optional<std::string> used = environment("ACCELERATE_USE_MEGATRON_LM");
  if (!used || to_lower(*used) != "true") return;
  constexpr std::pair<const char*, const char*> variables[] = {
      {"MEGATRON_LM_TP_DEGREE", "tensor_model_parallel_size"},
      {"MEGATRON_LM_PP_DEGREE", "pipeline_model_parallel_size"},
      {"MEGATRON_LM_NUM_MICRO_BATCHES", "num_micro_batches"},
      {"MEGATRON_LM_SEQUENCE_PARALLELISM", "sequence_parallel"},
      {"MEGATRON_LM_RECOMPUTE_ACTIVATIONS", "recompute_activations"},
      {"MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "use_distributed_optimizer"},
      {"MEGATRON_LM_GRADIENT_CLIPPING", "clip_grad"},
  };
  for (const auto& [variable, key] : variables) {
    const std::optional<std::string> value = environment(variable);
    if (!value || value->empty() || *value == "None") continue;
    add_option(arguments_schema(), {.key = key, .values = {*value}, .where = variable}, result);
  }
}

}  // namespace teratron
