#include "teratron/base/json.h"

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

// Builds the value from the parser's events. nlohmann's own parser with a callback looks through all members
// of a container whenever one of them ends, which takes quadratic time.
class StrictParser final : public json::json_sax_t {
 public:
  StrictParser(std::string_view text, const JsonOptions& options)
      : text_(text), options_(options), at_(text.data()) {}

  json parse() {
    json::sax_parse(CountingIterator(text_.data(), &at_), CountingIterator(text_.data() + text_.size(), &at_),
                    this);
    return std::move(root_);
  }

  // json_sax
  bool null() override { return add(json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(value); }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON has none
  bool start_object(size_t /*size*/) override { return open(json::value_t::object); }
  bool start_array(size_t /*size*/) override { return open(json::value_t::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    if (!is_new) throw problem(fmt::format("key \"{}\" appears twice", printable(name)));
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t /*position*/, const std::string& /*token*/, const json::exception& error) override {
    if (!dynamic_cast<const json::out_of_range*>(&error))
      throw problem(fmt::format("not valid JSON: {}", unexpected()));
    // The lexer has read one character beyond the number.
    while (at_ > text_.data() && (at_[-1] < '0' || at_[-1] > '9')) --at_;
    throw problem("the number here is beyond the range of 64-bit floats");
  }

 private:
  // The place of the next value: the root, the member whose key was read, or the end of an array.
  json& place(json value) {
    json& target = open_.empty()               ? root_
                   : open_.back()->is_object() ? *member_
                                               : open_.back()->get_ref<json::array_t&>().emplace_back();
    target = std::move(value);
    return target;
  }

  bool add(json value) {
    place(std::move(value));
    return true;
  }

  bool open(json::value_t type) {
    if (open_.size() >= options_.max_depth)
      throw problem(fmt::format("nested more than {} deep", options_.max_depth));
    open_.push_back(&place(json(type)));
    return true;
  }

  bool close() {
    open_.pop_back();
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
  json root_;
  json* member_ = nullptr;   // of the innermost object, if it is an object
  std::vector<json*> open_;  // arrays and objects, which stay where they are until they end
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
