#include "teratron/tokenizer/pieces/piece_json.h"

#include "teratron/base/error.h"
#include "teratron/tokenizer/base64.h"
#include "teratron/tokenizer/bpe/vocab_files.h"

namespace teratron {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

class PieceReader {
 public:
  explicit PieceReader(const JsonFields& json) : json_(json) {}
  PieceTokenizerConfig read(object top);

 private:
  UnigramConfig unigram(object model) const;
  CharacterBpeConfig bpe(object model) const;
  void read_normalizer(object normalizer);
  void read_words(object step);
  void read_decoder(object decoder);
  std::shared_ptr<const Regex> pattern(object from) const;
  std::shared_ptr<const Regex> literal(const std::string& text) const;
  std::string symbol(object metaspace) const;
  MetaspaceStep metaspace(object step) const;
  size_t count(object from, std::string_view key) const;

  const JsonFields& json_;
  PieceTokenizerConfig result_;
};

void require_no_option(const JsonFields& json, object model, const char* option) {
  const auto value = JsonFields::field(model, option);
  double rate = 0;
  if (value && !(value->is_string() && json.string(*value, option).empty()) &&
      (value->get(rate) || rate != 0))
    json.unsupported("model option", option);
}

UnigramConfig PieceReader::unigram(object model) const {
  UnigramConfig config{.byte_fallback = json_.boolean(model, "byte_fallback", false), .where = json_.path()};
  for (const element item : json_.require_array(model, "vocab")) {
    array pair;
    double score = 0;
    if (item.get(pair) || pair.size() != 2 || pair.at(1).get(score))
      json_.reject(fmt::format("entry {} of 'vocab' is not a pair of piece and score", config.pieces.size()));
    config.pieces.emplace_back(json_.string(pair.at(0).value(), "vocab"), score);
  }
  config.unknown = json_.id(json_.require(model, "unk_id"), "unk_id");
  return config;
}

CharacterBpeConfig PieceReader::bpe(object model) const {
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix", "dropout"})
    require_no_option(json_, model, option);
  CharacterBpeConfig config{.fuse_unk = json_.boolean(model, "fuse_unk", false),
                            .byte_fallback = json_.boolean(model, "byte_fallback", false),
                            .ignore_merges = json_.boolean(model, "ignore_merges", false),
                            .where = json_.path()};
  if (const auto unk = JsonFields::field(model, "unk_token"))
    config.unk_token = json_.string(*unk, "unk_token");
  for (const auto& [token, id] : json_.large_object(json_.require(model, "vocab"), "vocab"))
    config.vocab.emplace_back(std::string(token), json_.id(id, token));
  size_t number = 0;
  for (const element merge : json_.require_array(model, "merges")) {
    ++number;
    array pair;
    if (merge.get(pair)) {
      config.merges.push_back(
          parse_merge(json_.string(merge, "merges"), fmt::format("{}: merge {}", json_.path(), number)));
      continue;
    }
    if (pair.size() != 2) json_.reject(fmt::format("merge {} is not a pair", number));
    config.merges.emplace_back(json_.string(pair.at(0).value(), "merges"),
                               json_.string(pair.at(1).value(), "merges"));
  }
  return config;
}

std::shared_ptr<const Regex> PieceReader::literal(const std::string& text) const {
  if (text.empty()) json_.reject("a pattern is empty");
  return std::make_shared<Regex>(Regex::literal(text, json_.path()));
}

std::shared_ptr<const Regex> PieceReader::pattern(object from) const {
  const object pattern = json_.object(json_.require(from, "pattern"), "pattern");
  if (const auto regex = JsonFields::field(pattern, "Regex"))
    return std::make_shared<Regex>(json_.string(*regex, "Regex"), json_.path());
  return literal(json_.require_string(pattern, "String"));
}

void PieceReader::read_normalizer(object normalizer) {
  const std::string type = json_.require_string(normalizer, "type");
  std::vector<NormalizerStep>& steps = result_.normalizers;
  if (type == "Sequence") {
    for (const element part : json_.require_array(normalizer, "normalizers"))
      read_normalizer(json_.object(part, "normalizers"));
  } else if (type == "Precompiled") {
    const auto bytes = decode_base64(json_.require_string(normalizer, "precompiled_charsmap"));
    if (!bytes || bytes->empty()) json_.reject("'precompiled_charsmap' is not valid base64");
    steps.emplace_back(precompiled_step(*bytes, json_.path()));
  } else if (type == "Replace") {
    steps.emplace_back(ReplaceStep{pattern(normalizer), json_.require_string(normalizer, "content")});
  } else if (type == "Prepend") {
    steps.emplace_back(PrependStep{json_.require_string(normalizer, "prepend")});
  } else if (type == "Strip") {
    steps.emplace_back(StripStep{json_.boolean(normalizer, "strip_left", true),
                                 json_.boolean(normalizer, "strip_right", true)});
  } else if (type == "NFC" || type == "NFD") {
    steps.emplace_back(type == "NFC" ? &unicode::kNfc : &unicode::kNfd);
  } else if (type == "Lowercase") {
    steps.emplace_back(&unicode::kLower);
  } else {
    json_.unsupported("normalizer", type);
  }
}

std::string PieceReader::symbol(object metaspace) const {
  std::string symbol = json_.require_string(metaspace, "replacement");
  if (symbol.empty() || unicode::sequence_bytes(symbol[0]) != symbol.size())
    json_.reject("'replacement' of Metaspace is not one character");
  return symbol;
}

MetaspaceStep PieceReader::metaspace(object step) const {
  MetaspaceStep result{.symbol = symbol(step), .split = json_.boolean(step, "split", true)};
  std::string scheme = json_.boolean(step, "add_prefix_space", true) ? "always" : "never";
  if (const auto given = JsonFields::field(step, "prepend_scheme"))
    scheme = json_.string(*given, "prepend_scheme");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    json_.unsupported("prepend_scheme of Metaspace", scheme);
  result.scheme = scheme == "always"  ? PrependScheme::always
                  : scheme == "first" ? PrependScheme::first
                                      : PrependScheme::never;
  result.space = literal(" ");
  result.pattern = literal(result.symbol);
  return result;
}

void PieceReader::read_words(object step) {
  const std::string type = json_.require_string(step, "type");
  if (type == "Sequence") {
    for (const element part : json_.require_array(step, "pretokenizers"))
      read_words(json_.object(part, "pretokenizers"));
  } else if (type == "Metaspace") {
    result_.words.emplace_back(metaspace(step));
  } else if (type == "WhitespaceSplit") {
    result_.words.emplace_back(SplitStep{.pattern = std::make_shared<Regex>("\\s", json_.path())});
  } else if (type == "Split") {
    SplitStep split{.pattern = pattern(step), .invert = json_.boolean(step, "invert", false)};
    const auto behavior = split_behavior(json_.require_string(step, "behavior"));
    if (!behavior) json_.unsupported("behavior", json_.require_string(step, "behavior"));
    split.behavior = *behavior;
    result_.words.emplace_back(std::move(split));
  } else if (type == "Digits") {
    const bool individual = json_.boolean(step, "individual_digits", false);
    result_.words.emplace_back(
        SplitStep{.pattern = std::make_shared<Regex>("\\p{N}", json_.path()),
                  .behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else {
    json_.unsupported("pre-tokenizer", type);
  }
}

size_t PieceReader::count(object from, std::string_view key) const {
  int64_t value = -1;
  if (json_.require(from, key).get(value) || value < 0)
    json_.reject(fmt::format("'{}' is not a number of characters", key));
  return static_cast<size_t>(value);
}

void PieceReader::read_decoder(object decoder) {
  const std::string type = json_.require_string(decoder, "type");
  std::vector<PieceDecoder>& decoders = result_.decoders;
  if (type == "Sequence") {
    for (const element part : json_.require_array(decoder, "decoders"))
      read_decoder(json_.object(part, "decoders"));
  } else if (type == "Metaspace") {
    decoders.emplace_back(
        MetaspaceDecoder{symbol(decoder), metaspace(decoder).scheme != PrependScheme::never});
  } else if (type == "Replace") {
    decoders.emplace_back(ReplaceDecoder{pattern(decoder), json_.require_string(decoder, "content")});
  } else if (type == "ByteFallback") {
    decoders.emplace_back(ByteFallbackDecoder{});
  } else if (type == "Fuse") {
    decoders.emplace_back(FuseDecoder{});
  } else if (type == "Strip") {
    StripDecoder strip{json_.require_string(decoder, "content"), count(decoder, "start"),
                       count(decoder, "stop")};
    if (strip.character.empty() || unicode::sequence_bytes(strip.character[0]) != strip.character.size())
      json_.reject("'content' of Strip is not one character");
    decoders.emplace_back(std::move(strip));
  } else {
    json_.unsupported("decoder", type);
  }
}

PieceTokenizerConfig PieceReader::read(object top) {
  const object model = json_.object(json_.require(top, "model"), "model");
  if (JsonFields::field(model, "merges")) {
    result_.model = std::make_unique<CharacterBpeModel>(bpe(model));
  } else {
    result_.model = std::make_unique<UnigramModel>(unigram(model));
  }
  result_.where = json_.path();
  result_.added = read_added_tokens(json_, top);
  if (const auto part = JsonFields::field(top, "normalizer"))
    read_normalizer(json_.object(*part, "normalizer"));
  if (const auto part = JsonFields::field(top, "pre_tokenizer"))
    read_words(json_.object(*part, "pre_tokenizer"));
  if (const auto part = JsonFields::field(top, "decoder")) read_decoder(json_.object(*part, "decoder"));
  result_.post_processor = read_post_processor(json_, top);
  return std::move(result_);
}

bool has_byte_level(const JsonFields& json, object step) {
  const std::string type = json.require_string(step, "type");
  if (type != "Sequence") return type == "ByteLevel";
  for (const element part : json.require_array(step, "pretokenizers")) {
    if (has_byte_level(json, json.object(part, "pretokenizers"))) return true;
  }
  return false;
}

}  // namespace

bool is_character_bpe(const JsonFields& json, object top) {
  const auto step = JsonFields::field(top, "pre_tokenizer");
  return !step || !has_byte_level(json, json.object(*step, "pre_tokenizer"));
}

PieceTokenizerConfig read_piece_json(const JsonFields& json, object top) {
  return PieceReader(json).read(top);
}

}  // namespace teratron
