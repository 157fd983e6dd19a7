// Training data as JSON lines: conversations, labelled texts.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/data/dataset_builder.h"

namespace teratron {

struct JsonLine {
  std::string text;
  std::string where;  // "chats.jsonl:12", or "chats.json[11]" in an array
};

/// The lines of all files, which may be patterns and compressed, but blank ones; of a file that is one JSON
/// array its elements; of a file named .txt {"text": LINE}.
/// UserError(data) for files that cannot be read.
std::vector<JsonLine> read_json_lines(const std::vector<std::string>& files);

/// The files of --data-path or another of its flags. UserError(config) for weights, which lines have not.
std::vector<std::string> json_files_of(const std::vector<std::string>& items);

/// The lines of each split: its share of --data-path, or its own files. None of splits without samples.
/// UserError(config) for contradictions, UserError(data) if the train split is asked for and has no lines.
std::array<std::vector<JsonLine>, 3> json_lines_of_splits(const DataSources& sources);

/// The dataset of each split that has lines: make(lines, split). Warns of one of --data-path without any.
using DatasetOfLines =
    std::function<std::shared_ptr<const Dataset>(const std::vector<JsonLine>& lines, size_t split)>;
Datasets datasets_of_json_lines(const DataSources& sources, const DatasetOfLines& make);

/// Problems that differ in numbers and quoted names alone are one, with a count.
std::vector<Problem> problems_by_kind(std::vector<Problem> all);

/// work(i) for all i below `count`, by several threads; the first exception is thrown again.
void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace teratron
