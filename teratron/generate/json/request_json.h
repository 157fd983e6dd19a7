// Requests and answers as JSON: `teratron generate --input`, and the server.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/generate/request.h"
#include "teratron/tokenizer/end_tokens.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// What the fields of a request are read with.
struct RequestReader {
  GenerationRequest defaults = {};
  const Tokenizer* tokenizer = nullptr;  // null: prompts are ids
  std::string no_tokenizer = {};         // why there is none
  int32_t document_end = -1;             // id; -1: none
  bool add_bos = false;
  int64_t total_length = 0;  // of prompt and answer where max_new_tokens is left out; 0: see defaults
  // With an encoder, whose source is the prompt:
  bool has_source = false;
  int32_t decoder_start = -1;  // id; -1: none
  int32_t source_end = -1;     // id after a source of text; -1: none
  // With images:
  std::optional<ImageTokens> images = {};
  /// The images of these names. UserError(data). Null: requests must not name files.
  std::function<std::shared_ptr<const RequestImages>(const std::vector<std::string>& names,
                                                     const std::string& where)>
      read_images = nullptr;
};

/// A decoder begins with what the model's configuration names, else with bos, cls or pad of the tokenizer,
/// else with pad of the configuration. A source of text ends with the tokenizer's eos. Returns the token that
/// ends an answer, the tokenizer's eos or sep; -1: none.
int32_t use_encoder_rules(RequestReader& reader, const ConfiguredTokens& configured);
/// Makes these tokens of a text the prompt or, of a model with an encoder, the source.
void set_prompt(const RequestReader& reader, std::vector<int32_t> tokens, GenerationRequest& request);

/// Fields:
///   prompt (text) or tokens (ids)
///   prompt or encoder_tokens, and perhaps tokens, with which the decoder begins: of a model with an encoder
///   images: a file or several, each with one image token in the prompt, or one for each of its rows
///   max_new_tokens, temperature, top_k, top_p, top_p_decay, top_p_bound, num_beams, length_penalty,
///   num_return_sequences, stop (a text or several), stop_token, seed or random_seed, logprobs, add_BOS,
///   stop_on_eol, stop_on_double_eol, prevent_newline_after_colon, skip_special_tokens: any of them
/// The defaults' `sequence` holds unless there is a seed.
/// UserError(data) at `where` with all that is wrong: unknown fields, types, a missing prompt. The engine
/// checks ranges.
GenerationRequest request_from_json(const nlohmann::json& value, const RequestReader& reader,
                                    const std::string& where);

/// text (null without a tokenizer), tokens, logprobs if asked, score of a beam, finish_reason; several
/// answers as `choices`.
nlohmann::ordered_json answer_to_json(const GenerationResult& result, const GenerationRequest& request,
                                      const Tokenizer* tokenizer);

/// On one line, with invalid UTF-8 replaced.
std::string dump_line(const nlohmann::ordered_json& value);

}  // namespace teratron
