#include "teratron/models/classifier/classifier_families.h"

#include "teratron/models/bert/bert_classifier.h"
#include "teratron/models/gpt/gpt_classifier.h"

namespace teratron {

ClassifierOptions classifier_options(const Arguments& args) {
  const std::string task = args.task.value_or("classification");
  if (task == "regression") return {.target = ClassifierTarget::number, .outputs = 1};
  if (task == "RACE") return {.outputs = 1, .choices = 4};
  if (task == "MNLI") return {.outputs = 3};
  if (task == "QQP") return {.outputs = 2};
  return {.outputs = args.num_classes};
}

Family bert_classifier_family() {
  const auto plan = [](const Arguments& args, int64_t vocabulary) {
    ClassifierOptions head = classifier_options(args);
    head.dropout = args.hidden_dropout;
    return bert_classifier_plan(
        bert_config(args, vocabulary), head,
        bert_classifier_schema({.sequence_length = args.seq_length.value_or(0), .classifier = head}));
  };
  return {.name = "bert_classifier", .summary = "a classification head on a BERT", .plan = plan};
}

Family gpt_classifier_family() {
  const auto plan = [](const Arguments& args, int64_t vocabulary) {
    const ClassifierOptions head = classifier_options(args);
    return gpt_classifier_plan(
        gpt_config(args, vocabulary), head,
        gpt_classifier_schema({.sequence_length = args.seq_length.value_or(0), .classifier = head}));
  };
  return {.name = "gpt_classifier", .summary = "a classification head on a GPT", .plan = plan};
}

const Family& find_saved_family(std::string_view name) {
  static const std::array<Family, 2> classifiers = {bert_classifier_family(), gpt_classifier_family()};
  return find_family(name, classifiers);
}

}  // namespace teratron
