#include "teratron/tasks/finetune/finetune_run.h"

#include <algorithm>
#include <filesystem>

#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/ckpt/directory.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/generate/json/request_json.h"
#include "teratron/megatron/checkpoint.h"
#include "teratron/megatron/checkpoint_format.h"
#include "teratron/settings/component_options.h"
#include "teratron/tasks/finetune/task_scores.h"
#include "teratron/tokenizer/build_tokenizer.h"
#include "teratron/train/loop/train_loop.h"

namespace teratron {

namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

ordered_json figures(int64_t correct, int64_t examples) {
  return {{"accuracy", static_cast<double>(correct) / static_cast<double>(examples)},
          {"correct", correct},
          {"examples", examples}};
}

// "12 / 40 = 30.0000 %"
std::string share(int64_t correct, int64_t examples) {
  return fmt::format("{} / {} = {:.4f} %", correct, examples,
                     100.0 * static_cast<double>(correct) / static_cast<double>(examples));
}

// The figures of each epoch, on the first rank's disk. An epoch is scored once its line is there.
class EpochRecord {
 public:
  EpochRecord(const Arguments& args, bool writes) : args_(args), writes_(writes) {}

  /// Reads the figures of an earlier run that this one continues.
  void resume(int64_t iteration) {
    const fs::path path = record_path();
    if (!writes_ || !args_.save || iteration == 0 || !fs::exists(path)) return;
    std::ifstream file = open_text(path, ExitCode::config);
    for (std::string line; next_line(file, line, path.string());) {
      ordered_json epoch = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (epoch.is_object() && epoch.value("iteration", iteration + 1) <= iteration) epochs_.push_back(epoch);
    }
  }

  bool has(int64_t iteration) const {
    return std::ranges::any_of(epochs_, [&](const auto& epoch) { return epoch["iteration"] == iteration; });
  }
  void add(const ordered_json& epoch) { epochs_.push_back(epoch); }
  /// After whatever else is written of the epoch: what was interrupted before is done again.
  void write() const {
    if (!writes_ || !args_.save || args_.skip_train) return;
    write_text(fs::path(*args_.save) / "best_checkpointed_iteration.txt",
               epochs_[best_epoch()]["iteration"].dump() + "\n", ExitCode::checkpoint);
    std::string lines;
    for (const ordered_json& each : epochs_) lines += each.dump() + "\n";
    write_text(record_path(), lines, ExitCode::checkpoint);
  }

  const std::vector<ordered_json>& epochs() const { return epochs_; }
  /// The first of those with the highest accuracy.
  size_t best_epoch() const {
    size_t best = 0;
    for (size_t i = 1; i < epochs_.size(); ++i)
      if (epochs_[i]["accuracy"] > epochs_[best]["accuracy"]) best = i;
    return best;
  }
  bool last_is_best() const { return best_epoch() == epochs_.size() - 1; }

 private:
  fs::path record_path() const { return fs::path(args_.save.value_or("")) / "epochs.jsonl"; }

  const Arguments& args_;
  bool writes_;
  std::vector<ordered_json> epochs_;
};

// Whether the checkpoint in a folder or file has the weight; nullopt if there is none.
std::optional<bool> holds_weight(const std::string& source, const std::string& name) {
  const std::optional<CheckpointFormat> format = recognized_format(source);
  if (format == CheckpointFormat::megatron)
    return open_megatron_checkpoint(source, std::nullopt, false)->source().shapes.contains(name);
  const std::vector<fs::path> checkpoints = list_checkpoints(source);
  if (checkpoints.empty()) return std::nullopt;
  return open_checkpoint(checkpoints.front()).tensors.contains(name);
}

class FinetuneRun {
 public:
  FinetuneRun(const FinetuneTask& task, const ParsedArguments& parsed, const Mesh& mesh,
              const StopSignals& signals)
      : task_(task),
        is_first_(mesh.rank() == 0),
        tokenizer_(build_tokenizer(tokenizer_options(parsed.args))) {
    const PairReader reader{.tokenizer = *tokenizer_, .log = [this](const std::string& line) {
                              if (is_first_) print_line(line);
                            }};
    data_ = std::make_shared<const TaskData>(read_task_data(task, parsed.args, reader));
    if (is_first_) print("building train and validation dataloaders ...");
    args_ = task_arguments(task, parsed.args, *data_, iterations_);
    family_ = task_family(task, data_);
    registry_ = {.train_step = [this](const Registry::Context&) {
      auto step = std::make_unique<TaskStep>();
      step_ = step.get();
      return step;
    }};
    if (is_first_) {
      print("building {} model for {} ...", task.multiple_choice ? "multichoice" : "classification",
            task.name);
    }
    loop_.emplace(args_, mesh, signals, model_);
    record_.emplace(args_, is_first_);
  }

  ExitCode run() {
    const bool finished = loop_->load();
    warn_of_missing_head();
    record_->resume(loop_->state().iteration);
    if (is_first_) print("done with setups ...");
    if (finished) {
      if (is_first_)
        print("training is already finished: {} holds iteration {}", loop_->trainer().resumed_folder(),
              loop_->state().iteration);
      // --json has the figures of each file of the last epoch.
      if (!score_interrupted_epoch() && args_.json) evaluate(epochs_done() - 1);
      write_json();
      return ExitCode::ok;
    }
    if (args_.skip_train && is_first_) print("evaluation only mode, setting epoch to -1");
    if (!args_.skip_train) {
      score_interrupted_epoch();
      announce(epochs_done());
      loop_->at_epochs(iterations_, [this] { end_epoch(); });
    }
    loop_->train();
    if (args_.skip_train) score(-1);
    const ExitCode code = loop_->finish();
    write_json();
    if (code == ExitCode::ok && is_first_) print("done :-)");
    return code;
  }

