#include "python/module/trainer.h"

#include <algorithm>
#include <deque>
#include <stdexcept>

#include "python/module/model.h"
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nlohmann/json.hpp>

#include "teratron/settings/component_options.h"
#include "teratron/train/checkpoint/checkpointed_run.h"
#include "teratron/train/checkpoint/model_checkpoint.h"
#include "teratron/train/data/train_context.h"

namespace nb = nanobind;

namespace teratron::python {

namespace {

std::shared_ptr<const Dataset> dataset_of(const Held& datasets, const char* split, const BatchSchema& schema,
                                          int64_t vocabulary) {
  const nb::gil_scoped_acquire gil;
  const nb::dict splits = nb::cast<nb::dict>(*datasets);
  if (!splits.contains(split)) return nullptr;
  return std::make_shared<PythonDataset>(Held(nb::object(splits[split])), schema, split, vocabulary);
}

// Whether a step sees the columns of all pipeline stages on each.
bool wants_all_columns(const Held& step) {
  const nb::gil_scoped_acquire gil;
  return nb::cast<bool>(step->attr("all_columns"));
}

// A dataset of Python is called by one thread at a time anyway.
Settings with_one_worker(const Settings& settings) {
  std::vector<std::string> flags = settings.flags();
  if (!settings.parsed().sources.contains("num_workers")) flags.insert(flags.end(), {"--num-workers", "1"});
  return {std::string(settings.family().name), flags, settings.world_size(), Data::program};
}

}  // namespace

SplitReader::~SplitReader() {
  const nb::gil_scoped_release released;
  reader_ = nullptr;
}

std::optional<Tensors> SplitReader::next() {
  std::vector<Batch> batches;
  for (int64_t i = 0; i < micro_batches_; ++i) {
    std::optional<Batch> batch = reader_();
    if (!batch) return std::nullopt;
    batches.push_back(*std::move(batch));
  }
  return stacked(batches);
}

const Result& StepOutcome::result() const {
  if (!is_known_) throw std::runtime_error("the step failed, so it has no result");
  return *result_;
}

TrainerHandle::TrainerHandle(Settings settings, std::shared_ptr<Rank> rank, Hooks hooks)
    : settings_(hooks.datasets ? with_one_worker(settings) : settings.with(Data::settings)),
      rank_(std::move(rank)),
      hooks_(std::move(hooks)),
      mesh_(Mesh(mesh_options(settings_.args()), rank_->world())),
      family_(family_with(hooks_)) {
  registry_.param_group = python_param_groups(hooks_.param_groups);
  if (hooks_.step) {
    registry_.train_step = [this](const Registry::Context& context) {
      const size_t losses = family_.plan(context.args, context.tokenizer.vocab_size()).losses.size();
      const nb::gil_scoped_acquire gil;
      return python_step(hooks_.step, losses);
    };
  }
  loop_ = std::make_unique<TrainLoop>(settings_.args(), *mesh_, signals_, JobModel{family_, registry_});
  runs_ahead_ = mesh_->world_size() == 1 && trainer().device().is_cuda();
  close_at_end_ = std::make_shared<std::function<void()>>([this] { close_in_turn(); });
  rank_->at_end(close_at_end_);
}

// With the GIL, which threads of the data may wait for.
TrainerHandle::~TrainerHandle() {
  const nb::gil_scoped_release released;
  close();
}

void TrainerHandle::close() {
  if (launched_ && launched_->outcome.use_count() > 1) {
    try {
      finish_step();
    } catch (const std::exception&) {
      // The result has no values, and says so.
    }
  }
  {
    const nb::gil_scoped_acquire gil;
    is_closed_ = true;
  }
  close_at_end_.reset();
  launched_.reset();
  source_.reset();
  gradients_.reset();
  live_.reset();
  if (loop_) loop_->trainer().saver().finish();
  loop_.reset();
  mesh_.reset();
}

Family TrainerHandle::family_with(const Hooks& hooks) const {
  Family family = settings_.family();
  if (hooks.step && wants_all_columns(hooks.step)) {
    family.plan = [plan = family.plan](const Arguments& args, int64_t vocabulary) {
      ModelPlan all = plan(args, vocabulary);
      for (Column& column : all.batch) column.stages = Column::Stages::all;
      return all;
    };
  }
  if (hooks.model) {
    family.generates = false;
    family.plan = [make = hooks.model, plan = family.plan](const Arguments& args, int64_t vocabulary) {
      return python_model(plan(args, vocabulary), make);
    };
  }
  if (!hooks.datasets) return family;
  family.datasets = [datasets = hooks.datasets, plan = family.plan](const DataRequest& request) {
    const int64_t vocabulary = request.tokenizer.vocab_size();
    const BatchSchema schema = plan(request.args, vocabulary).batch;
    Datasets splits;
    const auto make = [&](size_t i) -> std::shared_ptr<const Dataset> {
      const bool is_needed = request.samples[i].value_or(1) > 0;
      return is_needed ? dataset_of(datasets, kSplitNames[i], schema, vocabulary) : nullptr;
    };
    splits.train = make(0);
    splits.valid = make(1);
    splits.test = make(2);
    return splits;
  };
  return family;
}

Trainer& TrainerHandle::trainer() {
  if (loop_ && !is_closed_) return loop_->trainer();
  throw std::runtime_error("the trainer is closed");
}

Trainer& TrainerHandle::finished_trainer() {
  finish_step();
  return trainer();
}

template <typename Work>
auto TrainerHandle::guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    source_position_ = -1;
    if (rank_->is_process())
      rank_->fail(fmt::format("rank {} failed: {}", rank_->world().rank(), error.what()));
    throw;
  }
}

