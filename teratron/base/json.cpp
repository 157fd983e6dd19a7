#include "teratron/base/json.h"

#include <set>
#include <utility>
#include <vector>

#include "teratron/base/file.h"

namespace teratron {

namespace {

using nlohmann::json;

// Records how far the parser has read, which its callbacks do not report.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

class StrictParser {
 public:
  StrictParser(std::string_view text, const JsonOptions& options)
      : text_(text), options_(options), at_(text.data()) {}

  json parse() {
    const auto check = [this](int depth, json::parse_event_t event, json& value) {
      return on_event(static_cast<size_t>(depth), event, value);
    };
    try {
      return json::parse(CountingIterator(text_.data(), &at_),
                         CountingIterator(text_.data() + text_.size(), &at_), check);
    } catch (const json::out_of_range&) {
      // The lexer has read one character beyond the number.
      while (at_ > text_.data() && (at_[-1] < '0' || at_[-1] > '9')) --at_;
      throw problem("the number here is beyond the range of 64-bit floats");
    } catch (const json::exception&) {
      throw problem(fmt::format("not valid JSON: {}", unexpected()));
    }
  }

 private:
  bool on_event(size_t depth, json::parse_event_t event, const json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= options_.max_depth) {
          throw problem(fmt::format("nested more than {} deep", options_.max_depth));
        }
        if (event == json::parse_event_t::object_start) keys_.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys_.back().insert(value.get<std::string>()).second) {
          throw problem(fmt::format("key \"{}\" appears twice", printable(value.get<std::string>())));
        }
        break;
      default:
        break;
    }
    return true;
  }

  // What the parser stopped at.
  std::string unexpected() const {
    const size_t read = static_cast<size_t>(at_ - text_.data());
    if (text_.find_first_not_of(" \t\r\n") == text_.npos) return "the text is empty";
    const std::string before(text_.substr(read < 20 ? 0 : read - 20, std::min<size_t>(read, 20)));
    return fmt::format("the end of '{}' is unexpected", printable(before));
  }

  UserError problem(std::string what) const {
    const size_t read = static_cast<size_t>(at_ - text_.data());
    const std::string position = line_and_column(text_, read == 0 ? 0 : read - 1);
    const std::string where = options_.where.empty() ? position : options_.where + ":" + position;
    return {options_.kind, {{.what = std::move(what), .where = where}}};
  }

  std::string_view text_;
  const JsonOptions& options_;
  const char* at_;
  std::vector<std::set<std::string>> keys_;  // of the open objects
};

}  // namespace

json parse_json(std::string_view text, const JsonOptions& options) {
  return StrictParser(text, options).parse();
}

json read_json(const std::filesystem::path& path, JsonOptions options) {
  const std::string text = read_text(path, {.kind = options.kind, .max_bytes = options.max_bytes});
  if (options.where.empty()) options.where = path.string();
  return parse_json(text, options);
}

std::string line_and_column(std::string_view text, size_t offset) {
  size_t line = 1;
  size_t column = 1;
  for (const char c : text.substr(0, offset)) {
    ++column;
    if (c == '\n') {
      ++line;
      column = 1;
    }
  }
  return fmt::format("{}:{}", line, column);
}

}  // namespace teratron
