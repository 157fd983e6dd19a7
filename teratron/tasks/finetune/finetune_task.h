// RACE, MNLI and QQP: a BERT finetuned to choose an answer, or a class of two texts.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "teratron/models/bert/bert_classifier.h"
#include "teratron/models/family.h"
#include "teratron/tasks/finetune/pair_samples.h"
#include "teratron/tasks/finetune/task_dataset.h"

namespace teratron {

struct FinetuneTask {
  std::string_view name;
  int64_t classes;  // or choices
  bool multiple_choice;
  PairSamples (*read)(const std::string& path, const PairReader& reader);

  int64_t rows_per_sample() const { return multiple_choice ? classes : 1; }
  const char* head() const { return multiple_choice ? "multichoice_head" : "classification_head"; }
};
/// Null for other tasks.
const FinetuneTask* find_finetune_task(std::string_view name);

/// What --train-data and --valid-data hold.
struct TaskData {
  std::shared_ptr<const PairSamples> train;               // of all paths; null with --skip-train
  std::vector<std::shared_ptr<const PairSamples>> valid;  // of each path
  std::shared_ptr<const PairSamples> all_valid;
};
/// UserError(data) with all that is wrong; UserError(config) for a tokenizer without [CLS] or [SEP].
TaskData read_task_data(const FinetuneTask& task, const Arguments& args, const PairReader& reader);

/// The order of training: Megatron-LM's. `args`: with the batch sizes in rows.
TaskOrderOptions train_order(const FinetuneTask& task, const Arguments& args, int64_t samples);
/// With the batch sizes in rows instead of samples, and train_iters instead of epochs; `iterations` are those
/// of an epoch. UserError(config) if an epoch has none.
Arguments task_arguments(const FinetuneTask& task, const Arguments& args, const TaskData& data,
                         int64_t& iterations);

/// The family that is trained, from a pretrained BERT; without data to check settings.
Family task_family(const FinetuneTask& task, std::shared_ptr<const TaskData> data = nullptr);

}  // namespace teratron
