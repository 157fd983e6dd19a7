#include "teratron/serve/api/tool_call_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace teratron {

namespace {

constexpr std::string_view begin_mark = "<tool_call>", end_mark = "</tool_call>",
                           python_mark = "<|python_tag|>", blanks = " \t\r\n";

// Bytes at the end of the text with which the mark may begin.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::vector<AnswerPiece> ToolCallStream::add(const std::string& text) {
  held_ += text;
  while (go_on()) {
  }
  return std::exchange(pieces_, {});
}

std::vector<AnswerPiece> ToolCallStream::finish() {
  if (place_ == Place::call && !is_open_) give_up_call();
  if (place_ == Place::start || place_ == Place::text) {
    content(std::exchange(held_, {}));
    if (calls_ == 0 && !blanks_.empty()) pieces_.push_back({.content = std::exchange(blanks_, {})});
  }
  return std::exchange(pieces_, {});
}

// False: more text is needed.
bool ToolCallStream::go_on() {
  switch (place_) {
    case Place::start:
      return at_start();
    case Place::text:
      return in_text();
    case Place::call:
      return in_call();
    case Place::behind_call:
      return behind("</tool_call>");
    case Place::behind_object:
      return behind(";");
    case Place::ignored:
      held_.clear();
  }
  return false;
}

bool ToolCallStream::at_start() {
  const size_t first = held_.find_first_not_of(blanks);
  if (first == held_.npos) return false;
  std::string_view rest = std::string_view(held_).substr(first);
  if (python_mark.starts_with(rest)) return false;
  if (rest.starts_with(python_mark)) {
    rest.remove_prefix(python_mark.size());
    if (rest.find_first_not_of(blanks) == rest.npos) return false;
    rest.remove_prefix(rest.find_first_not_of(blanks));
  }
  if (!rest.starts_with('{')) {
    place_ = Place::text;
    return true;
  }
  is_marked_ = false;
  begin_call(held_.size() - rest.size());
  return true;
}

bool ToolCallStream::in_text() {
  const size_t mark = held_.find(begin_mark);
  if (mark == held_.npos) {
    const size_t kept = begun(held_, begin_mark);
    std::string rest = held_.substr(held_.size() - kept);
    held_.erase(held_.size() - kept);
    content(std::exchange(held_, std::move(rest)));
    return false;
  }
  content(held_.substr(0, mark));
  held_.erase(0, mark);
  is_marked_ = true;
  begin_call(begin_mark.size());
  return true;
}

void ToolCallStream::begin_call(size_t held_bytes) {
  raw_ = held_.substr(0, held_bytes);
  held_.erase(0, held_bytes);
  scanner_ = {};
  is_open_ = false;
  place_ = Place::call;
}

bool ToolCallStream::in_call() {
  size_t used = 0;
  bool fails = false;
  const bool is_first = raw_.size() == begin_mark.size() && is_marked_;
  if (is_first) {  // blanks between the mark and the object
    used = std::min(held_.find_first_not_of(blanks), held_.size());
    if (used == held_.size()) return false;
  }
  bool is_other = false;
  while (used < held_.size() && !scanner_.is_complete() && !fails && !is_other) {
    fails = !scanner_.add(held_[used++]);
    if (is_open_) continue;
    is_other = means_something_else();
    if (!is_other) open_call();
  }
  raw_.append(held_, 0, used);
  held_.erase(0, used);
  if (!is_open_ && (fails || is_other || scanner_.is_complete())) {
    give_up_call();
    return true;
  }
  std::string arguments = is_open_ ? scanner_.take_arguments() : "";
  if (!arguments.empty()) pieces_.push_back({.call = calls_ - 1, .arguments = std::move(arguments)});
  if (!fails && !scanner_.is_complete()) return false;
  if (!options_.parallel) {
    place_ = Place::ignored;
  } else {
    place_ = is_marked_ ? Place::behind_call : Place::behind_object;
  }
  return true;
}

// Without a mark, only what calls a function that there is.
bool ToolCallStream::means_something_else() const {
  if (is_marked_) return false;
  const std::vector<std::string>& known = options_.functions;
  return scanner_.has_other_members() ||
         (scanner_.has_name() && std::ranges::find(known, scanner_.name()) == known.end());
}

// Once its name is known and its arguments have begun.
void ToolCallStream::open_call() {
  const bool has_none = is_marked_ && scanner_.is_complete() && !scanner_.has_arguments();
  if (!scanner_.has_name() || (!scanner_.has_arguments() && !has_none)) return;
  is_open_ = true;
  blanks_.clear();
  pieces_.push_back(
      {.call = calls_++, .name = scanner_.name(), .arguments = has_none ? "{}" : scanner_.take_arguments()});
}

// It was none.
void ToolCallStream::give_up_call() {
  content(std::exchange(raw_, {}));
  place_ = Place::text;
}

// After a call: the mark that closes or separates calls, and then text or another one.
bool ToolCallStream::behind(const char* text) {
  const std::string_view mark = text;
  const size_t first = held_.find_first_not_of(blanks);
  if (first == held_.npos) return false;
  const std::string_view rest = std::string_view(held_).substr(first);
  if (rest.size() < mark.size() && mark.starts_with(rest)) return false;
  const bool has_mark = rest.starts_with(mark);
  if (has_mark) held_.erase(0, first + mark.size());
  place_ = has_mark && mark != end_mark ? Place::start : Place::text;
  return true;
}

// Blanks at its end are held back.
void ToolCallStream::content(std::string text) {
  const size_t end = text.find_last_not_of(blanks) + 1;
  if (end == 0) {
    blanks_ += text;
    return;
  }
  pieces_.push_back({.content = std::exchange(blanks_, text.substr(end)) + text.substr(0, end)});
}

}  // namespace teratron