bool TrainerHandle::load() {
  source_position_ = -1;
  return guarded([&] { return finished_trainer().load(); });
}

std::string TrainerHandle::save() {
  return guarded([&] {
    if (!finished_trainer().args().save) {
      throw config_error({.what = "save() has no folder to write to",
                          .where = "save",
                          .fix = "Give Config a folder: save=DIR"});
    }
    trainer().save();
    trainer().saver().finish();
    return *trainer().args().save;
  });
}

bool TrainerHandle::load(const std::string& folder) {
  source_position_ = -1;
  return guarded([&] {
    const auto found = load_model(finished_trainer().engine(), {.directory = folder,
                                                                .config = checkpoint_config(),
                                                                .optimizer = !trainer().args().no_load_optim,
                                                                .own = false});
    if (found) trainer().resume(*found);
    return found.has_value();
  });
}

void TrainerHandle::save(const std::string& folder) {
  guarded([&] {
    save_model(finished_trainer().engine(),
               {.directory = folder,
                .iteration = trainer().state().iteration,
                .config = checkpoint_config(),
                .state = trainer().state().to_json()},
               !trainer().args().no_save_optim);
    return true;
  });
}

Result TrainerHandle::result_of(StepResult step) {
  Trainer& trainer = this->trainer();
  Result result{.consumed_samples = trainer.state().consumed_train_samples};
  if (!step.losses.empty()) {
    result.losses = trainer.losses_of(step);
    result.metrics = trainer.metrics_of(step);
  }
  result.step = std::move(step);
  return result;
}

void TrainerHandle::finish_step() {
  if (!launched_) return;
  Launched last = *std::exchange(launched_, std::nullopt);
  Result result = result_of(trainer().finish_step(std::move(last.step)));
  result.consumed_samples = last.consumed_samples;
  if (runs_ahead_) result.step.metrics.seconds = result.step.seconds;
  last.outcome->set(std::move(result));
  trainer().saver().advance();
}

std::shared_ptr<StepOutcome> TrainerHandle::launch(BatchSource& source) {
  Trainer& trainer = this->trainer();
  auto outcome = std::make_shared<StepOutcome>();
  if (trainer.must_wait_for_result() || trainer.skips_next_step()) {
    finish_step();
    outcome->set(result_of(trainer.train_step(source)));
    return outcome;
  }
  PendingStep step = trainer.launch_step(trainer.batches_from(source));
  finish_step();
  launched_ = Launched{std::move(step), outcome, trainer.state().consumed_train_samples};
  if (!runs_ahead_) finish_step();
  return outcome;
}

std::shared_ptr<StepOutcome> TrainerHandle::step() {
  return guarded([&] {
    Trainer& trainer = this->trainer();
    if (!source_ || source_position_ != trainer.state().consumed_train_samples)
      source_ = trainer.open(Split::train);
    source_position_ = -1;
    const std::shared_ptr<StepOutcome> outcome = launch(*source_);
    source_position_ = trainer.state().consumed_train_samples;
    return outcome;
  });
}

std::unique_ptr<BatchSource> TrainerHandle::source_of(Split split, const std::optional<Tensors>& samples) {
  Trainer& trainer = this->trainer();
  const BatchSchema& schema = trainer.model().batch;
  if (!reads_data(schema, *mesh_)) return trainer.open(split, BatchReader());
  if (!samples) {
    throw data_error({.what = "this rank reads data, and was given none",
                      .where = "the batch",
                      .fix = "Give it an item of batches(); ranks where that is None give None"});
  }
  const BatchSize size = split == Split::train ? trainer.batch_size() : trainer.eval_batch_size();
  auto batches = std::make_shared<std::deque<Batch>>();
  const ItemShape item{trainer.args().micro_batch_size.value(), size.microbatches,
                       trainer.tokenizer().vocab_size()};
  for (Batch& batch : unstacked(*samples, schema, item)) batches->push_back(std::move(batch));
  return trainer.open(split, [batches]() -> std::optional<Batch> {
    if (batches->empty()) return std::nullopt;
    Batch batch = std::move(batches->front());
    batches->pop_front();
    return batch;
  });
}

