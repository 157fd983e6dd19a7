#include "teratron/megatron/export/export_plan.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/megatron/rows/row_segments.h"
#include "teratron/models/family_formats.h"
#include "teratron/optim/rules/adam_states.h"
#include "teratron/settings/arguments.h"

namespace teratron {

using nlohmann::json;

namespace {

bool has_experts(const json& settings) {
  return !settings["num_experts"].is_null();
}

const MegatronModel& model_of(const json& settings, const std::string& where) {
  const std::string family = saved_family(settings);
  for (const MegatronModel& model : megatron_models()) {
    if (model.family == family) return model;
  }
  throw checkpoint_error({.what = fmt::format("Megatron-LM has no model family '{}'", printable(family)),
                          .where = where,
                          .fix = whole_models_only()});
}

// What --megatron-names mcore can write, for a message.
std::string core_families() {
  std::vector<std::string_view> names;
  for (const MegatronModel& model : megatron_models()) {
    if (model.has_core) names.push_back(model.family);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// Where there are fewer groups than ranks, Megatron-Core's ranks have equal parts of all rows of QKV.
void check_query_groups(const ExportPlan& plan, int64_t ranks) {
  if (plan.groups == 0 || plan.groups % ranks == 0) return;
  if (plan.groups < 1 || ranks % plan.groups != 0)
    throw config_error(
        {.what = fmt::format("{} query groups and {} ranks do not divide each other", plan.groups, ranks),
         .where = "--target-tensor-parallel-size",
         .fix = "Use a size that divides heads, query groups, the MLP and experts"});
  if (!is_core(plan.args.names))
    throw config_error(
        {.what = fmt::format("of Megatron-LM's models only those of Megatron-Core have {} query "
                             "groups on {} ranks",
                             plan.groups, ranks),
         .where = "--target-tensor-parallel-size",
         .fix = "Add --megatron-names mcore or mcore-te, or use a size that divides the groups"});
  for (const auto& [name, tensor] : plan.weights) {
    if (name.ends_with(".linear_qkv.weight") && tensor.shape.at(0) % ranks != 0)
      throw config_error(
          {.what = fmt::format("{} has {} rows, which Megatron-Core cannot divide over {} ranks", name,
                               tensor.shape[0], ranks),
           .where = "--target-tensor-parallel-size",
           .fix = fmt::format("Use {} or less", plan.groups)});
  }
}

// What tensor ranks divide in layers that the model has.
std::vector<std::pair<const char*, json>> recurrent_sizes(const ExportPlan& plan) {
  const auto has = [&plan](std::string_view part) {
    return std::ranges::any_of(
        plan.weights, [part](const auto& weight) { return weight.first.find(part) != std::string::npos; });
  };
  const json& settings = plan.args.settings;
  std::vector<std::pair<const char*, json>> sizes;
  if (has(".mixer.in_proj."))
    sizes = {{"heads of Mamba-2", settings["mamba_num_heads"]},
             {"groups of Mamba-2", settings["mamba_num_groups"]}};
  if (has(".self_attention.in_proj."))
    sizes.emplace_back("linear key heads", settings["linear_num_key_heads"]);
  return sizes;
}

void check_tensor_ranks(const ExportPlan& plan, int64_t ranks) {
  const json& settings = plan.args.settings;
  std::vector<std::pair<const char*, json>> sizes = {
      {"attention heads", settings["num_attention_heads"]},
      {"channels of the MLP", settings["ffn_hidden_size"]},
      {"channels of an expert", settings["moe_ffn_hidden_size"]},
      {"channels of the shared experts", settings["moe_shared_expert_intermediate_size"]}};
  for (const auto& size : recurrent_sizes(plan)) sizes.push_back(size);
  for (const auto& [what, size] : sizes) {
    if (!size.is_null() && size.get<int64_t>() % ranks != 0)
      throw config_error({.what = fmt::format("{} {} are not divisible by {}", size.dump(), what, ranks),
                          .where = "--target-tensor-parallel-size",
                          .fix = "Use a size that divides heads, query groups, the MLP and experts"});
  }
  check_query_groups(plan, ranks);
  if (has_experts(settings) && settings["add_bias_linear"] == true && ranks > 1)
    throw config_error({.what = "Megatron-LM does not split experts with biases over tensor ranks",
                        .where = "--target-tensor-parallel-size",
                        .fix = "Use 1"});
}

void check_expert_ranks(const json& settings, int64_t ranks) {
  const int64_t experts = has_experts(settings) ? settings["num_experts"].get<int64_t>() : 1;
  if (experts % ranks != 0)
    throw config_error(
        {.what = has_experts(settings) ? fmt::format("{} experts are not divisible by {}", experts, ranks)
                                       : "the model has no experts to divide",
         .where = "--target-expert-parallel-size",
         .fix = has_experts(settings) ? "Use a size that divides the experts" : "Leave it out"});
}

MegatronNames names_of(const MegatronExport& request, const json& settings, bool distributed) {
  if (request.names) return *request.names;
  if (request.format == MegatronFormat::torch_dist) return MegatronNames::core_te;
  if (distributed) return MegatronNames::legacy_v2;
  const bool recurs =
      saved_family(settings) == "mamba" || !settings["experimental_attention_variant"].is_null();
  return has_experts(settings) || recurs ? MegatronNames::core : MegatronNames::legacy_core;
}

void check_format(const MegatronModel& model, MegatronNames names, const MegatronExport& request,
                  bool distributed) {
  const bool dist = request.format == MegatronFormat::torch_dist;
  if (dist && request.stages > 1)
    throw config_error({.what = "checkpoints of format torch_dist do not depend on pipeline stages",
                        .where = "--target-pipeline-parallel-size",
                        .fix = "Leave it out: Megatron-LM reads them with any number of stages"});
  if (dist && model.stacks.size() > 1)
    throw config_error(
        {.what = fmt::format("models of {} are not written in format torch_dist", model.family),
         .where = "--megatron-format",
         .fix = "Use torch"});
  if (dist && distributed)
    throw config_error(
        {.what = "checkpoints of format torch_dist do not depend on data-parallel ranks",
         .where = "--use-distributed-optimizer",
         .fix = "Leave it out: Megatron-LM reads them with and without distributed optimizer"});
  if (distributed && is_core(names))
    throw config_error(
        {.what = "the files of a distributed optimizer are those of 22.x to 23.06, which have other models",
         .where = "--use-distributed-optimizer",
         .fix = "Leave it out, or use --megatron-names v2"});
  if (!dist && is_core(names) && !model.has_core)
    throw config_error({.what = fmt::format("only {} is written as a model of Megatron-Core, not {}",
                                            core_families(), model.family),
                        .where = "--megatron-names",
                        .fix = "Use core or v2"});
}

// Whether the checkpoint has Adam's state of all that Megatron-LM's optimizer has. Adds a notice if it has
// another state.
bool has_adam(ExportPlan& plan, const json& settings) {
  const auto& tensors = plan.info().tensors;
  const auto first = tensors.lower_bound("optimizer.");
  if (first == tensors.end() || !first->first.starts_with("optimizer.")) return false;
  const auto lacks_state = [&](const auto& weight) {
    return !is_buffer(weight.first) && std::ranges::any_of(adam_states, [&](const RuleState& state) {
      const auto found = tensors.find(fmt::format("optimizer.{}.{}", state.name, weight.first));
      return found == tensors.end() || found->second != TensorInfo{Dtype::f32, weight.second.shape};
    });
  };
  if (std::ranges::none_of(plan.weights, lacks_state)) return true;
  plan.notices.push_back(
      fmt::format("the optimizer's state ({}) is not that of Adam for all weights, and is not written",
                  printable(settings.value("optimizer", "unknown"))));
  return false;
}

}  // namespace

std::string ExportPlan::folder() const {
  return iteration() == 0 ? "release" : fmt::format("iter_{:07}", iteration());
}

bool is_vocabulary(const std::string& name) {
  return name == "embedding.word_embeddings.weight" || name.starts_with("output_layer.");
}

ExportPlan make_export_plan(const CheckpointSource& source, const MegatronExport& request) {
  const std::string where = printable(source.info().path.string(), 4096);
  ExportPlan plan{.source = source, .model = model_of(json::parse(source.info().config), where)};
  std::vector<std::string> unknown;
  json settings = json::parse(to_json(arguments_from_json(plan.info().config, where, &unknown)));
  for (const auto& [name, tensor] : plan.info().tensors) {
    if (!name.starts_with("optimizer.")) plan.weights.emplace(name, tensor);
  }
  const json state = json::parse(plan.info().state);
  plan.optimizer = request.optimizer && state.value("iteration", int64_t{0}) > 0 && has_adam(plan, settings);
  const bool distributed = plan.optimizer && request.optimizer_ranks;
  if (request.optimizer_ranks && !plan.optimizer)
    plan.notices.emplace_back(
        "no effect on weights: --target-data-parallel-size, --use-distributed-optimizer. There is no "
        "optimizer "
        "state to write");
  const MegatronNames names = names_of(request, settings, distributed);
  check_format(plan.model, names, request, distributed);
  check_megatron_model(settings, names, where);
  check_expert_ranks(settings, request.expert_ranks);
  const auto embedding = plan.weights.find("embedding.word_embeddings.weight");
  if (embedding == plan.weights.end() || embedding->second.shape.size() != 2)
    throw checkpoint_error({.what = "the checkpoint has no word embeddings", .where = where});
  if (request.make_vocab_size_divisible_by)
    settings["make_vocab_size_divisible_by"] = *request.make_vocab_size_divisible_by;
  const int64_t vocabulary = embedding->second.shape[0];
  const int64_t unit = settings["make_vocab_size_divisible_by"].get<int64_t>() * request.tensor_ranks;
  const json heads = settings["num_attention_heads"];
  plan.groups = heads.is_null()                             ? 0
                : settings["group_query_attention"] == true ? settings["num_query_groups"].get<int64_t>()
                                                            : heads.get<int64_t>();
  plan.args = {.settings = std::move(settings),
               .state = state,
               .stages = megatron_stages(plan.model, plan.weights, request.stages),
               .names = names,
               .tensor_ranks = request.tensor_ranks,
               .expert_ranks = request.expert_ranks,
               .optimizer_ranks = distributed ? *request.optimizer_ranks : 0,
               .vocabulary = vocabulary,
               .padded_vocabulary = (vocabulary + unit - 1) / unit * unit,
               .dtype = request.dtype.value_or(embedding->second.dtype)};
  check_tensor_ranks(plan, request.tensor_ranks);
  return plan;
}

void check_all_placed(const ExportPlan& plan, const std::set<std::string>& placed, std::string_view target) {
  std::vector<Problem> problems;
  for (const auto& [name, _] : plan.weights) {
    if (!placed.contains(name))
      problems.push_back({.what = fmt::format("tensor \"{}\" has no place in {}", printable(name), target),
                          .where = printable(plan.info().path.string(), 4096)});
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

Shard shard_of(const ExportPlan& plan, const std::string& name, int64_t rank) {
  const std::vector<int64_t>& shape = plan.weights.at(name).shape;
  const int64_t ranks = plan.args.tensor_ranks;
  if (is_vocabulary(name)) return Shard::split_padded(shape, 0, plan.args.padded_vocabulary, ranks, rank);
  const MegatronSplit split = split_of(name);
  if (split == MegatronSplit::none) return Shard::replicated(shape);
  if (split == MegatronSplit::columns) return Shard::split(shape, 1, ranks, rank);
  const std::vector<int64_t> segments = row_segments(name, shape[0], plan.args.settings);
  if (!segments.empty()) return Shard::split_segments(shape, 0, segments, ranks, rank);
  return Shard::split(shape, 0, ranks, rank);
}

Dtype weight_dtype(const ExportPlan& plan, const std::string& name) {
  return is_always_wide(name) ? Dtype::f32 : plan.args.dtype;
}

}  // namespace teratron
