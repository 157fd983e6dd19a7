#include "teratron/cli/train/finetune_data.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "teratron/data/text/line_reader.h"
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

struct Examples {
  int64_t count = 0, bytes = 0;
};

// JSON lines.
Examples count_lines(std::string_view text) {
  Examples found;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    const std::string_view line = text.substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    ++found.count;
    found.bytes += std::ssize(line);
  }
  return found;
}

// The whole elements of a JSON array.
Examples count_elements(std::string_view text) {
  Examples found;
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      ++depth;
    } else if (!in_string && (c == ']' || c == '}')) {
      if (--depth == 1) found = {found.count + 1, static_cast<int64_t>(i)};
    }
  }
  return found;
}

}  // namespace

std::optional<double> bytes_per_example(const Arguments& args) {
  try {
    constexpr size_t longest = size_t{1} << 28;
    LineReader reader(expand_patterns(data_files(args)), longest);
    std::string text;
    while (text.size() < (size_t{1} << 20)) {
      const std::optional<LineBlock> block = reader.next();
      if (!block || block->file != 0) break;
      text += block->text;
    }
    const size_t first = text.find_first_not_of(" \t\r\n");
    const Examples found =
        first != text.npos && text[first] == '[' ? count_elements(text) : count_lines(text);
    if (found.count == 0) return std::nullopt;
    return static_cast<double>(found.bytes) / static_cast<double>(found.count);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

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
