#include "teratron/megatron/export.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/base/file.h"
#include "teratron/base/partial_folder.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/hf/byte_progress.h"
#include "teratron/hf/float_convert.h"
#include "teratron/megatron/core_tree.h"
#include "teratron/megatron/legacy_tree.h"
#include "teratron/megatron/saved_args.h"
#include "teratron/models/family_formats.h"
#include "teratron/pickle/torch_writer.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t block_bytes = int64_t{16} << 20;

bool is_vocabulary(const std::string& name) {
  return name == "embedding.word_embeddings.weight" || name.starts_with("output_layer.");
}

// The source, and what follows from it and the request.
struct Plan {
  const CheckpointSource& source;
  const MegatronModel& model;
  SavedArgs args = {};
  std::map<std::string, TensorInfo> weights = {};
  int64_t groups = 1;

  const CheckpointInfo& info() const { return source.info(); }
};

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

void check_tensor_ranks(const Plan& plan, int64_t ranks) {
  const json& settings = plan.args.settings;
  for (const auto& [what, size] :
       {std::pair{"attention heads", settings["num_attention_heads"]},
        {"query groups", json(plan.groups)},
        {"channels of the MLP", settings["ffn_hidden_size"]},
        {"channels of an expert", settings["moe_ffn_hidden_size"]},
        {"channels of the shared experts", settings["moe_shared_expert_intermediate_size"]}}) {
    if (!size.is_null() && size.get<int64_t>() % ranks != 0)
      throw config_error({.what = fmt::format("{} {} are not divisible by {}", size.dump(), what, ranks),
                          .where = "--target-tensor-parallel-size",
                          .fix = "Use a size that divides heads, query groups, the MLP and experts"});
  }
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

Plan make_plan(const CheckpointSource& source, const MegatronExport& request) {
  const std::string where = printable(source.info().path.string(), 4096);
  Plan plan{.source = source, .model = model_of(json::parse(source.info().config), where)};
  std::vector<std::string> unknown;
  json settings = json::parse(to_json(arguments_from_json(plan.info().config, where, &unknown)));
  const MegatronNames names =
      request.names.value_or(has_experts(settings) ? MegatronNames::core : MegatronNames::legacy_core);
  if (is_core(names) && !plan.model.has_core)
    throw config_error({.what = fmt::format("only {} is written as a model of Megatron-Core, not {}",
                                            core_families(), plan.model.family),
                        .where = "--megatron-names",
                        .fix = "Use core or v2"});
  check_megatron_model(settings, names, where);
  check_expert_ranks(settings, request.expert_ranks);
  for (const auto& [name, tensor] : plan.info().tensors) {
    if (!name.starts_with("optimizer.")) plan.weights.emplace(name, tensor);
  }
  const auto embedding = plan.weights.find("embedding.word_embeddings.weight");
  if (embedding == plan.weights.end() || embedding->second.shape.size() != 2)
    throw checkpoint_error({.what = "the checkpoint has no word embeddings", .where = where});
  if (request.make_vocab_size_divisible_by)
    settings["make_vocab_size_divisible_by"] = *request.make_vocab_size_divisible_by;
  const int64_t vocabulary = embedding->second.shape[0];
  const int64_t unit = settings["make_vocab_size_divisible_by"].get<int64_t>() * request.tensor_ranks;
  plan.groups = settings["group_query_attention"] == true ? settings["num_query_groups"]
                                                          : settings["num_attention_heads"];
  plan.args = {.settings = std::move(settings),
               .state = json::parse(plan.info().state),
               .stages = megatron_stages(plan.model, plan.weights, request.stages),
               .names = names,
               .tensor_ranks = request.tensor_ranks,
               .expert_ranks = request.expert_ranks,
               .vocabulary = vocabulary,
               .padded_vocabulary = (vocabulary + unit - 1) / unit * unit,
               .dtype = request.dtype.value_or(embedding->second.dtype)};
  check_tensor_ranks(plan, request.tensor_ranks);
  return plan;
}

Shard shard_of(const Plan& plan, const std::string& name, int64_t rank) {
  const std::vector<int64_t>& shape = plan.weights.at(name).shape;
  const int64_t ranks = plan.args.tensor_ranks;
  if (is_vocabulary(name)) return Shard::split_padded(shape, 0, plan.args.padded_vocabulary, ranks, rank);
  const MegatronSplit split = split_of(name);
  if (split == MegatronSplit::none) return Shard::replicated(shape);
  if (split == MegatronSplit::columns) return Shard::split(shape, 1, ranks, rank);
  if (plan.args.settings["swiglu"] == true && name.find("linear_fc1.") != std::string::npos)
    return Shard::split_segments(shape, 0, {shape[0] / 2, shape[0] / 2}, ranks, rank);
  return Shard::split(shape, 0, ranks, rank);
}

// Biases that choose experts are of fp32 in every model.
Dtype dtype_of(const Plan& plan, const std::string& name) {
  return name.ends_with(".expert_bias") ? Dtype::f32 : plan.args.dtype;
}

// Appends a rank's part of a tensor to its file.
class PartWriter {
 public:
  PartWriter(const Plan& plan, ByteProgress& progress) : plan_(plan), progress_(progress) {}

  void write(const std::string& name, const Shard& shard, const AppendBytes& append) {
    const std::vector<int64_t> local = shard.local_shape();
    const int64_t columns = local.size() > 1 ? local[1] : 1;
    const int64_t rows =
        is_vocabulary(name) ? std::clamp<int64_t>(shard.global_shape[0] - shard.index * local[0], 0, local[0])
                            : local[0];
    write_range(name, shard, 0, rows * columns, append);
    const Shard whole = Shard::replicated(shard.global_shape);
    const int64_t last = (shard.global_shape[0] - 1) * columns;
    for (int64_t row = rows; row < local[0]; ++row) write_range(name, whole, last, last + columns, append);
  }

 private:
  void write_range(const std::string& name, const Shard& shard, int64_t begin, int64_t end,
                   const AppendBytes& append) {
    const Dtype saved = plan_.weights.at(name).dtype, dtype = dtype_of(plan_, name);
    const int64_t widest = std::max(size_of(saved), size_of(dtype));
    const int64_t most = plan_.source.reads_in_parts(name) ? block_bytes / widest : end - begin;
    for (int64_t at = begin; at < end; at += most) {
      const int64_t until = std::min(end, at + most);
      const int64_t bytes = (until - at) * size_of(dtype);
      block_.resize(std::max(block_.size(), static_cast<size_t>((until - at) * widest)));
      plan_.source.read({name, saved, shard, at, until, block_.data()});
      convert_floats(block_.data(), until - at, saved, dtype);
      append(block_.data(), bytes);
      progress_.add(bytes);
    }
  }

  const Plan& plan_;
  ByteProgress& progress_;
  std::vector<char> block_;
};

// The dicts between the model and its entries; the innermost are OrderedDicts, as state_dict() makes them.
class ModelPickle {
 public:
  ModelPickle(PickleWriter& pickle, PickledDict outermost) : pickle_(pickle), outermost_(outermost) {
    pickle_.begin(outermost_);
  }

  void enter(const std::vector<std::string>& path) {
    if (path == path_) return;
    size_t common = 0;
    while (common < path.size() && common < path_.size() && path[common] == path_[common]) ++common;
    leave(common);
    for (size_t i = common; i < path.size(); ++i) {
      pickle_.text(path[i]);
      pickle_.begin(i + 1 == path.size() ? PickledDict::ordered : PickledDict::plain);
    }
    path_ = path;
  }
  void finish() {
    leave(0);
    pickle_.end(outermost_);
  }

 private:
  void leave(size_t depth) {
    for (size_t i = path_.size(); i > depth; --i)
      pickle_.end(i == path_.size() ? PickledDict::ordered : PickledDict::plain);
  }

  PickleWriter& pickle_;
  PickledDict outermost_;
  std::vector<std::string> path_;
};

struct RankFile {
  PickleWriter pickle;
  std::vector<std::pair<std::string, Shard>> parts;  // of its tensors, in order
};

void write_counters(const Plan& plan, PickleWriter& pickle) {
  pickle.text("args");
  write_args(plan.args, pickle);
  pickle.text("checkpoint_version");
  pickle.real(3.0);
  pickle.text("iteration");
  pickle.integer(plan.args.state.value("iteration", int64_t{0}));
  pickle.text("num_floating_point_operations_so_far");
  pickle.real(plan.args.state.value("num_floating_point_operations_so_far", 0.0));
}

RankFile make_rank_file(const Plan& plan, const std::vector<MegatronEntry>& entries, int64_t rank) {
  RankFile file;
  file.pickle.begin(PickledDict::plain);
  write_counters(plan, file.pickle);
  file.pickle.text("model");
  ModelPickle model(file.pickle, is_core(plan.args.names) ? PickledDict::ordered : PickledDict::plain);
  for (const MegatronEntry& entry : entries) {
    model.enter(entry.path);
    file.pickle.text(entry.key);
    if (entry.tensor.empty()) {
      file.pickle.none();
      continue;
    }
    const Shard shard = shard_of(plan, entry.tensor, rank);
    file.pickle.tensor(dtype_of(plan, entry.tensor), shard.local_shape());
    file.parts.emplace_back(entry.tensor, shard);
  }
  model.finish();
  file.pickle.end(PickledDict::plain);
  return file;
}

void check_all_placed(const Plan& plan, const std::set<std::string>& placed) {
  std::vector<Problem> problems;
  for (const auto& [name, tensor] : plan.weights) {
    if (!placed.contains(name))
      problems.push_back(
          {.what = fmt::format("tensor \"{}\" has no place in Megatron-LM's model", printable(name)),
           .where = printable(plan.info().path.string(), 4096)});
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
}

struct ExportRank {
  int64_t tensor = 0, stage = 0, expert = 0;
};

std::string folder_of_rank(const SavedArgs& args, const ExportRank& rank) {
  std::string folder = fmt::format("mp_rank_{:02}", rank.tensor);
  if (args.stages.stages > 1) folder += fmt::format("_{:03}", rank.stage);
  if (args.expert_ranks > 1) folder += fmt::format("_{:03}", rank.expert);
  return folder;
}

std::vector<MegatronEntry> entries_of(const Plan& plan, int64_t stage, int64_t expert_rank) {
  const SavedArgs& args = plan.args;
  const WrittenModel model{.model = &plan.model,
                           .names = args.names,
                           .stages = args.stages,
                           .tensors = &plan.weights,
                           .expert_ranks = args.expert_ranks};
  return is_core(args.names) ? core_entries(model, stage, expert_rank) : legacy_entries(model, stage);
}

// The files of all ranks, with the folder of each in that of the iteration.
std::vector<std::pair<std::string, RankFile>> make_rank_files(const Plan& plan) {
  const SavedArgs& args = plan.args;
  std::vector<std::pair<std::string, RankFile>> files;
  std::set<std::string> placed;
  for (int64_t i = 0; i < args.stages.stages * args.expert_ranks; ++i) {
    const int64_t stage = i / args.expert_ranks, expert = i % args.expert_ranks;
    const std::vector<MegatronEntry> entries = entries_of(plan, stage, expert);
    for (const MegatronEntry& entry : entries) placed.insert(entry.tensor);
    for (int64_t rank = 0; rank < args.tensor_ranks; ++rank)
      files.emplace_back(folder_of_rank(args, {rank, stage, expert}), make_rank_file(plan, entries, rank));
  }
  check_all_placed(plan, placed);
  return files;
}

void write_export(const Plan& plan, const fs::path& folder) {
  const int64_t iteration = plan.args.state.value("iteration", int64_t{0});
  const fs::path saved = folder / (iteration == 0 ? "release" : fmt::format("iter_{:07}", iteration));
  std::vector<std::pair<std::string, RankFile>> files = make_rank_files(plan);
  int64_t bytes = 0;
  for (const auto& [name, file] : files) {
    for (const int64_t storage : file.pickle.storages()) bytes += storage;
  }
  ByteProgress progress("written", bytes);
  PartWriter writer(plan, progress);
  for (auto& [name, file] : files) {
    make_directories(saved / name, ExitCode::checkpoint);
    write_torch_file(saved / name / "model_optim_rng.pt", file.pickle,
                     [&](size_t tensor, const AppendBytes& append) {
                       writer.write(file.parts[tensor].first, file.parts[tensor].second, append);
                     });
    sync_directory(saved / name, ExitCode::checkpoint);
  }
  sync_directory(saved, ExitCode::checkpoint);
  write_text(folder / "latest_checkpointed_iteration.txt",
             iteration == 0 ? "release" : std::to_string(iteration), ExitCode::checkpoint);
}

ConversionReport report_of(const Plan& plan, const fs::path& destination) {
  ConversionReport report{.result = destination, .tensors = static_cast<int64_t>(plan.weights.size())};
  for (const auto& [tensor, info] : plan.weights)
    report.elements += info.shape[0] * (info.shape.size() > 1 ? info.shape[1] : 1);
  report.notices.emplace_back(
      plan.args.state.value("iteration", int64_t{0}) == 0
          ? "the weights are written as 'release', without optimizer: Megatron-LM starts from them with "
            "--load"
          : "only weights are written: start Megatron-LM from them with --load and --finetune");
  return report;
}

}  // namespace

ConversionReport export_megatron(const CheckpointSource& source, const MegatronExport& request) {
  std::error_code ignored;
  if (fs::exists(request.destination, ignored) && !fs::is_empty(request.destination, ignored))
    throw config_error({.what = "the folder is not empty",
                        .where = printable(request.destination.string(), 4096),
                        .fix = "Give --to-megatron a new folder"});
  const Plan plan = make_plan(source, request);
  PartialFolder folder(request.destination);
  write_export(plan, folder.path());
  return report_of(plan, folder.commit());
}

}  // namespace teratron
