#include "teratron/tokenizer/bert/bert_tokenizer.h"

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
      around_(options.head && options.include_special_tokens),
      longest_word_(options.head ? kLongestWordHead : kLongestWord) {
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
  encode_all(
      {text}, [&](int32_t id, AlignedView) { ids.push_back(id); },
      [&](AlignedView word) { words_.encode_word(word.text, longest_word_, ids); });
}

std::vector<TokenSpan> BertTokenizer::encode_with_offsets(std::string_view text) const {
  const AlignedText tracked = AlignedText::track(text);
  std::vector<TokenSpan> spans;
  const Emit token = [&](int32_t id, AlignedView piece) {
    const Characters characters = piece.characters();
    spans.push_back({id, characters.begin, characters.end});
  };
  encode_all(tracked.view(), token, [&](AlignedView word) {
    std::vector<int32_t> ids;
    words_.encode_word(word.text, longest_word_, ids);
    emit_pieces(words_, ids, word, token);
  });
  return spans;
}

void BertTokenizer::encode_all(AlignedView text, const Emit& token, const EmitWord& word) const {
  if (around_) token(*special_.cls, {});
  for (const auto& part : added_.split(text.text)) {
    if (part.id >= 0) {
      token(part.id, text.part(part.text));
    } else {
      cut(text.part(part.text), word);
    }
  }
  if (around_) token(*special_.sep, {});
}

AlignedText BertTokenizer::clean(AlignedView text) const {
  constexpr uint32_t kReplacement = 0xfffd;
  const uint16_t drop = head_ ? unicode::hf_drop : unicode::python_control;
  const uint16_t blank = head_ ? unicode::hf_white : unicode::python_blank;
  AlignedText out(text);
  out.reserve(text.text.size() + 16);
  each_character(text.text, [&](std::string_view character, uint32_t code, uint16_t flags) {
    if (code == 0 || code == kReplacement || (flags & drop)) return;
    const auto at = static_cast<size_t>(character.data() - text.text.data());
    const bool chinese = code >= 0x3400 && is_chinese(code, head_);
    if (chinese || (flags & blank)) out.append(" ", text, at);
    if (!(flags & blank)) out.append(character, text, at);
    if (chinese) out.append(" ", text, at);
  });
  return out;
}

AlignedText BertTokenizer::fold_case(AlignedView text) const {
  const uint16_t mark = head_ ? unicode::hf_mark : unicode::python_mark;
  const AlignedText decomposed =
      head_ ? rewrite(text, unicode::kNfd)
            : rewrite(rewrite(text, unicode::kPythonLower).view(), unicode::kPythonNfd);
  const AlignedView view = decomposed.view();
  AlignedText out(text);
  out.reserve(view.text.size());
  each_character(view.text, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (flags & mark) return;
    out.append(character, view, static_cast<size_t>(character.data() - view.text.data()));
  });
  return head_ ? rewrite(out.view(), unicode::kLower) : out;  // the library drops accents first
}

void BertTokenizer::cut(AlignedView text, const EmitWord& word) const {
  const AlignedText cleaned = clean(text);
  const AlignedView view = cleaned.view();
  if (!lower_case_) return cut_words(view, word);
  if (head_) return cut_words(fold_case(view).view(), word);
  // Word by word: whether a capital sigma is the last letter depends on where the word ends.
  const char* begin = view.text.data();
  const auto flush = [&](const char* end) {
    if (end > begin) cut_words(fold_case(view.part({begin, static_cast<size_t>(end - begin)})).view(), word);
  };
  each_character(view.text, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (!(flags & unicode::python_split)) return;
    flush(character.data());
    begin = character.data() + character.size();
  });
  flush(view.text.data() + view.text.size());
}

void BertTokenizer::cut_words(AlignedView text, const EmitWord& word) const {
  const uint16_t blank = head_ ? unicode::hf_white : unicode::python_split;
  const uint16_t punctuation = head_ ? unicode::hf_punctuation : unicode::python_punctuation;
  const char* begin = text.text.data();
  const auto flush = [&](const char* end) {
    if (end > begin) word(text.part({begin, static_cast<size_t>(end - begin)}));
  };
  each_character(text.text, [&](std::string_view character, uint32_t, uint16_t flags) {
    if (!(flags & (blank | punctuation))) return;
    flush(character.data());
    if (!(flags & blank)) word(text.part(character));
    begin = character.data() + character.size();
  });
  flush(text.text.data() + text.text.size());
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
