#include "teratron/tokenizer/bpe/tokenizer_json.h"

#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include <simdjson.h>

#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/vocab_files.h"
#include "teratron/tokenizer/json_problem.h"

namespace teratron {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)), json_(read_text_file(path_)) {}
  TokenizerJson read();

 private:
  [[noreturn]] void reject(std::string what, std::string fix = "use the tokenizer's original file") const {
    throw data_error({.what = std::move(what), .where = path_, .fix = std::move(fix)});
  }
  [[noreturn]] void unsupported(std::string_view part, std::string_view type) const {
    reject(fmt::format("the {} '{}' is not supported", part, printable(type)),
           "use a byte-level BPE tokenizer (GPT-2, Llama 3, Qwen)");
  }

  object as_object(element value, std::string_view name) const {
    object result;
    if (value.get(result)) reject(fmt::format("'{}' is not an object", name));
    std::unordered_set<std::string_view> keys;
    if (name == "vocab") return result;  // BpeModel rejects duplicates
    for (const auto& [key, ignored] : result) {
      if (!keys.insert(key).second)
        reject(fmt::format("the key '{}' appears twice in '{}'", printable(key), name));
    }
    return result;
  }
  /// nullopt if missing or null.
  static std::optional<element> field(object from, std::string_view key) {
    element value;
    if (from.at_key(key).get(value) || value.is_null()) return std::nullopt;
    return value;
  }
  element require(object from, std::string_view key) const {
    const auto value = field(from, key);
    if (!value) reject(fmt::format("'{}' is missing", key));
    return *value;
  }
  array require_array(object from, std::string_view key) const {
    array result;
    if (require(from, key).get(result)) reject(fmt::format("'{}' is not an array", key));
    return result;
  }
  std::string string(element value, std::string_view name) const {
    std::string_view result;
    if (value.get(result)) reject(fmt::format("'{}' is not a string", name));
    return std::string(result);
  }
  std::string require_string(object from, std::string_view key) const {
    return string(require(from, key), key);
  }
  bool boolean(object from, std::string_view key, bool fallback) const {
    const auto value = field(from, key);
    bool result = fallback;
    if (value && value->get(result)) reject(fmt::format("'{}' is not a boolean", key));
    return result;
  }
  int32_t id(element value, std::string_view name) const {
    int64_t result = -1;
    if (value.get(result) || result < 0 || result > INT32_MAX)
      reject(fmt::format("'{}' is not an id", printable(name)));
    return static_cast<int32_t>(result);
  }

  void read_model(object model);
  void read_merges(array merges);
  void read_added(array tokens);
  void read_normalizer(object normalizer);
  void read_pre_tokenizer(object step);
  void read_split(object step);
  void read_post_processor(object processor);
  void read_template(object processor);

  std::string path_;
  simdjson::padded_string json_;
  TokenizerJson result_;
  bool byte_level_ = false;
};

void Reader::read_merges(array merges) {
  size_t number = 0;
  for (const element merge : merges) {
    ++number;
    array pair;
    if (merge.get(pair)) {
      result_.model.merges.push_back(
          parse_merge(string(merge, "merges"), fmt::format("{}: merge {}", path_, number)));
      continue;
    }
    if (pair.size() != 2) reject(fmt::format("merge {} is not a pair", number));
    result_.model.merges.emplace_back(string(pair.at(0).value(), "merges"),
                                      string(pair.at(1).value(), "merges"));
  }
}

void Reader::read_model(object model) {
  if (const auto type = field(model, "type"); type && string(*type, "type") != "BPE") {
    unsupported("model", string(*type, "type"));
  }
  for (const char* const affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto value = field(model, affix); value && !string(*value, affix).empty())
      unsupported("BPE option", affix);
  }
  if (const auto dropout = field(model, "dropout")) {
    double rate = 0;
    if (dropout->get(rate) || rate != 0) unsupported("BPE option", "dropout");
  }
  if (boolean(model, "byte_fallback", false)) unsupported("BPE option", "byte_fallback");
  result_.model.where = path_;
  result_.model.ignore_merges = boolean(model, "ignore_merges", false);
  result_.model.fuse_unk = boolean(model, "fuse_unk", false);
  if (const auto unk = field(model, "unk_token")) result_.model.unk_token = string(*unk, "unk_token");
  for (const auto& [token, value] : as_object(require(model, "vocab"), "vocab")) {
    result_.model.vocab.emplace_back(std::string(token), id(value, token));
  }
  read_merges(require_array(model, "merges"));
}

