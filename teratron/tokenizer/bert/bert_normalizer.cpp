#include "teratron/tokenizer/bert/bert_normalizer.h"

namespace teratron {
namespace {

bool within(uint32_t code, uint32_t first, uint32_t last) {
  return code >= first && code <= last;
}

/// Extension E begins 256 code points later in Hugging Face tokenizers.
bool is_chinese(uint32_t code, bool python) {
  return within(code, 0x4e00, 0x9fff) || within(code, 0x3400, 0x4dbf) || within(code, 0x20000, 0x2a6df) ||
         within(code, 0x2a700, 0x2b81f) || within(code, python ? 0x2b820 : 0x2b920, 0x2ceaf) ||
         within(code, 0xf900, 0xfaff) || within(code, 0x2f800, 0x2fa1f);
}

template <class Visit>
void for_each_code_point(std::string_view text, Visit&& visit) {
  const unicode::CharacterTable& table = unicode::characters();
  for (const char* p = text.data(); p < text.data() + text.size();) {
    const char* const begin = p;
    const uint32_t code = unicode::next(p);
    visit(std::string_view(begin, static_cast<size_t>(p - begin)), code, table[code]);
  }
}

NormalizedString clean_text(NormalizedView text, const BertRules& rules) {
  constexpr uint32_t kReplacement = 0xfffd;
  const uint16_t drop = rules.python ? unicode::python_control : unicode::hf_drop;
  const uint16_t whitespace = rules.python ? unicode::python_space : unicode::hf_whitespace;
  NormalizedString out(text);
  out.reserve(text.text.size() + 16);
  for_each_code_point(text.text, [&](std::string_view character, uint32_t code, uint16_t flags) {
    if (rules.clean_text && (code == 0 || code == kReplacement || (flags & drop))) return;
    const auto at = static_cast<size_t>(character.data() - text.text.data());
    const bool chinese = rules.handle_chinese_chars && code >= 0x3400 && is_chinese(code, rules.python);
    const bool space = rules.clean_text && (flags & whitespace);
    if (chinese || space) out.append(" ", text, at);
    if (!space) out.append(character, text, at);
    if (chinese) out.append(" ", text, at);
  });
  return out;
}

NormalizedString drop_marks(NormalizedView text, bool python) {
  const uint16_t mark = python ? unicode::python_mark : unicode::hf_mark;
  NormalizedString out(text);
  out.reserve(text.text.size());
  for_each_code_point(text.text, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (flags & mark) return;
    out.append(character, text, static_cast<size_t>(character.data() - text.text.data()));
  });
  return out;
}

}  // namespace

NormalizedString bert_normalize(NormalizedView text, const BertRules& rules) {
  NormalizedString out = clean_text(text, rules);
  const bool strip = rules.strip_accents.value_or(rules.lowercase);
  if (rules.lowercase && rules.python) out = normalize(out.view(), unicode::kPythonLower);
  if (strip) {
    out = normalize(out.view(), rules.python ? unicode::kPythonNfd : unicode::kNfd);
    out = drop_marks(out.view(), rules.python);
  }
  // The library strips accents first.
  if (rules.lowercase && !rules.python) out = normalize(out.view(), unicode::kLower);
  return out;
}

void split_bert_words(NormalizedView text, const BertRules& rules,
                      const std::function<void(NormalizedView word)>& word) {
  const uint16_t space = rules.python ? unicode::python_split : unicode::hf_whitespace;
  const uint16_t punctuation = rules.python ? unicode::python_punctuation : unicode::hf_punctuation;
  const char* begin = text.text.data();
  const auto flush = [&](const char* end) {
    if (end > begin) word(text.slice({begin, static_cast<size_t>(end - begin)}));
  };
  for_each_code_point(text.text, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (!(flags & (space | punctuation))) return;
    flush(character.data());
    if (!(flags & space)) word(text.slice(character));
    begin = character.data() + character.size();
  });
  flush(text.text.data() + text.text.size());
}

}  // namespace teratron
