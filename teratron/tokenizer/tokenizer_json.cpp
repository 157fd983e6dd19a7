#include "teratron/tokenizer/tokenizer_json.h"

#include "teratron/base/error.h"
#include "teratron/tokenizer/bert/wordpiece_json.h"
#include "teratron/tokenizer/bpe/hf_tokenizer.h"
#include "teratron/tokenizer/json_problem.h"
#include "teratron/tokenizer/pieces/piece_json.h"
#include "teratron/tokenizer/text/text_file.h"

namespace teratron {
namespace {

/// Old files do not name it.
std::string model_type(const JsonFields& json, JsonFields::Object model) {
  if (const auto type = JsonFields::field(model, "type")) return json.string(*type, "type");
  if (JsonFields::field(model, "unk_id")) return "Unigram";
  return JsonFields::field(model, "max_input_chars_per_word") ? "WordPiece" : "BPE";
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path, const SpecialTokensMap& special,
                                               bool add_special_tokens) {
  const JsonFields json(path);
  const simdjson::padded_string text(read_text_file(path));
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(text).get(root))
    json.reject(fmt::format("not valid JSON ({})", json_problem(error)));
  const auto top = json.object(root, "tokenizer.json");
  const std::string type = model_type(json, json.object(json.require(top, "model"), "model"));
  if (type == "Unigram" || (type == "BPE" && is_character_bpe(json, top)))
    return std::make_unique<PieceTokenizer>(read_piece_json(json, top), special, add_special_tokens);
  if (type == "BPE") {
    return std::make_unique<HuggingFaceTokenizer>(read_bpe_json(json, top), special, add_special_tokens);
  }
  if (type == "WordPiece") {
    return std::make_unique<WordPieceTokenizer>(read_wordpiece_json(json, top, special, add_special_tokens));
  }
  json.unsupported("model", type);
}

}  // namespace teratron
