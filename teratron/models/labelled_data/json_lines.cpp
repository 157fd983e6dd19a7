#include "teratron/models/labelled_data/json_lines.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/data/blend.h"
#include "teratron/data/splits.h"
#include "teratron/data/text/line_reader.h"
#include "teratron/tokenizer/chat/ordered_json.h"

namespace teratron {

namespace {

// The elements of a file that is one JSON array, as lines; other files are unchanged.
std::vector<JsonLine> array_elements(std::vector<JsonLine> lines, const std::string& file) {
  if (lines.empty() || lines[0].text[lines[0].text.find_first_not_of(" \t\r")] != '[') return lines;
  std::string text;
  for (const JsonLine& each : lines) text += each.text + "\n";
  lines.clear();
  const nlohmann::ordered_json array =
      parse_ordered_json(text, {.where = file, .kind = ExitCode::data, .max_bytes = text.size()});
  for (size_t i = 0; i < array.size(); ++i)
    lines.push_back({array[i].dump(), fmt::format("{}[{}]", file, i)});
  return lines;
}

bool holds_texts(std::string_view file) {
  for (const std::string_view compressed : {".gz", ".xz", ".zst"}) {
    if (file.ends_with(compressed)) file.remove_suffix(compressed.size());
  }
  return file.ends_with(".txt");
}

std::string text_as_json(std::string text, const std::string& where) {
  if (text.ends_with('\r')) text.pop_back();
  try {
    return nlohmann::json({{"text", std::move(text)}}).dump();
  } catch (const nlohmann::json::exception&) {
    throw data_error({.what = "the line is not valid UTF-8", .where = where, .fix = "Convert the file"});
  }
}

void append(std::vector<JsonLine>& lines, std::vector<JsonLine> more) {
  lines.insert(lines.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

std::vector<JsonLine> read_json_lines(const std::vector<std::string>& patterns) {
  const std::vector<std::string> files = expand_patterns(patterns);
  constexpr size_t longest = size_t{1} << 28;
  std::vector<JsonLine> all, lines;  // `lines`: of one file
  size_t file = 0;
  LineReader reader(files, longest);
  while (const std::optional<LineBlock> block = reader.next()) {
    if (block->file != file) append(all, array_elements(std::exchange(lines, {}), files[file]));
    file = block->file;
    const auto where = [&](int64_t line) { return fmt::format("{}:{}", files[block->file], line); };
    if (block->too_long > 0) {
      throw data_error({.what = fmt::format("the line is longer than {} bytes", longest),
                        .where = where(block->too_long),
                        .fix = "Split the conversation"});
    }
    int64_t number = block->first_line;
    for (size_t begin = 0; begin < block->text.size(); ++number) {
      const size_t end = block->text.find('\n', begin);
      std::string text = block->text.substr(begin, end - begin);
      if (text.find_first_not_of(" \t\r") != text.npos) {
        if (holds_texts(files[file])) text = text_as_json(std::move(text), where(number));
        lines.push_back({std::move(text), where(number)});
      }
      begin = end + 1;
    }
  }
  if (!files.empty()) append(all, array_elements(std::move(lines), files[file]));
  return all;
}

std::vector<std::string> json_files_of(const std::vector<std::string>& items) {
  const Blend blend = parse_data_path(items);
  if (blend.weights) {
    throw config_error({.what = "files of conversations have no weights",
                        .where = "--data-path",
                        .fix = "Give the files only; all their conversations are used"});
  }
  return blend.prefixes;
}

std::array<std::vector<JsonLine>, 3> json_lines_of_splits(const DataSources& sources) {
  std::vector<Problem> problems = source_problems(sources);
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
  std::array<std::vector<JsonLine>, 3> splits;
  std::vector<JsonLine> shared;
  if (!sources.data_path.empty()) shared = read_json_lines(json_files_of(sources.data_path));
  const auto ranges = split_ranges(parse_split(sources.split), std::ssize(shared));
  for (size_t split = 0; split < splits.size(); ++split) {
    if (sources.samples[split] == 0) continue;
    if (sources.data_path.empty()) {
      const std::vector<std::string>& own = sources.split_data_path[split];
      if (!own.empty()) splits[split] = read_json_lines(json_files_of(own));
    } else if (ranges[split]) {
      splits[split].assign(shared.begin() + ranges[split]->first, shared.begin() + ranges[split]->last);
    }
  }
  if (sources.samples[0] != 0 && splits[0].empty()) {
    throw data_error({.what = "the train split has no lines",
                      .where = "--data-path",
                      .fix = "Add data or change --split"});
  }
  return splits;
}

Datasets datasets_of_json_lines(const DataSources& sources, const DatasetOfLines& make) {
  const auto lines = json_lines_of_splits(sources);
  std::array<std::shared_ptr<const Dataset>, 3> built;
  for (size_t split = 0; split < built.size(); ++split) {
    if (sources.samples[split] == 0) continue;
    if (lines[split].empty()) {
      if (!sources.data_path.empty()) warn("the {} split has no lines; skipping it", kSplitNames[split]);
      continue;
    }
    built[split] = make(lines[split], split);
  }
  return {built[0], built[1], built[2]};
}

std::vector<Problem> problems_by_kind(std::vector<Problem> all) {
  const auto kind = [](const Problem& problem) {
    std::string key;
    bool in_name = false;
    for (const char c : problem.what) {
      in_name = in_name != (c == '\'');
      if (!in_name && std::string_view("0123456789.-").find(c) == std::string_view::npos) key += c;
    }
    return key;
  };
  std::vector<Problem> kinds;
  std::map<std::string, std::pair<size_t, int64_t>> known;  // index in `kinds`, further ones
  for (Problem& problem : all) {
    const auto [found, is_new] = known.try_emplace(kind(problem), kinds.size(), 0);
    if (is_new) {
      kinds.push_back(std::move(problem));
    } else {
      ++found->second.second;
    }
  }
  for (const auto& [key, place] : known) {
    if (place.second > 0) kinds[place.first].what += fmt::format(" (and so in {} more places)", place.second);
  }
  return kinds;
}

void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::exception_ptr thrown;
  std::mutex mutex;
  const auto run = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!thrown) thrown = std::current_exception();
      next = count;
    }
  };
  const size_t most = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 16);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min(most, count / 64 + 1); ++i) threads.emplace_back(run);
    run();
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace teratron
