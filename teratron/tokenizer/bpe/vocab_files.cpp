#include "teratron/tokenizer/bpe/vocab_files.h"

#include <simdjson.h>

#include "teratron/base/error.h"
#include "teratron/tokenizer/json_problem.h"
#include "teratron/tokenizer/text/text_file.h"

namespace teratron {
namespace {

std::vector<std::pair<std::string, int32_t>> read_vocab(const std::string& path) {
  const simdjson::padded_string json(read_text_file(path));
  simdjson::dom::parser parser;
  simdjson::dom::object tokens;
  if (const auto error = parser.parse(json).get(tokens)) {
    throw data_error({.what = fmt::format("not a JSON object of token ids ({})", json_problem(error)),
                      .where = path,
                      .fix = "pass a vocab.json like GPT-2's"});
  }
  std::vector<std::pair<std::string, int32_t>> vocab;
  for (const auto& [token, value] : tokens) {
    int64_t id = -1;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id > INT32_MAX) {
      throw data_error({.what = fmt::format("the id of token '{}' is not an integer from 0 to 2147483647",
                                            printable(token)),
                        .where = path,
                        .fix = "use the tokenizer's original files"});
    }
    vocab.emplace_back(std::string(token), static_cast<int32_t>(id));
  }
  return vocab;
}

}  // namespace

std::pair<std::string, std::string> parse_merge(std::string_view line, const std::string& where) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    throw data_error(
        {.what = fmt::format("'{}' is not a merge: two tokens separated by a space", printable(line)),
         .where = where,
         .fix = "use the tokenizer's original files"});
  }
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

BpeConfig read_vocab_and_merges(const std::string& vocab_file, const std::string& merge_file) {
  BpeConfig config{.vocab = read_vocab(vocab_file), .merges = {}, .unk_token = {}, .where = vocab_file};
  const std::string text = read_text_file(merge_file);
  size_t number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    if (line.empty() || line.starts_with("#version")) continue;
    config.merges.push_back(parse_merge(line, fmt::format("{}:{}", merge_file, number)));
  }
  config.where = vocab_file + " and " + merge_file;
  return config;
}

}  // namespace teratron
