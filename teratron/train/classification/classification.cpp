#include "teratron/train/classification/classification.h"

#include "teratron/base/error.h"
#include "teratron/models/bert/bert_family.h"
#include "teratron/models/classifier/classifier_families.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/labelled_data/labelled_texts.h"
#include "teratron/train/classification/classification_step.h"

namespace teratron {

namespace {

struct LabelledTask {
  LabelledForm form;
  bool has_classes;

  ClassifierTarget target() const {
    return has_classes ? ClassifierTarget::one_of : ClassifierTarget::number;
  }
};

Datasets labelled_datasets(const LabelledTask& task, const DataRequest& request) {
  const Arguments& args = request.args;
  const auto make = [&](size_t split,
                        const std::vector<std::string>& files) -> std::shared_ptr<const Dataset> {
    if (files.empty() || request.samples[split] == 0) return nullptr;
    const auto seed = static_cast<uint64_t>(args.seed);
    return std::make_shared<LabelledTexts>(
        files, LabelledTextOptions{.form = task.form,
                                   .sequence_length = args.seq_length.value(),
                                   .classes = task.has_classes ? args.num_classes : 0,
                                   .samples = request.samples[split],
                                   .shuffle = split == 0 ? std::optional(seed) : std::nullopt,
                                   .tokenizer = request.tokenizer});
  };
  return {make(0, args.train_data), make(1, args.valid_data), nullptr};
}

void check_labelled(const LabelledTask& task, const Arguments& args, std::vector<Problem>& problems) {
  if (args.train_data.empty() && !args.skip_train)
    problems.push_back({"no texts to train on are given", "--train-data", "Name a file of JSON lines"});
  if (args.valid_data.empty() && args.skip_train)
    problems.push_back({"no texts to evaluate on are given", "--valid-data", "Name a file of JSON lines"});
  if (task.has_classes && args.num_classes < 2)
    problems.push_back(
        {"one class leaves nothing to learn", "--num-classes", "Use 2 or more, or --task regression"});
  if (args.context_parallel_size > 1)
    problems.push_back({"the head needs whole texts on a rank", "--context-parallel-size", "Leave it out"});
  if (args.calculate_per_token_loss)
    problems.push_back(
        {"the loss is one of texts, not of tokens", "--calculate-per-token-loss", "Leave it out"});
  (task.form == LabelledForm::bert ? bert_family() : gpt_family()).check(args, problems);
}

}  // namespace

ClassificationJob classification_job(std::string_view model, std::string_view name) {
  if (model != "bert" && model != "gpt") {
    throw config_error({.what = fmt::format("{} has no classification head", printable(model, 40)),
                        .where = "finetune",
                        .fix = "Use bert or gpt"});
  }
  if (name != "classification" && name != "regression") {
    throw config_error({.what = fmt::format("{} is a task of `teratron tasks`", printable(name, 40)),
                        .where = "--task",
                        .fix = "Use --task classification or regression, or `teratron tasks`"});
  }
  const LabelledTask task{model == "bert" ? LabelledForm::bert : LabelledForm::gpt, name == "classification"};
  const bool is_bert = model == "bert";
  Family family = is_bert ? bert_classifier_family() : gpt_classifier_family();
  if (is_bert) family.args_defaults = {{"tokenizer_type", "BertWordPieceLowerCase"}};
  family.check = [task](const Arguments& args, std::vector<Problem>& p) { check_labelled(task, args, p); };
  family.datasets = [task](const DataRequest& request) { return labelled_datasets(task, request); };
  Finetuning pretrained{.family = std::string(model),
                        .starts_anew = {"classification_head.", "pooler."},
                        .left_out = {"lm_head.", "output_layer.", "binary_head."}};
  Registry registry{.finetuning = std::move(pretrained)};
  registry.train_step = [task](const Registry::Context&) {
    return std::make_unique<ClassificationStep>(task.target());
  };
  return {std::move(family), std::move(registry)};
}

}  // namespace teratron
