#include "teratron/tokenizer/hf_spec.h"

#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include <simdjson.h>

#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/vocab_files.h"

namespace teratron {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

/// One tokenizer.json being read; `path_` is for messages.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)), json_(read_text_file(path_)) {}
  HuggingFaceSpec read();

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
    if (name == "vocab") return result;  // its keys are checked when they are put into the model
    for (const auto& [key, ignored] : result) {
      if (!keys.insert(key).second)
        reject(fmt::format("the key '{}' appears twice in '{}'", printable(key), name));
    }
    return result;
  }
  /// A field that may be missing or null.
  static std::optional<element> field(object from, std::string_view key) {
    element value;
    if (from.at_key(key).get(value) || value.is_null()) return std::nullopt;
    return value;
  }
  element need(object from, std::string_view key) const {
    const auto value = field(from, key);
    if (!value) reject(fmt::format("'{}' is missing", key));
    return *value;
  }
  array need_array(object from, std::string_view key) const {
    array result;
    if (need(from, key).get(result)) reject(fmt::format("'{}' is not a list", key));
    return result;
  }
  std::string text(element value, std::string_view name) const {
    std::string_view result;
    if (value.get(result)) reject(fmt::format("'{}' is not a text", name));
    return std::string(result);
  }
  std::string need_text(object from, std::string_view key) const { return text(need(from, key), key); }
  bool flag(object from, std::string_view key, bool fallback) const {
    const auto value = field(from, key);
    bool result = fallback;
    if (value && value->get(result)) reject(fmt::format("'{}' is not true or false", key));
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
  HuggingFaceSpec spec_;
  bool byte_level_ = false;
};

void Reader::read_merges(array merges) {
  size_t number = 0;
  for (const element merge : merges) {
    ++number;
    array pair;
    if (merge.get(pair)) {
      spec_.model.merges.push_back(
          parse_merge(text(merge, "merges"), fmt::format("{}: merge {}", path_, number)));
      continue;
    }
    if (pair.size() != 2) reject(fmt::format("merge {} is not a pair", number));
    spec_.model.merges.emplace_back(text(pair.at(0).value(), "merges"), text(pair.at(1).value(), "merges"));
  }
}

void Reader::read_model(object model) {
  if (const auto type = field(model, "type"); type && text(*type, "type") != "BPE") {
    unsupported("model", text(*type, "type"));
  }
  for (const char* const affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto value = field(model, affix); value && !text(*value, affix).empty())
      unsupported("BPE option", affix);
  }
  if (const auto dropout = field(model, "dropout")) {
    double rate = 0;
    if (dropout->get(rate) || rate != 0) unsupported("BPE option", "dropout");
  }
  if (flag(model, "byte_fallback", false)) unsupported("BPE option", "byte_fallback");
  spec_.model.where = path_;
  spec_.model.ignore_merges = flag(model, "ignore_merges", false);
  spec_.model.fuse_unk = flag(model, "fuse_unk", false);
  if (const auto unk = field(model, "unk_token")) spec_.model.unk_token = text(*unk, "unk_token");
  for (const auto& [token, value] : as_object(need(model, "vocab"), "vocab")) {
    spec_.model.vocab.emplace_back(std::string(token), id(value, token));
  }
  read_merges(need_array(model, "merges"));
}

void Reader::read_added(array tokens) {
  for (const element item : tokens) {
    const object token = as_object(item, "added_tokens");
    AddedToken added{.content = need_text(token, "content"),
                     .id = id(need(token, "id"), "id"),
                     .single_word = flag(token, "single_word", false),
                     .lstrip = flag(token, "lstrip", false),
                     .rstrip = flag(token, "rstrip", false),
                     .special = flag(token, "special", false)};
    added.normalized = flag(token, "normalized", !added.special);
    spec_.added.push_back(std::move(added));
  }
}

void Reader::read_normalizer(object normalizer) {
  const std::string type = need_text(normalizer, "type");
  if (type == "Sequence") {
    for (const element part : need_array(normalizer, "normalizers"))
      read_normalizer(as_object(part, "normalizers"));
  } else if (type == "NFC") {
    spec_.normalizers.push_back(&unicode::kNfc);
  } else if (type == "NFD") {
    spec_.normalizers.push_back(&unicode::kNfd);
  } else if (type == "Lowercase") {
    spec_.normalizers.push_back(&unicode::kLower);
  } else {
    unsupported("normalizer", type);
  }
}

void Reader::read_split(object step) {
  const object pattern = as_object(need(step, "pattern"), "pattern");
  const std::unordered_map<std::string, SplitBehavior> behaviors = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const auto behavior = behaviors.find(need_text(step, "behavior"));
  if (behavior == behaviors.end()) unsupported("behavior", need_text(step, "behavior"));
  SplitStep split{.behavior = behavior->second, .invert = flag(step, "invert", false)};
  if (const auto regex = field(pattern, "Regex")) {
    const std::string expression = text(*regex, "Regex");
    // The known patterns match all of a text, so that isolating matches and removing the rest are the same.
    const bool keeps_matches = split.behavior == SplitBehavior::isolated ||
                               (split.behavior == SplitBehavior::removed && split.invert);
    if (keeps_matches) split.pattern = recognise_pattern(expression);
    if (!split.pattern) split.regex = std::make_shared<Regex>(expression, path_);
  } else {
    split.regex = std::make_shared<Regex>(Regex::literal(need_text(pattern, "String"), path_));
  }
  spec_.steps.push_back(std::move(split));
}

