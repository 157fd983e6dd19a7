#include "teratron/models/classifier/hf_families.h"

#include <algorithm>

#include "teratron/models/hf_rows.h"

namespace teratron {

using namespace hf_rows;

namespace {

void read_nothing(std::string_view, HfConfig&) {}

// The labels are numbered; one alone is a number to predict.
void read_labels(std::string_view key, HfConfig& config) {
  const auto labels = config.get(key, nlohmann::json::object());
  const int64_t count = labels.empty() ? config.get("num_labels", 2).get<int64_t>() : std::ssize(labels);
  const std::string problem = config.get("problem_type", "");
  if (problem == "multi_label_classification") return config.unsupported("problem_type");
  config.settings["num_classes"] = count;
  config.settings["task"] = count == 1 || problem == "regression" ? "regression" : "classification";
}

void write_labels(std::string_view key, HfConfig& config) {
  const auto count = config.settings.at("num_classes").get<int64_t>();
  nlohmann::json names = nlohmann::json::object(), numbers = nlohmann::json::object();
  for (int64_t label = 0; label < count; ++label) {
    const std::string name = fmt::format("LABEL_{}", label);
    names[std::to_string(label)] = name;
    numbers[name] = label;
  }
  config.keys[key] = names;
  config.keys["label2id"] = numbers;
  const bool is_number = config.settings.at("task") == "regression";
  config.keys["problem_type"] = is_number ? "regression" : "single_label_classification";
}

bool is_head(const HfTensorGroup& group, const HfTensorRow& row) {
  const std::string name = std::string(group.ours) + std::string(row.name);
  return name.starts_with("output_layer.") || name.starts_with("lm_head.") ||
         name.starts_with("binary_head.");
}

std::string classifier_name(std::string_view architecture) {
  for (const std::string_view end : {"LMHeadModel", "ForCausalLM", "ForPreTraining"}) {
    if (architecture.ends_with(end)) architecture.remove_suffix(end.size());
  }
  return std::string(architecture) + "ForSequenceClassification";
}

HfFamily classifier_of(HfFamily model, bool is_bert) {
  model.architecture = classifier_name(model.architecture);
  model.family = is_bert ? "bert_classifier" : "gpt_classifier";
  model.unties = {};
  for (HfTensorGroup& group : model.tensors) {
    std::erase_if(group.rows, [&](const HfTensorRow& row) { return is_head(group, row); });
    for (HfTensorRow& row : group.rows) row.options.copies = {};
  }
  std::erase_if(model.tensors, [](const HfTensorGroup& group) { return group.rows.empty(); });
  const HfTensorRow head{"classification_head.weight",
                         HfRule::same,
                         {is_bert ? "classifier.weight" : "score.weight"},
                         {"num_classes", hidden},
                         is_bert ? biased : HfTensorOptions()};
  model.tensors.push_back({"", "", {head}});
  model.keys.push_back({"", "num_classes", {.rows_of = "classification_head.weight", .read = read_nothing}});
  model.keys.push_back({"id2label", "", {.read = read_labels, .write = write_labels}});
  return model;
}

}  // namespace

std::vector<HfFamily> classifiers_of(const std::vector<HfFamily>& models) {
  std::vector<HfFamily> classifiers;
  for (const HfFamily& model : models) {
    if (model.family == "gpt" || model.family == "bert")
      classifiers.push_back(classifier_of(model, model.family == "bert"));
  }
  return classifiers;
}

}  // namespace teratron
