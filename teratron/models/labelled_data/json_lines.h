// Training data as JSON lines: conversations, labelled texts.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace teratron {

struct JsonLine {
  std::string text;
  std::string where;  // "chats.jsonl:12", or "chats.json[11]" in an array
};

/// The lines of all files, which may be patterns and compressed, but blank ones; of a file that is one JSON
/// array its elements. UserError(data) for files
/// that cannot be read.
std::vector<JsonLine> read_json_lines(const std::vector<std::string>& files);

/// work(i) for all i below `count`, by several threads; the first exception is thrown again.
void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace teratron