std::shared_ptr<StepOutcome> TrainerHandle::step(const std::optional<Tensors>& samples) {
  return guarded([&] {
    const std::unique_ptr<BatchSource> source = source_of(Split::train, samples);
    return launch(*source);
  });
}

Result TrainerHandle::evaluate(Split split, int64_t steps) {
  if (steps < 1)
    throw config_error(
        {.what = fmt::format("{} batches", steps), .where = "iters", .fix = "Give at least 1"});
  return guarded([&] {
    const std::unique_ptr<BatchSource> source = finished_trainer().open(split);
    return result_of(trainer().eval_step(*source, steps));
  });
}

Result TrainerHandle::evaluate(const std::optional<Tensors>& samples) {
  return guarded([&] {
    finish_step();
    const std::unique_ptr<BatchSource> source = source_of(Split::valid, samples);
    return result_of(trainer().eval_step(*source));
  });
}

at::Tensor TrainerHandle::logits(const std::optional<Tensors>& samples) {
  if (hooks_.model) throw std::runtime_error("a model of the program has losses alone, no logits");
  return guarded([&] {
    finish_step();
    const std::unique_ptr<BatchSource> source = source_of(Split::valid, samples);
    std::vector<at::Tensor> logits;
    const MicroBatches batches = trainer().batches_from(*source);
    for (int64_t i = 0; i < trainer().eval_batch_size().microbatches; ++i)
      logits.push_back(trainer().logits(batches(i)));
    return logits.front().defined() ? at::cat(logits, 1) : at::Tensor();
  });
}

ExitCode TrainerHandle::train(const StepObserver& on_step) {
  return guarded([&] {
    finish_step();
    trainer();
    if (std::exchange(has_trained_, true))
      throw std::runtime_error("train() has ended this training: make another Trainer to go on");
    loop_->on_step(on_step);
    loop_->train();
    source_position_ = -1;
    return loop_->finish();
  });
}

std::unique_ptr<SplitReader> TrainerHandle::read(Split split) {
  Trainer& trainer = this->trainer();
  if (!trainer.has(split)) trainer.open(split);  // says what is missing
  BatchReader reader = trainer.read(split);
  if (!reader) return nullptr;
  const BatchSize size = split == Split::train ? trainer.batch_size() : trainer.eval_batch_size();
  return std::make_unique<SplitReader>(std::move(reader), size.microbatches);
}

void TrainerHandle::compute_gradients(const std::optional<Tensors>& samples) {
  guarded([&] {
    finish_step();
    gradients_.reset();
    const std::unique_ptr<BatchSource> source = source_of(Split::train, samples);
    gradients_ = trainer().compute_gradients(trainer().batches_from(*source));
    return true;
  });
}

Result TrainerHandle::update() {
  trainer();
  if (!gradients_) throw std::runtime_error("there are no gradients: call compute_gradients() first");
  return guarded([&] {
    StepGradients gradients = *std::move(gradients_);
    gradients_.reset();
    StepResult result = trainer().finish_step(trainer().launch_update(std::move(gradients)));
    trainer().saver().advance();
    return result_of(std::move(result));
  });
}

std::vector<std::string> TrainerHandle::answers(const std::vector<std::string>& requests,
                                                std::optional<int64_t> seed) {
  Trainer& trainer = finished_trainer();
  if (!trainer.family().generates) {
    throw config_error({.what = "models of this family do not generate text",
                        .where = "generate()",
                        .fix = "Train a GPT or a T5"});
  }
  if (!live_) live_ = std::make_unique<LiveModel>(trainer);
  RequestReader reader = live_->reader();
  if (seed) reader.defaults.sampling.seed = static_cast<uint64_t>(*seed);
  std::vector<GenerationRequest> read;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string where = fmt::format("prompt {}", i + 1);
    read.push_back(request_from_json(nlohmann::json::parse(requests[i]), reader, where));
    reader.defaults.sequence += static_cast<uint64_t>(std::max<int64_t>(read.back().choices, 1));
    std::vector<Problem> problems = request_problems(read.back(), live_->limits());
    for (Problem& problem : problems) problem.where = where + ", " + problem.where;
    if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
  }
  std::vector<std::string> answers;
  const std::vector<GenerationResult> results = guarded([&] { return live_->answers(read); });
  for (size_t i = 0; i < results.size(); ++i) {
    nlohmann::ordered_json answer = answer_to_json(results[i], read[i], reader.tokenizer);
    answer["prompt_tokens"] = read[i].source.empty() ? read[i].prompt : read[i].source;
    answers.push_back(dump_line(answer));
  }
  return answers;
}

std::string TrainerHandle::checkpoint_config() {
  return teratron::checkpoint_config(trainer().args(), family_, trainer().engine().options());
}

}  // namespace teratron::python
