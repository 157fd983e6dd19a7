#include "teratron/models/labelled_data/json_lines.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "teratron/base/error.h"
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
      if (text.find_first_not_of(" \t\r") != text.npos) lines.push_back({std::move(text), where(number)});
      begin = end + 1;
    }
  }
  if (!files.empty()) append(all, array_elements(std::move(lines), files[file]));
  return all;
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