void Reader::read_pre_tokenizer(object step) {
  const std::string type = need_text(step, "type");
  if (byte_level_) unsupported("pre-tokenizer after ByteLevel", type);
  if (type == "Sequence") {
    for (const element part : need_array(step, "pretokenizers")) {
      read_pre_tokenizer(as_object(part, "pretokenizers"));
    }
  } else if (type == "Split") {
    read_split(step);
  } else if (type == "Digits") {
    const bool individual = flag(step, "individual_digits", false);
    spec_.steps.push_back({.regex = std::make_shared<Regex>(R"(\p{N})", path_),
                           .behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    SplitStep last{.add_prefix_space = flag(step, "add_prefix_space", true)};
    if (flag(step, "use_regex", true)) last.pattern = SplitPattern::gpt2;
    if (last.pattern || last.add_prefix_space) spec_.steps.push_back(last);
  } else {
    unsupported("pre-tokenizer", type);
  }
}

void Reader::read_template(object processor) {
  std::unordered_map<std::string, std::vector<int32_t>> special;
  if (const auto tokens = field(processor, "special_tokens")) {
    for (const auto& [name, value] : as_object(*tokens, "special_tokens")) {
      for (const element item : need_array(as_object(value, "special_tokens"), "ids")) {
        special[std::string(name)].push_back(id(item, name));
      }
    }
  }
  bool after_text = false;
  std::vector<int32_t> before, behind;
  for (const element item : need_array(processor, "single")) {
    const object piece = as_object(item, "single");
    const auto token = field(piece, "SpecialToken");
    if (!token) {
      if (!field(piece, "Sequence") || after_text)
        reject("'single' of the post-processor does not hold its text once");
      after_text = true;
      continue;
    }
    const std::string name = need_text(as_object(*token, "SpecialToken"), "id");
    const auto ids = special.find(name);
    if (ids == special.end())
      reject(fmt::format("the post-processor's token '{}' has no ids", printable(name)));
    auto& side = after_text ? behind : before;
    side.insert(side.end(), ids->second.begin(), ids->second.end());
  }
  if (!after_text) reject("'single' of the post-processor leaves the text out");
  spec_.prefix.insert(spec_.prefix.begin(), before.begin(), before.end());
  spec_.suffix.insert(spec_.suffix.end(), behind.begin(), behind.end());
}

void Reader::read_post_processor(object processor) {
  const std::string type = need_text(processor, "type");
  const bool trims = type == "ByteLevel" || type == "RobertaProcessing";
  if (trims && flag(processor, "trim_offsets", true))
    spec_.trim = OffsetTrim{flag(processor, "add_prefix_space", true)};
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const element part : need_array(processor, "processors"))
      read_post_processor(as_object(part, "processors"));
  } else if (type == "TemplateProcessing") {
    read_template(processor);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const auto second = [&](const char* key) {
      const array pair = need_array(processor, key);
      if (pair.size() != 2) reject(fmt::format("'{}' is not a token and its id", key));
      return id(pair.at(1).value(), key);
    };
    spec_.prefix.insert(spec_.prefix.begin(), second("cls"));
    spec_.suffix.push_back(second("sep"));
  } else {
    unsupported("post-processor", type);
  }
}

HuggingFaceSpec Reader::read() {
  simdjson::dom::parser parser;
  element root;
  if (const auto error = parser.parse(json_).get(root)) {
    reject(fmt::format("not valid JSON ({})", simdjson::error_message(error)));
  }
  const object top = as_object(root, "tokenizer.json");
  read_model(as_object(need(top, "model"), "model"));
  if (const auto added = field(top, "added_tokens")) read_added(need_array(top, "added_tokens"));
  if (const auto part = field(top, "normalizer")) read_normalizer(as_object(*part, "normalizer"));
  if (const auto part = field(top, "pre_tokenizer")) read_pre_tokenizer(as_object(*part, "pre_tokenizer"));
  if (!byte_level_) unsupported("tokenizer", "without a ByteLevel pre-tokenizer");
  if (const auto part = field(top, "post_processor")) read_post_processor(as_object(*part, "post_processor"));
  return std::move(spec_);
}

void read_names(const std::string& path, SpecialNames& names) {
  if (!std::filesystem::exists(path)) return;
  const simdjson::padded_string json(read_text_file(path));
  simdjson::dom::parser parser;
  object top;
  if (const auto error = parser.parse(json).get(top)) {
    throw data_error(
        {.what = fmt::format("not a JSON object ({})", simdjson::error_message(error)), .where = path});
  }
  // A token is a text, or an object with its "content".
  const auto content = [](element value, std::string& out) {
    std::string_view found;
    object inside;
    if (!value.get(inside) && inside.at_key("content").get(value)) return;
    if (!value.get(found)) out = found;
  };
  const std::pair<const char*, std::string*> wanted[] = {
      {"bos_token", &names.bos}, {"eos_token", &names.eos}, {"pad_token", &names.pad},
      {"cls_token", &names.cls}, {"sep_token", &names.sep}, {"mask_token", &names.mask}};
  for (const auto& [key, name] : wanted) {
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

HuggingFaceSpec read_hugging_face(const std::string& path) {
  return Reader(path).read();
}

SpecialNames read_special_names(const std::string& directory) {
  SpecialNames names;
  read_names(directory + "/special_tokens_map.json", names);
  read_names(directory + "/tokenizer_config.json", names);
  return names;
}

}  // namespace teratron
