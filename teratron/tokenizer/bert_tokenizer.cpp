#include "teratron/tokenizer/bert_tokenizer.h"

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr size_t kLongestWord = 200;
constexpr size_t kLongestWordHead = 100;

bool within(uint32_t code, uint32_t first, uint32_t last) {
  return code >= first && code <= last;
}

/// Chinese characters of both versions; Hugging Face's last extension begins 256 code points later.
bool is_chinese(uint32_t code, bool head) {
  return within(code, 0x4e00, 0x9fff) || within(code, 0x3400, 0x4dbf) || within(code, 0x20000, 0x2a6df) ||
         within(code, 0x2a700, 0x2b81f) || within(code, head ? 0x2b920 : 0x2b820, 0x2ceaf) ||
         within(code, 0xf900, 0xfaff) || within(code, 0x2f800, 0x2fa1f);
}

template <class Visit>
void each_character(std::string_view text, Visit&& visit) {
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
      around_(options.head && options.include_special_tokens) {
  const auto need = [&](const char* token) {
    const auto id = words_.id_of(token);
    if (!id) {
      throw data_error({.what = fmt::format("the vocabulary has no {}", token),
                        .where = words_.path(),
                        .fix = "give BERT's vocab.txt, one token a line"});
    }
    return *id;
  };
  special_.cls = need("[CLS]");
  special_.sep = need("[SEP]");
  special_.pad = need("[PAD]");
  special_.mask = need("[MASK]");
  if (head_) {
    special_.bos = special_.cls;
    special_.eos = special_.eod = special_.sep;
  } else {
    special_.bos = words_.add("[BOS]");
    special_.eos = words_.add("[EOS]");
  }
  std::vector<AddedToken> added;
  for (const char* const token : {"[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]"}) {
    added.push_back({.content = token, .id = need(token), .special = true});
  }
  for (int64_t i = 0; i < options.extra_ids; ++i) {
    const std::string token = fmt::format("<extra_id_{}>", i);
    special_.additional.push_back(words_.add(token));
    added.push_back({.content = token, .id = special_.additional.back(), .special = true});
  }
  if (head_) added_ = AddedTokenMatcher(std::move(added));
}

void BertTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  if (!head_) return encode_plain(text, ids);
  if (around_) ids.push_back(*special_.cls);
  for (const auto& part : added_.split(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      encode_plain(part.text, ids);
    }
  }
  if (around_) ids.push_back(*special_.sep);
}

std::string BertTokenizer::clean(std::string_view text) const {
  constexpr uint32_t kReplacement = 0xfffd;
  const uint16_t drop = head_ ? unicode::hf_drop : unicode::python_control;
  const uint16_t blank = head_ ? unicode::hf_white : unicode::python_blank;
  std::string out;
  out.reserve(text.size() + 16);
  each_character(text, [&](std::string_view character, uint32_t code, uint16_t flags) {
    if (code == 0 || code == kReplacement || (flags & drop)) return;
    if (flags & blank) {
      out += ' ';
    } else if (code >= 0x3400 && is_chinese(code, head_)) {
      out.append(" ").append(character).append(" ");
    } else {
      out += character;
    }
  });
  return out;
}

std::string BertTokenizer::fold_case(std::string_view word) const {
  const uint16_t mark = head_ ? unicode::hf_mark : unicode::python_mark;
  const std::string decomposed =
      head_ ? unicode::nfd(word) : unicode::python_nfd(unicode::python_lower(word));
  std::string out;
  out.reserve(decomposed.size());
  each_character(decomposed, [&](std::string_view character, uint32_t code, uint16_t flags) {
    if (flags & mark) return;
    if (head_) {
      unicode::append_lower(code, out);  // the library drops accents first
    } else {
      out += character;
    }
  });
  return out;
}

void BertTokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  const std::string cleaned = clean(text);
  if (!lower_case_) return encode_words(cleaned, ids);
  if (head_) return encode_words(fold_case(cleaned), ids);
  // Word by word: whether a capital sigma is the last letter depends on where the word ends.
  const char* begin = cleaned.data();
  const auto flush = [&](const char* end) {
    if (end > begin) encode_words(fold_case({begin, static_cast<size_t>(end - begin)}), ids);
  };
  each_character(cleaned, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (!(flags & unicode::python_split)) return;
    flush(character.data());
    begin = character.data() + character.size();
  });
  flush(cleaned.data() + cleaned.size());
}

void BertTokenizer::encode_words(std::string_view text, std::vector<int32_t>& ids) const {
  const uint16_t blank = head_ ? unicode::hf_white : unicode::python_split;
  const uint16_t punctuation = head_ ? unicode::hf_punctuation : unicode::python_punctuation;
  const size_t longest = head_ ? kLongestWordHead : kLongestWord;
  const char* begin = text.data();
  const auto flush = [&](const char* end) {
    if (end > begin) words_.encode_word({begin, static_cast<size_t>(end - begin)}, longest, ids);
  };
  each_character(text, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (!(flags & (blank | punctuation))) return;
    flush(character.data());
    if (!(flags & blank)) words_.encode_word(character, longest, ids);
    begin = character.data() + character.size();
  });
  flush(text.data() + text.size());
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
