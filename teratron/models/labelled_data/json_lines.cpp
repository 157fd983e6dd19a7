#include "teratron/models/labelled_data/json_lines.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "teratron/base/error.h"
#include "teratron/data/text/line_reader.h"

namespace teratron {

std::vector<JsonLine> read_json_lines(const std::vector<std::string>& patterns) {
  const std::vector<std::string> files = expand_patterns(patterns);
  constexpr size_t longest = size_t{1} << 28;
  std::vector<JsonLine> lines;
  LineReader reader(files, longest);
  while (const std::optional<LineBlock> block = reader.next()) {
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
  return lines;
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
