#include "teratron/megatron/export/export.h"

#include <set>
#include <utility>

#include "teratron/base/file.h"
#include "teratron/base/partial_folder.h"
#include "teratron/megatron/export/core_tree.h"
#include "teratron/megatron/export/dist_export.h"
#include "teratron/megatron/export/export_plan.h"
#include "teratron/megatron/export/legacy_tree.h"
#include "teratron/megatron/export/optimizer_file.h"
#include "teratron/megatron/export/part_writer.h"
#include "teratron/megatron/train_state.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

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

void add_scheduler(const ExportPlan& plan, TensorFile& file) {
  file.pickle.text("opt_param_scheduler");
  write_scheduler(plan.args.state, file.pickle);
}

TensorFile make_model_file(const ExportPlan& plan, const std::vector<MegatronEntry>& entries, int64_t rank) {
  TensorFile file;
  file.pickle.begin(PickledDict::plain);
  add_counters(plan.args, file.pickle);
  file.pickle.text("model");
  ModelPickle model(file.pickle, is_core(plan.args.names) ? PickledDict::ordered : PickledDict::plain);
  for (const MegatronEntry& entry : entries) {
    model.enter(entry.path);
    file.pickle.text(entry.key);
    if (entry.tensor.empty()) {
      file.pickle.none();
      continue;
    }
    WrittenPart part = weight_part(plan, entry.tensor, rank);
    const std::vector<int64_t> shape = part.shard.local_shape();
    file.add(std::move(part), shape);
  }
  model.finish();
  if (plan.optimizer && plan.args.optimizer_ranks == 0) {
    file.pickle.text("optimizer");
    add_whole_optimizer(plan, written_parameters(plan, entries, rank), file);
    add_scheduler(plan, file);
  }
  file.pickle.end(PickledDict::plain);
  return file;
}

TensorFile make_optimizer_file(const ExportPlan& plan, const WrittenParameters& parameters,
                               int64_t data_rank) {
  TensorFile file;
  file.pickle.begin(PickledDict::plain);
  file.pickle.text("optimizer");
  add_optimizer_shard(plan, parameters, data_rank, file);
  add_scheduler(plan, file);
  file.pickle.end(PickledDict::plain);
  return file;
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

std::vector<MegatronEntry> entries_of(const ExportPlan& plan, int64_t stage, int64_t expert_rank) {
  const SavedArgs& args = plan.args;
  const WrittenModel model{.model = &plan.model,
                           .names = args.names,
                           .stages = args.stages,
                           .tensors = &plan.weights,
                           .expert_ranks = args.expert_ranks};
  return is_core(args.names) ? core_entries(model, stage, expert_rank) : legacy_entries(model, stage);
}

// The files of all ranks, with the path of each in the folder of the iteration.
std::vector<std::pair<std::string, TensorFile>> make_rank_files(const ExportPlan& plan) {
  const SavedArgs& args = plan.args;
  std::vector<std::pair<std::string, TensorFile>> files;
  std::set<std::string> placed;
  for (int64_t i = 0; i < args.stages.stages * args.expert_ranks; ++i) {
    const int64_t stage = i / args.expert_ranks, expert = i % args.expert_ranks;
    const std::vector<MegatronEntry> entries = entries_of(plan, stage, expert);
    for (const MegatronEntry& entry : entries) placed.insert(entry.tensor);
    for (int64_t rank = 0; rank < args.tensor_ranks; ++rank) {
      const std::string folder = folder_of_rank(args, {rank, stage, expert});
      const bool distributed = args.optimizer_ranks > 0;
      files.emplace_back(folder + (distributed ? "/model_rng.pt" : "/model_optim_rng.pt"),
                         make_model_file(plan, entries, rank));
      if (!distributed) continue;
      const WrittenParameters parameters = written_parameters(plan, entries, rank);
      for (int64_t data = 0; data < args.optimizer_ranks; ++data)
        files.emplace_back(fmt::format("{}_{:03}/optim.pt", folder, data),
                           make_optimizer_file(plan, parameters, data));
    }
  }
  check_all_placed(plan, placed, "Megatron-LM's model");
  return files;
}

void write_rank_files(const ExportPlan& plan, const fs::path& saved) {
  std::vector<std::pair<std::string, TensorFile>> files = make_rank_files(plan);
  int64_t bytes = 0;
  for (const auto& [name, file] : files) {
    for (const int64_t storage : file.pickle.storages()) bytes += storage;
  }
  PartWriter writer(plan, bytes);
  for (auto& [name, file] : files) {
    const fs::path path = saved / name;
    make_directories(path.parent_path(), ExitCode::checkpoint);
    write_torch_file(path, file.pickle, [&](size_t tensor, const AppendBytes& append) {
      writer.write(file.parts[tensor], append);
    });
    sync_directory(path.parent_path(), ExitCode::checkpoint);
  }
  sync_directory(saved, ExitCode::checkpoint);
}

void write_export(const ExportPlan& plan, MegatronFormat format, const fs::path& folder) {
  const fs::path saved = folder / plan.folder();
  if (format == MegatronFormat::torch_dist) {
    write_dist_checkpoint(plan, saved);
  } else {
    write_rank_files(plan, saved);
  }
  write_text(folder / "latest_checkpointed_iteration.txt",
             plan.iteration() == 0 ? "release" : std::to_string(plan.iteration()), ExitCode::checkpoint);
}

// How Megatron-LM starts from the result.
std::string advice(const ExportPlan& plan, const MegatronExport& request) {
  if (plan.iteration() == 0)
    return "the weights are written as 'release', without optimizer: Megatron-LM starts from them with "
           "--load";
  if (!plan.optimizer)
    return "only weights are written: start Megatron-LM from them with --load and --finetune";
  const char* const distributed = plan.args.optimizer_ranks > 0 ? " --use-distributed-optimizer" : "";
  return fmt::format(
      "Megatron-LM goes on from iteration {} with --load{} --no-load-rng: random numbers here follow from "
      "the "
      "seed and the sample, so that there are no states of them to write{}",
      plan.iteration(), distributed,
      plan.args.optimizer_ranks > 0                  ? " (22.x to 23.06 read this layout)"
      : request.format == MegatronFormat::torch_dist ? ""
                                                     : " (the optimizer is not a distributed one)");
}

ConversionReport report_of(const ExportPlan& plan, const MegatronExport& request) {
  ConversionReport report{.result = request.destination,
                          .tensors = static_cast<int64_t>(plan.weights.size()),
                          .notices = plan.notices};
  for (const auto& [tensor, info] : plan.weights) report.elements += *checked_numel(info.shape);
  report.notices.push_back(advice(plan, request));
  return report;
}

}  // namespace

ConversionReport export_megatron(const CheckpointSource& source, const MegatronExport& request) {
  std::error_code ignored;
  if (fs::exists(request.destination, ignored) && !fs::is_empty(request.destination, ignored))
    throw config_error({.what = "the folder is not empty",
                        .where = printable(request.destination.string(), 4096),
                        .fix = "Give --to-megatron a new folder"});
  const ExportPlan plan = make_export_plan(source, request);
  PartialFolder folder(request.destination);
  write_export(plan, request.format, folder.path());
  ConversionReport report = report_of(plan, request);
  report.result = folder.commit();
  return report;
}

}  // namespace teratron
