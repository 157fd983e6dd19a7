#include "teratron/tokenizer/bert/bert_vocab.h"

#include <array>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/tokenizer/bert/wordpiece_json.h"
#include "teratron/tokenizer/text/text_file.h"

namespace teratron {
namespace {

constexpr std::array kRequired = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};

/// Python's str.strip(), which the reference applies to each line.
std::string_view strip(std::string_view text) {
  const unicode::CharacterTable& table = unicode::characters();
  const char* begin = text.data();
  const char* end = begin + text.size();
  while (begin < end) {
    const char* after = begin;
    if (!(table[unicode::next(after)] & unicode::python_split)) break;
    begin = after;
  }
  while (end > begin) {
    const char* before = end;
    if (!(table[unicode::previous(begin, before)] & unicode::python_split)) break;
    end = before;
  }
  return {begin, static_cast<size_t>(end - begin)};
}

class VocabFile {
 public:
  explicit VocabFile(const std::string& path) {
    vocabulary_.where = path;
    const std::string text = read_text_file(path);
    for (const std::string_view line : split_lines(text)) {
      const auto id = static_cast<int32_t>(vocabulary_.tokens.size());
      ids_.insert_or_assign(vocabulary_.tokens.emplace_back(strip(line), id).first, id);
    }
  }

  int32_t require(const char* token) const {
    const auto found = ids_.find(token);
    if (found != ids_.end()) return found->second;
    throw data_error({.what = fmt::format("the vocabulary has no {}", token),
                      .where = vocabulary_.where,
                      .fix = "pass BERT's vocab.txt, one token per line"});
  }
  /// Id of a token, which is added if missing.
  int32_t add(const std::string& token) {
    const auto [found, is_new] = ids_.emplace(token, static_cast<int32_t>(ids_.size()));
    if (is_new) vocabulary_.tokens.emplace_back(token, found->second);
    return found->second;
  }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  WordPieceVocabulary take() { return std::move(vocabulary_); }

 private:
  WordPieceVocabulary vocabulary_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace

WordPieceConfig read_bert_vocab(const BertOptions& options) {
  VocabFile file(options.vocab_file);
  WordPieceConfig config{.max_characters = options.head ? size_t{100} : size_t{200},
                         .rules = {.python = !options.head, .lowercase = options.lower_case}};
  std::vector<AddedToken> added;
  for (const char* const token : kRequired)
    added.push_back({.content = token, .id = file.require(token), .special = true});
  SpecialTokens& special = config.special;
  special.cls = file.require("[CLS]");
  special.sep = file.require("[SEP]");
  special.pad = file.require("[PAD]");
  special.mask = file.require("[MASK]");
  if (options.head) {
    special.bos = special.cls;
    special.eos = special.eod = special.sep;
  } else {
    special.bos = file.add("[BOS]");
    special.eos = file.add("[EOS]");
  }
  for (int64_t i = 0; i < options.extra_ids; ++i) {
    const std::string token = fmt::format("<extra_id_{}>", i);
    special.additional.push_back(file.add(token));
    added.push_back({.content = token, .id = special.additional.back(), .special = true});
  }
  config.vocab_size = file.size();
  config.vocabulary = file.take();
  if (options.head) config.added = AddedVocabulary(std::move(added));
  if (options.head && options.include_special_tokens) {
    config.prefix = {*special.cls};
    config.suffix = {*special.sep};
  }
  return config;
}

std::map<std::string, std::string> hf_files_of_bert(const BertOptions& options) {
  const WordPieceConfig config = read_bert_vocab(options);
  std::vector<std::string> special(kRequired.begin(), kRequired.end());
  // Words never contain "<": up to 0.7, the sentinels were not found in the text.
  for (int64_t i = 0; options.head && i < options.extra_ids; ++i)
    special.push_back(fmt::format("<extra_id_{}>", i));
  nlohmann::ordered_json names = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                  {"do_lower_case", options.lower_case},
                                  {"clean_up_tokenization_spaces", true},
                                  {"model_input_names", {"input_ids", "token_type_ids", "attention_mask"}},
                                  {"pad_token", "[PAD]"},
                                  {"unk_token", "[UNK]"},
                                  {"cls_token", "[CLS]"},
                                  {"sep_token", "[SEP]"},
                                  {"mask_token", "[MASK]"}};
  if (special.size() > kRequired.size())
    names["additional_special_tokens"] = std::vector(special.begin() + kRequired.size(), special.end());
  return {{"tokenizer.json", wordpiece_json(config, special)},
          {"tokenizer_config.json", names.dump(2) + "\n"}};
}

}  // namespace teratron
