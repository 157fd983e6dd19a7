// The tokenizer of words with which Megatron-LM's samples were recorded.
#pragma once

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/tasks/text/python_text.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron::testing {

class WordTokenizer : public Tokenizer {
 public:
  /// `file` has word_ids and special.
  explicit WordTokenizer(const nlohmann::json& file) {
    for (const auto& [word, id] : file.at("word_ids").items()) ids_.emplace(word, id.get<int32_t>());
    for (const auto& [word, id] : ids_) words_.emplace(id, word);
    const nlohmann::json& special = file.at("special");
    special_.cls = special.at("cls");
    special_.sep = special.at("sep");
    special_.pad = special.at("pad");
    special_.eod = special.at("eod");
  }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const std::string_view word : words_of(text)) ids.push_back(ids_.at(std::string(word)));
  }
  std::vector<TokenSpan> encode_with_offsets(std::string_view) const override { return {}; }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += (text.empty() ? "" : " ") + words_.at(id);
    return text;
  }
  int64_t vocab_size() const override { return 64; }
  const SpecialTokens& special() const override { return special_; }

 private:
  std::map<std::string, int32_t> ids_;
  std::map<int32_t, std::string> words_;
  SpecialTokens special_;
};

}  // namespace teratron::testing
