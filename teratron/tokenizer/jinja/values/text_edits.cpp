#include "teratron/tokenizer/jinja/values/text_edits.h"

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::jinja {

namespace {

// Between all characters and at both ends.
std::string interleaved(Workspace& workspace, std::string_view text, const Replacement& replacement) {
  TextBuilder out(workspace);
  int64_t left = replacement.most;
  for (size_t at = 0; at <= text.size();) {
    if (left-- != 0) out << replacement.with;
    if (at == text.size()) break;
    out << text.substr(at, character_bytes(text, at));
    at += character_bytes(text, at);
  }
  return out.take();
}

}  // namespace

std::string replaced(Workspace& workspace, std::string_view text, const Replacement& replacement) {
  if (replacement.old.empty()) return interleaved(workspace, text, replacement);
  TextBuilder out(workspace);
  size_t at = 0;
  for (int64_t left = replacement.most; left != 0; --left) {
    const size_t found = find_text(workspace, text, replacement.old, at);
    if (found == text.npos) break;
    out << text.substr(at, found - at) << replacement.with;
    at = found + replacement.old.size();
  }
  out << text.substr(at);
  return out.take();
}

std::string filled_text(Workspace& workspace, std::string_view text, const Filling& filling) {
  const int64_t size = count_characters(text);
  const int64_t missing = filling.width > size ? filling.width - size : 0;
  int64_t left = filling.filled == Ends::left ? missing : 0;
  if (filling.filled == Ends::both) left = missing / 2 + (missing & filling.width & 1);
  TextBuilder out(workspace);
  out.repeat(filling.filler, left);
  out << text;
  out.repeat(filling.filler, missing - left);
  return out.take();
}

std::string titled(Workspace& workspace, std::string_view text) {
  std::string result;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, character_bytes(text, at));
    const char* p = character.data();
    const bool cased = (unicode::characters()[unicode::next(p)] & unicode::python_cased) != 0;
    result += in_word ? lower_text(character) : upper_text(workspace, character);
    in_word = cased;
    at += character.size();
  }
  return result;
}

}  // namespace teratron::jinja
