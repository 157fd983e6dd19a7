#include "teratron/cli/train/finetune_data.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "teratron/models/labelled_data/json_lines.h"

namespace teratron {

namespace {

std::vector<std::string> data_files(const Arguments& args) {
  for (const std::vector<std::string>* files :
       {&args.data_path, &args.train_data_path, &args.valid_data_path}) {
    if (!files->empty()) return json_files_of(*files);
  }
  return {};
}

// Null where there is none; what is wrong with the line is reported when it is read for the training.
nlohmann::json label_of(const JsonLine& line) {
  const nlohmann::json value = nlohmann::json::parse(line.text, nullptr, /*allow_exceptions=*/false);
  return value.is_object() ? value.value("label", nlohmann::json()) : nlohmann::json();
}

}  // namespace

std::optional<LabelKind> labels_in_data(const Arguments& args) {
  const std::vector<JsonLine> lines = read_json_lines(data_files(args));
  if (lines.empty() || label_of(lines.front()).is_null()) return std::nullopt;
  LabelKind kind;
  double largest = 1;
  for (const JsonLine& line : lines) {
    const nlohmann::json label = label_of(line);
    if (!label.is_number()) continue;
    const auto number = label.get<double>();
    if (number < 0 || number != std::floor(number)) kind.are_classes = false;
    largest = std::max(largest, number);
  }
  kind.classes = kind.are_classes ? static_cast<int64_t>(std::min(largest, 1e6)) + 1 : 1;
  return kind;
}

}  // namespace teratron
