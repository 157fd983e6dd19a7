#include "teratron/tokenizer/bert/bert_tokenizer.h"

#include "teratron/base/error.h"

namespace teratron {
namespace {

bool within(uint32_t code, uint32_t first, uint32_t last) {
  return code >= first && code <= last;
}

/// Extension E begins 256 code points later in Hugging Face tokenizers.
bool is_chinese(uint32_t code, bool head) {
  return within(code, 0x4e00, 0x9fff) || within(code, 0x3400, 0x4dbf) || within(code, 0x20000, 0x2a6df) ||
         within(code, 0x2a700, 0x2b81f) || within(code, head ? 0x2b920 : 0x2b820, 0x2ceaf) ||
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

}  // namespace

BertTokenizer::BertTokenizer(const BertOptions& options)
    : words_(options.vocab_file),
      lower_case_(options.lower_case),
      head_(options.head),
      add_special_tokens_(options.head && options.include_special_tokens),
      max_characters_per_word_(options.head ? 100 : 200) {
  const auto require = [&](const char* token) {
    const auto id = words_.id_of(token);
    if (!id) {
      throw data_error({.what = fmt::format("the vocabulary has no {}", token),
                        .where = words_.path(),
                        .fix = "pass BERT's vocab.txt, one token per line"});
    }
    return *id;
  };
  special_.cls = require("[CLS]");
  special_.sep = require("[SEP]");
  special_.pad = require("[PAD]");
  special_.mask = require("[MASK]");
  if (head_) {
    special_.bos = special_.cls;
    special_.eos = special_.eod = special_.sep;
  } else {
    special_.bos = words_.add("[BOS]");
    special_.eos = words_.add("[EOS]");
  }
  std::vector<AddedToken> added;
  for (const char* const token : {"[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]"}) {
    added.push_back({.content = token, .id = require(token), .special = true});
  }
  for (int64_t i = 0; i < options.extra_ids; ++i) {
    const std::string token = fmt::format("<extra_id_{}>", i);
    special_.additional.push_back(words_.add(token));
    added.push_back({.content = token, .id = special_.additional.back(), .special = true});
  }
  if (head_) added_ = AddedVocabulary(std::move(added));
}

void BertTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  encode_all(
      {text}, [&](int32_t id, NormalizedView) { ids.push_back(id); },
      [&](NormalizedView word) { words_.encode_word(word.text, max_characters_per_word_, ids); });
}

std::vector<TokenSpan> BertTokenizer::encode_with_offsets(std::string_view text) const {
  const NormalizedString aligned = NormalizedString::with_alignments(text);
  std::vector<TokenSpan> spans;
  const Emit token = [&](int32_t id, NormalizedView piece) {
    const Offsets offsets = piece.offsets();
    spans.push_back({id, offsets.begin, offsets.end});
  };
  encode_all(aligned.view(), token, [&](NormalizedView word) {
    std::vector<int32_t> ids;
    words_.encode_word(word.text, max_characters_per_word_, ids);
    for_each_token(words_, ids, word, token);
  });
  return spans;
}

void BertTokenizer::encode_all(NormalizedView text, const Emit& token, const EmitWord& word) const {
  if (add_special_tokens_) token(*special_.cls, {});
  for (const auto& part : added_.split(text.text)) {
    if (part.id >= 0) {
      token(part.id, text.slice(part.text));
    } else {
      pre_tokenize(text.slice(part.text), word);
    }
  }
  if (add_special_tokens_) token(*special_.sep, {});
}

NormalizedString BertTokenizer::clean_text(NormalizedView text) const {
  constexpr uint32_t kReplacement = 0xfffd;
  const uint16_t drop = head_ ? unicode::hf_drop : unicode::python_control;
  const uint16_t space = head_ ? unicode::hf_whitespace : unicode::python_space;
  NormalizedString out(text);
  out.reserve(text.text.size() + 16);
  for_each_code_point(text.text, [&](std::string_view character, uint32_t code, uint16_t flags) {
    if (code == 0 || code == kReplacement || (flags & drop)) return;
    const auto at = static_cast<size_t>(character.data() - text.text.data());
    const bool chinese = code >= 0x3400 && is_chinese(code, head_);
    if (chinese || (flags & space)) out.append(" ", text, at);
    if (!(flags & space)) out.append(character, text, at);
    if (chinese) out.append(" ", text, at);
  });
  return out;
}

NormalizedString BertTokenizer::lower_and_strip_accents(NormalizedView text) const {
  const uint16_t mark = head_ ? unicode::hf_mark : unicode::python_mark;
  const NormalizedString decomposed =
      head_ ? normalize(text, unicode::kNfd)
            : normalize(normalize(text, unicode::kPythonLower).view(), unicode::kPythonNfd);
  const NormalizedView view = decomposed.view();
  NormalizedString out(text);
  out.reserve(view.text.size());
  for_each_code_point(view.text, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (flags & mark) return;
    out.append(character, view, static_cast<size_t>(character.data() - view.text.data()));
  });
  return head_ ? normalize(out.view(), unicode::kLower) : out;  // the library strips accents first
}

void BertTokenizer::pre_tokenize(NormalizedView text, const EmitWord& word) const {
  const NormalizedString cleaned = clean_text(text);
  const NormalizedView view = cleaned.view();
  if (!lower_case_) return split_words(view, word);
  if (head_) return split_words(lower_and_strip_accents(view).view(), word);
  // Word by word: final sigma depends on the end of the word.
  const char* begin = view.text.data();
  const auto flush = [&](const char* end) {
    if (end > begin)
      split_words(lower_and_strip_accents(view.slice({begin, static_cast<size_t>(end - begin)})).view(),
                  word);
  };
  for_each_code_point(view.text, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (!(flags & unicode::python_split)) return;
    flush(character.data());
    begin = character.data() + character.size();
  });
  flush(view.text.data() + view.text.size());
}

void BertTokenizer::split_words(NormalizedView text, const EmitWord& word) const {
  const uint16_t space = head_ ? unicode::hf_whitespace : unicode::python_split;
  const uint16_t punctuation = head_ ? unicode::hf_punctuation : unicode::python_punctuation;
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

std::vector<bool> BertTokenizer::continuation_pieces() const {
  std::vector<bool> continues;
  for (int32_t id = 0; id < vocab_size(); ++id) continues.push_back(words_.token_of(id).starts_with("##"));
  return continues;
}

std::string BertTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id == special_.pad || id == special_.cls) continue;
    const std::string_view token = words_.token_of(id);
    if (token.starts_with("##")) {
      text += token.substr(2);
    } else {
      if (!text.empty()) text += ' ';
      text += token;
    }
  }
  return text;
}

}  // namespace teratron