void Reader::read_added(array tokens) {
  for (const element item : tokens) {
    const object token = as_object(item, "added_tokens");
    AddedToken added{.content = require_string(token, "content"),
                     .id = id(require(token, "id"), "id"),
                     .single_word = boolean(token, "single_word", false),
                     .lstrip = boolean(token, "lstrip", false),
                     .rstrip = boolean(token, "rstrip", false),
                     .special = boolean(token, "special", false)};
    added.normalized = boolean(token, "normalized", !added.special);
    result_.added.push_back(std::move(added));
  }
}

void Reader::read_normalizer(object normalizer) {
  const std::string type = require_string(normalizer, "type");
  if (type == "Sequence") {
    for (const element part : require_array(normalizer, "normalizers"))
      read_normalizer(as_object(part, "normalizers"));
  } else if (type == "NFC") {
    result_.normalizers.push_back(&unicode::kNfc);
  } else if (type == "NFD") {
    result_.normalizers.push_back(&unicode::kNfd);
  } else if (type == "Lowercase") {
    result_.normalizers.push_back(&unicode::kLower);
  } else {
    unsupported("normalizer", type);
  }
}

void Reader::read_split(object step) {
  const object pattern = as_object(require(step, "pattern"), "pattern");
  const std::unordered_map<std::string, SplitBehavior> behaviors = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const auto behavior = behaviors.find(require_string(step, "behavior"));
  if (behavior == behaviors.end()) unsupported("behavior", require_string(step, "behavior"));
  PreTokenizerStep split{.behavior = behavior->second, .invert = boolean(step, "invert", false)};
  if (const auto regex = field(pattern, "Regex")) {
    const std::string expression = string(*regex, "Regex");
    // The known patterns match the whole text, so isolating matches and removing the gaps are the same.
    const bool keeps_matches = split.behavior == SplitBehavior::isolated ||
                               (split.behavior == SplitBehavior::removed && split.invert);
    if (keeps_matches) split.pattern = known_pattern(expression);
    if (!split.pattern) split.regex = std::make_shared<Regex>(expression, path_);
  } else {
    split.regex = std::make_shared<Regex>(Regex::literal(require_string(pattern, "String"), path_));
  }
  result_.steps.push_back(std::move(split));
}