 private:
  // Printed when the first batch of an epoch is read.
  void announce(int64_t epoch) {
    step_->before_batch([this, epoch] {
      if (is_first_) print("working on epoch {} ...", epoch + 1);
    });
  }

  int64_t epochs_done() const { return loop_->state().iteration / iterations_; }

  void end_epoch() {
    loop_->save_now();
    score(epochs_done() - 1);
    if (loop_->state().iteration < loop_->trainer().train_iters()) announce(epochs_done());
  }

  // An epoch whose checkpoint was committed before its run was killed. Returns whether there was one.
  bool score_interrupted_epoch() {
    const int64_t iteration = loop_->state().iteration;
    if (loop_->trainer().resumed_folder() != args_.save || iteration % iterations_ != 0) return false;
    HostGroup& ranks = *loop_->trainer().mesh().world().communicator;
    if (run_on_rank_0(ranks, [&] { return record_->has(iteration) ? "scored" : ""; }) == "scored")
      return false;
    score(epochs_done() - 1);
    return true;
  }

  struct Evaluation {
    ordered_json line;  // of the epoch
    std::vector<Predictions> predictions;
  };
  Evaluation evaluate(int64_t epoch) {
    Trainer& trainer = loop_->trainer();
    const bool logs = trainer.is_last_rank();
    if (logs) print("calculating metrics ...");
    int64_t correct = 0, examples = 0;
    Evaluation evaluation{.line = {{"epoch", epoch}, {"iteration", loop_->state().iteration}}};
    files_ = ordered_json::array();
    for (size_t i = 0; i < data_->valid.size(); ++i) {
      const PairSamples& samples = *data_->valid[i];
      evaluation.predictions.push_back(predict(trainer, *step_, task_, data_->valid[i]));
      const Predictions& own = evaluation.predictions.back();
      const auto count = static_cast<int64_t>(samples.samples.size());
      if (logs) {
        print(" > |epoch: {}| metrics for {}: correct / total = {}, elapsed time (sec): {:.3f}", epoch,
              samples.name, share(own.correct, count), own.seconds);
      }
      files_.push_back({{"file", args_.valid_data[i]}, {"name", samples.name}});
      files_.back().update(figures(own.correct, count));
      correct += own.correct;
      examples += count;
    }
    if (logs) print(" >> |epoch: {}| overall: correct / total = {}", epoch, share(correct, examples));
    evaluation.line.update(figures(correct, examples));
    return evaluation;
  }

  void score(int64_t epoch) {
    const Evaluation evaluation = evaluate(epoch);
    record_->add(evaluation.line);
    if (record_->last_is_best()) write_predictions(evaluation.predictions);
    record_->write();
  }

  void write_predictions(const std::vector<Predictions>& predictions) const {
    if (!args_.predictions || !is_first_) return;
    AtomicFile file(*args_.predictions, ExitCode::config);
    for (size_t f = 0; f < predictions.size(); ++f) {
      for (size_t i = 0; i < predictions[f].probabilities.size(); ++i) {
        const PairSamples::Sample& sample = data_->valid[f]->samples[i];
        const std::vector<double>& probabilities = predictions[f].probabilities[i];
        file.write(dump_line({{"file", args_.valid_data[f]},
                              {"id", sample.id},
                              {"label", sample.label},
                              {"prediction", most_probable(probabilities)},
                              {"probabilities", probabilities}}) +
                   "\n");
      }
    }
    file.commit();
  }

  void write_json() const {
    if (!args_.json || !is_first_ || record_->epochs().empty()) return;
    const ordered_json& last = record_->epochs().back();
    ordered_json all = figures(last["correct"], last["examples"]);
    all["task"] = task_.name;
    all["files"] = files_;
    if (!args_.skip_train) {
      all["best"] = record_->epochs()[record_->best_epoch()];
      all["epochs"] = record_->epochs();
    }
    write_text(*args_.json, all.dump(2) + "\n", ExitCode::config);
  }

  void warn_of_missing_head() const {
    if (!loop_->trainer().is_last_rank() || loop_->state().iteration > 0) return;
    for (const auto& source : {args_.load, args_.pretrained_checkpoint}) {
      if (!source) continue;
      const std::optional<bool> found = holds_weight(*source, std::string(task_.head()) + ".weight");
      if (!found) continue;
      if (*found) return;
      print("***WARNING*** could not find {} in the checkpoint, initializing to random", task_.head());
      return;
    }
  }

  const FinetuneTask& task_;
  bool is_first_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const TaskData> data_;
  Arguments args_;
  int64_t iterations_ = 0;  // of an epoch
  Family family_;
  Registry registry_;
  JobModel model_{family_, registry_};
  TaskStep* step_ = nullptr;
  std::optional<TrainLoop> loop_;
  std::optional<EpochRecord> record_;
  ordered_json files_;  // figures of each, of the last evaluation
};

}  // namespace

ExitCode finetune_task(const FinetuneTask& task, const ParsedArguments& parsed, World& world,
                       const StopSignals& signals) {
  const Mesh mesh(mesh_options(parsed.args), world);
  if (mesh.rank() == 0) print_line(dump_changes(parsed));
  return FinetuneRun(task, parsed, mesh, signals).run();
}

}  // namespace teratron
