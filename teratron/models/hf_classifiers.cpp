#include "teratron/models/hf_classifiers.h"

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

}  // namespace

HfFamily classifier_of(HfFamily model, const HfTensorRow& head) {
  model.architecture = classifier_name(model.architecture);
  model.family += "_classifier";
  model.peft_task = {};
  model.unties = {};
  for (HfTensorGroup& group : model.tensors) {
    std::erase_if(group.rows, [&](const HfTensorRow& row) { return is_head(group, row); });
    for (HfTensorRow& row : group.rows) row.options.copies = {};
  }
  std::erase_if(model.tensors, [](const HfTensorGroup& group) { return group.rows.empty(); });
  model.tensors.push_back({"", "", {head}});
  model.keys.push_back({"", "num_classes", {.rows_of = head.name, .read = read_nothing}});
  model.keys.push_back({"id2label", "", {.read = read_labels, .write = write_labels}});
  return model;
}

}  // namespace teratron
