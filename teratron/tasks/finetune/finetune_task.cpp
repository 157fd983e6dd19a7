#include "teratron/tasks/finetune/finetune_task.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/models/bert/bert_family.h"

namespace teratron {

namespace {

PairSamples read_race_folder(const std::string& path, const PairReader& reader) {
  return read_race(path, reader);
}

constexpr FinetuneTask tasks[] = {
    {"RACE", 4, true, read_race_folder}, {"MNLI", 3, false, read_mnli}, {"QQP", 2, false, read_qqp}};

std::shared_ptr<const Dataset> dataset_of(const FinetuneTask& task, const DataRequest& request,
                                          const std::shared_ptr<const PairSamples>& samples, size_t split) {
  const int64_t size = request.samples[split].value_or(0);
  if (!samples || size == 0) return nullptr;
  TaskOrderOptions options = train_order(task, request.args, static_cast<int64_t>(samples->samples.size()));
  if (split != 0) {  // endless, always in the same order
    options.seed = 0;
    options.same_shuffle = true;
    options.keep_last = true;
  }
  auto order = std::make_shared<TaskOrder>(options);
  const int64_t microbatches =
      request.args.global_batch_size.value() / (request.args.micro_batch_size.value() * options.replicas);
  if (split == 0) order->limit_batches(order->batches() / microbatches * microbatches);
  return std::make_shared<const TaskDataset>(TaskDataset::Rows{.samples = samples,
                                                               .order = order,
                                                               .special = request.tokenizer.special(),
                                                               .length = request.args.seq_length.value()},
                                             size);
}

void check_task(const FinetuneTask& task, const Arguments& args, std::vector<Problem>& problems) {
  const auto reject = [&](bool wrong, std::string what, const char* flag, const char* fix) {
    if (wrong) problems.push_back({std::move(what), flag, fix});
  };
  const bool trains = !args.skip_train;
  reject(args.valid_data.empty(), "no data to evaluate on are given", "--valid-data",
         task.multiple_choice ? "Name one folder or more" : "Name one file or more");
  reject(trains && args.train_data.empty(), "no data to train on are given", "--train-data",
         "Name them, or use --epochs 0 to only evaluate");
  reject(trains && !args.num_train_epochs, "no number of epochs is given", "--epochs",
         "Use --epochs N; 0 only evaluates");
  reject(args.train_iters || args.train_samples, "the length of a finetuning is that of its epochs",
         args.train_iters ? "--train-iters" : "--train-samples", "Use --epochs");
  reject(!args.rampup_batch_size.empty() || args.step_batch_size_schedule,
         "the batch size of a finetuning is constant",
         args.rampup_batch_size.empty() ? "--step-batch-size-schedule" : "--rampup-batch-size",
         "Leave it out");
  reject(args.dataloader_type == "cyclic", "the task shuffles its samples itself", "--dataloader-type",
         "Leave it out");
  reject(args.mock_data, "there are no mock data of this task", "--mock-data",
         "Use --train-data and --valid-data");
  reject(args.seq_length && *args.seq_length < 4, "a row has no room for [CLS] A [SEP] B", "--seq-length",
         "Use at least 4");
}

template <typename Read>
std::shared_ptr<const PairSamples> joined(const std::vector<std::string>& paths, const Read& read) {
  auto all = std::make_shared<PairSamples>();
  for (const std::string& path : paths) all->add(*read(path));
  return all;
}

}  // namespace

const FinetuneTask* find_finetune_task(std::string_view name) {
  const auto* const found = std::ranges::find(tasks, name, &FinetuneTask::name);
  return found == std::end(tasks) ? nullptr : found;
}

TaskData read_task_data(const FinetuneTask& task, const Arguments& args, const PairReader& reader) {
  const SpecialTokens& special = reader.tokenizer.special();
  if (!special.cls || !special.sep) {
    throw config_error({.what = "the tokenizer has no [CLS] or [SEP]",
                        .where = "--tokenizer-type",
                        .fix = "Use BertWordPieceLowerCase or BertWordPieceCase"});
  }
  const auto announce = [&](const char* name, const std::vector<std::string>& paths) {
    reader.log(fmt::format(" > building {} dataset for {}:", task.name, name));
    reader.log(fmt::format("  > paths: {}", fmt::join(paths, " ")));
  };
  const auto read = [&](const std::string& path) {
    return std::make_shared<const PairSamples>(task.read(path, reader));
  };
  const auto total = [&](size_t samples) {
    reader.log(fmt::format("  >> total number of samples: {}", samples));
  };
  TaskData data;
  if (!args.skip_train) {
    announce("training", args.train_data);
    data.train = joined(args.train_data, read);
    total(data.train->samples.size());
  }
  announce("validation", args.valid_data);
  auto all = std::make_shared<PairSamples>();
  for (const std::string& path : args.valid_data) {
    data.valid.push_back(read(path));
    all->add(*data.valid.back());
  }
  total(all->samples.size());
  data.all_valid = all;
  return data;
}

TaskOrderOptions train_order(const FinetuneTask& task, const Arguments& args, int64_t samples) {
  return {.samples = samples,
          .micro_batch = args.micro_batch_size.value() / task.rows_per_sample(),
          .replicas = args.data_parallel_size.value(),
          .keep_last = args.keep_last_batch,
          .seed = static_cast<uint64_t>(args.seed)};
}

Arguments task_arguments(const FinetuneTask& task, const Arguments& args, const TaskData& data,
                         int64_t& iterations) {
  Arguments resolved = args;
  resolved.micro_batch_size = *args.micro_batch_size * task.rows_per_sample();
  resolved.global_batch_size = *args.global_batch_size * task.rows_per_sample();
  iterations = 0;
  if (args.skip_train) {
    resolved.eval_iters = 0;  // the accuracies are of all samples
    return resolved;
  }
  const auto samples = static_cast<int64_t>(data.train->samples.size());
  const TaskOrder order(train_order(task, resolved, samples));
  const int64_t microbatches =
      *resolved.global_batch_size / (*resolved.micro_batch_size * *resolved.data_parallel_size);
  iterations = order.batches() / microbatches;
  if (iterations == 0) {
    throw config_error(
        {.what = fmt::format("{} samples are less than a batch of {}", samples, *args.global_batch_size),
         .where = "--micro-batch-size",
         .fix = "Use a smaller batch, --keep-last, or more data"});
  }
  resolved.train_iters = iterations * *args.num_train_epochs;
  resolved.num_train_epochs = std::nullopt;
  if (!resolved.lr_decay_iters) resolved.lr_decay_iters = resolved.train_iters;
  return resolved;
}

Family task_family(const FinetuneTask& task, std::shared_ptr<const TaskData> data) {
  Family family = bert_classifier_family();
  family.settings.names.emplace_back("tasks");  // its flags too
  family.check = [&task](const Arguments& args, std::vector<Problem>& problems) {
    check_task(task, args, problems);
    bert_family().check(args, problems);
  };
  family.plan = [plan = family.plan](const Arguments& args, int64_t vocabulary) {
    ModelPlan result = plan(args, vocabulary);
    result.losses = {"lm loss"};
    return result;
  };
  family.datasets = [&task, data = std::move(data)](const DataRequest& request) {
    return Datasets{.train = dataset_of(task, request, data->train, 0),
                    .valid = dataset_of(task, request, data->all_valid, 1),
                    .test = nullptr};
  };
  return family;
}

}  // namespace teratron
