#include "teratron/tokenizer/bpe/bpe_json.h"

#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/vocab_files.h"

namespace teratron {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

class Reader {
 public:
  explicit Reader(const JsonFields& json) : json_(json) {}
  BpeJson read(object top);

 private:
  void read_model(object model);
  void read_merges(array merges);
  void read_normalizer(object normalizer);
  void read_pre_tokenizer(object step);
  void read_split(object step);

  const JsonFields& json_;
  BpeJson result_;
  bool byte_level_ = false;
};

void Reader::read_merges(array merges) {
  size_t number = 0;
  for (const element merge : merges) {
    ++number;
    array pair;
    if (merge.get(pair)) {
      result_.model.merges.push_back(
          parse_merge(json_.string(merge, "merges"), fmt::format("{}: merge {}", json_.path(), number)));
      continue;
    }
    if (pair.size() != 2) json_.reject(fmt::format("merge {} is not a pair", number));
    result_.model.merges.emplace_back(json_.string(pair.at(0).value(), "merges"),
                                      json_.string(pair.at(1).value(), "merges"));
  }
}

void Reader::read_model(object model) {
  for (const char* const affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto value = JsonFields::field(model, affix); value && !json_.string(*value, affix).empty())
      json_.unsupported("BPE option", affix);
  }
  if (const auto dropout = JsonFields::field(model, "dropout")) {
    double rate = 0;
    if (dropout->get(rate) || rate != 0) json_.unsupported("BPE option", "dropout");
  }
  if (json_.boolean(model, "byte_fallback", false)) json_.unsupported("BPE option", "byte_fallback");
  result_.model.where = json_.path();
  result_.model.ignore_merges = json_.boolean(model, "ignore_merges", false);
  result_.model.fuse_unk = json_.boolean(model, "fuse_unk", false);
  if (const auto unk = JsonFields::field(model, "unk_token"))
    result_.model.unk_token = json_.string(*unk, "unk_token");
  for (const auto& [token, value] : json_.large_object(json_.require(model, "vocab"), "vocab")) {
    result_.model.vocab.emplace_back(std::string(token), json_.id(value, token));
  }
  read_merges(json_.require_array(model, "merges"));
}

void Reader::read_normalizer(object normalizer) {
  const std::string type = json_.require_string(normalizer, "type");
  if (type == "Sequence") {
    for (const element part : json_.require_array(normalizer, "normalizers"))
      read_normalizer(json_.object(part, "normalizers"));
  } else if (type == "NFC") {
    result_.normalizers.push_back(&unicode::kNfc);
  } else if (type == "NFD") {
    result_.normalizers.push_back(&unicode::kNfd);
  } else if (type == "Lowercase") {
    result_.normalizers.push_back(&unicode::kLower);
  } else {
    json_.unsupported("normalizer", type);
  }
}

void Reader::read_split(object step) {
  const object pattern = json_.object(json_.require(step, "pattern"), "pattern");
  const auto behavior = split_behavior(json_.require_string(step, "behavior"));
  if (!behavior) json_.unsupported("behavior", json_.require_string(step, "behavior"));
  PreTokenizerStep split{.behavior = *behavior, .invert = json_.boolean(step, "invert", false)};
  if (const auto regex = JsonFields::field(pattern, "Regex")) {
    const std::string expression = json_.string(*regex, "Regex");
    // The known patterns match the whole text, so isolating matches and removing the gaps are the same.
    const bool keeps_matches = split.behavior == SplitBehavior::isolated ||
                               (split.behavior == SplitBehavior::removed && split.invert);
    if (keeps_matches) split.pattern = known_pattern(expression);
    if (!split.pattern) split.regex = std::make_shared<Regex>(expression, json_.path());
  } else {
    split.regex =
        std::make_shared<Regex>(Regex::literal(json_.require_string(pattern, "String"), json_.path()));
  }
  result_.steps.push_back(std::move(split));
}

void Reader::read_pre_tokenizer(object step) {
  const std::string type = json_.require_string(step, "type");
  if (byte_level_) json_.unsupported("pre-tokenizer after ByteLevel", type);
  if (type == "Sequence") {
    for (const element part : json_.require_array(step, "pretokenizers")) {
      read_pre_tokenizer(json_.object(part, "pretokenizers"));
    }
  } else if (type == "Split") {
    read_split(step);
  } else if (type == "Digits") {
    const bool individual = json_.boolean(step, "individual_digits", false);
    result_.steps.push_back({.regex = std::make_shared<Regex>(R"(\p{N})", json_.path()),
                             .behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    PreTokenizerStep last{.add_prefix_space = json_.boolean(step, "add_prefix_space", true)};
    if (json_.boolean(step, "use_regex", true)) last.pattern = SplitPattern::gpt2;
    if (last.pattern || last.add_prefix_space) result_.steps.push_back(last);
  } else {
    json_.unsupported("pre-tokenizer", type);
  }
}

BpeJson Reader::read(object top) {
  read_model(json_.object(json_.require(top, "model"), "model"));
  result_.added = read_added_tokens(json_, top);
  if (const auto part = JsonFields::field(top, "normalizer"))
    read_normalizer(json_.object(*part, "normalizer"));
  if (const auto part = JsonFields::field(top, "pre_tokenizer"))
    read_pre_tokenizer(json_.object(*part, "pre_tokenizer"));
  result_.post_processor = read_post_processor(json_, top);
  return std::move(result_);
}

}  // namespace

BpeJson read_bpe_json(const JsonFields& json, JsonFields::Object top) {
  return Reader(json).read(top);
}

}  // namespace teratron