void Reader::read_pre_tokenizer(object step) {
  const std::string type = require_string(step, "type");
  if (byte_level_) unsupported("pre-tokenizer after ByteLevel", type);
  if (type == "Sequence") {
    for (const element part : require_array(step, "pretokenizers")) {
      read_pre_tokenizer(as_object(part, "pretokenizers"));
    }
  } else if (type == "Split") {
    read_split(step);
  } else if (type == "Digits") {
    const bool individual = boolean(step, "individual_digits", false);
    result_.steps.push_back({.regex = std::make_shared<Regex>(R"(\p{N})", path_),
                             .behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    PreTokenizerStep last{.add_prefix_space = boolean(step, "add_prefix_space", true)};
    if (boolean(step, "use_regex", true)) last.pattern = SplitPattern::gpt2;
    if (last.pattern || last.add_prefix_space) result_.steps.push_back(last);
  } else {
    unsupported("pre-tokenizer", type);
  }
}

void Reader::read_template(object processor) {
  std::unordered_map<std::string, std::vector<int32_t>> special;
  if (const auto tokens = field(processor, "special_tokens")) {
    for (const auto& [name, value] : as_object(*tokens, "special_tokens")) {
      for (const element item : require_array(as_object(value, "special_tokens"), "ids")) {
        special[std::string(name)].push_back(id(item, name));
      }
    }
  }
  bool after_text = false;
  std::vector<int32_t> before, after;
  for (const element item : require_array(processor, "single")) {
    const object piece = as_object(item, "single");
    const auto token = field(piece, "SpecialToken");
    if (!token) {
      if (!field(piece, "Sequence") || after_text)
        reject("'single' of the post-processor must contain the text once");
      after_text = true;
      continue;
    }
    const std::string name = require_string(as_object(*token, "SpecialToken"), "id");
    const auto ids = special.find(name);
    if (ids == special.end())
      reject(fmt::format("the post-processor's token '{}' has no ids", printable(name)));
    auto& side = after_text ? after : before;
    side.insert(side.end(), ids->second.begin(), ids->second.end());
  }
  if (!after_text) reject("'single' of the post-processor does not contain the text");
  result_.prefix.insert(result_.prefix.begin(), before.begin(), before.end());
  result_.suffix.insert(result_.suffix.end(), after.begin(), after.end());
}

void Reader::read_post_processor(object processor) {
  const std::string type = require_string(processor, "type");
  const bool trims = type == "ByteLevel" || type == "RobertaProcessing";
  if (trims && boolean(processor, "trim_offsets", true))
    result_.trim = TrimOffsets{boolean(processor, "add_prefix_space", true)};
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const element part : require_array(processor, "processors"))
      read_post_processor(as_object(part, "processors"));
  } else if (type == "TemplateProcessing") {
    read_template(processor);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const auto second = [&](const char* key) {
      const array pair = require_array(processor, key);
      if (pair.size() != 2) reject(fmt::format("'{}' is not a pair of token and id", key));
      return id(pair.at(1).value(), key);
    };
    result_.prefix.insert(result_.prefix.begin(), second("cls"));
    result_.suffix.push_back(second("sep"));
  } else {
    unsupported("post-processor", type);
  }
}

TokenizerJson Reader::read() {
  simdjson::dom::parser parser;
  element root;
  if (const auto error = parser.parse(json_).get(root)) {
    reject(fmt::format("not valid JSON ({})", json_problem(error)));
  }
  const object top = as_object(root, "tokenizer.json");
  read_model(as_object(require(top, "model"), "model"));
  if (const auto added = field(top, "added_tokens")) read_added(require_array(top, "added_tokens"));
  if (const auto part = field(top, "normalizer")) read_normalizer(as_object(*part, "normalizer"));
  if (const auto part = field(top, "pre_tokenizer")) read_pre_tokenizer(as_object(*part, "pre_tokenizer"));
  if (!byte_level_) unsupported("tokenizer", "without a ByteLevel pre-tokenizer");
  if (const auto part = field(top, "post_processor")) read_post_processor(as_object(*part, "post_processor"));
  return std::move(result_);
}

void read_special_tokens(const std::string& path, SpecialTokensMap& names) {
  if (!std::filesystem::exists(path)) return;
  const simdjson::padded_string json(read_text_file(path));
  simdjson::dom::parser parser;
  object top;
  if (const auto error = parser.parse(json).get(top)) {
    throw data_error({.what = fmt::format("not a JSON object ({})", json_problem(error)), .where = path});
  }
  // A token is a string, or an object with "content".
  const auto content = [](element value, std::string& out) {
    std::string_view found;
    object inside;
    if (!value.get(inside) && inside.at_key("content").get(value)) return;
    if (!value.get(found)) out = found;
  };
  const std::pair<const char*, std::string*> keys[] = {
      {"bos_token", &names.bos}, {"eos_token", &names.eos}, {"pad_token", &names.pad},
      {"cls_token", &names.cls}, {"sep_token", &names.sep}, {"mask_token", &names.mask}};
  for (const auto& [key, name] : keys) {
    element value;
    if (!top.at_key(key).get(value)) content(value, *name);
  }
  array additional;
  if (!top.at_key("additional_special_tokens").get(additional)) {
    names.additional.clear();
    for (const element item : additional) content(item, names.additional.emplace_back());
  }
}

}  // namespace

TokenizerJson read_tokenizer_json(const std::string& path) {
  return Reader(path).read();
}

SpecialTokensMap read_special_tokens_map(const std::string& directory) {
  SpecialTokensMap names;
  read_special_tokens(directory + "/special_tokens_map.json", names);
  read_special_tokens(directory + "/tokenizer_config.json", names);
  return names;
}

}  // namespace teratron
