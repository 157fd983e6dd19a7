// The calls of functions in the text of an answer, as it comes: in Hermes' form, which Qwen has too,
//
//   <tool_call>
//   {"name": "f", "arguments": {...}}
//   </tool_call>
//
// and in Llama 3's, {"name": "f", "parameters": {...}}, as the whole answer, perhaps after <|python_tag|> and
// with more of them behind semicolons. What is not a call is content; so is such an object without a mark
// around it that names no function there is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/serve/api/call_scanner.h"

namespace teratron {

/// A piece of content, the beginning of a call, or more of its arguments.
struct AnswerPiece {
  std::string content = {};
  int64_t call = -1;      // its number; -1: content
  std::string name = {};  // at its beginning
  std::string arguments = {};
};

class ToolCallStream {
 public:
  struct Options {
    std::vector<std::string> functions = {};
    bool parallel = true;  // false: what follows the first call is left out
  };
  explicit ToolCallStream(Options options) : options_(std::move(options)) {}

  std::vector<AnswerPiece> add(const std::string& text);
  /// What was held back when the answer has ended.
  std::vector<AnswerPiece> finish();
  int64_t calls() const { return calls_; }

 private:
  enum class Place : uint8_t { start, text, call, behind_call, behind_object, ignored };

  bool go_on();
  bool at_start();
  bool in_text();
  bool in_call();
  bool behind(const char* mark);
  void begin_call(size_t held_bytes);
  bool means_something_else() const;
  void open_call();
  void give_up_call();
  void content(std::string text);

  Options options_;
  Place place_ = Place::start;
  std::string held_;    // not yet understood
  std::string blanks_;  // after content; left out before a call
  std::string raw_;     // of the call so far, with its mark
  CallScanner scanner_;
  bool is_marked_ = false, is_open_ = false;
  int64_t calls_ = 0;
  std::vector<AnswerPiece> pieces_;
};

}  // namespace teratron
