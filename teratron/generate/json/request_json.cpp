#include "teratron/generate/json/request_json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "teratron/generate/json/request_fields.h"
#include "teratron/generate/texts.h"
#include "teratron/tokenizer/decoder_start.h"

namespace teratron {

namespace {

using nlohmann::json;

// Ids of a field, if it is there.
std::optional<std::vector<int32_t>> read_ids(RequestFields& fields, const char* name) {
  std::optional<std::vector<int32_t>> ids;
  fields.read<std::vector<int32_t>>(name, "a list of token ids", RequestFields::are_ids,
                                    [&](const std::vector<int32_t>& v) { ids = v; });
  return ids;
}

// Ids of the text `prompt`, if it is there.
std::optional<std::vector<int32_t>> read_text(RequestFields& fields, const RequestReader& reader) {
  std::optional<std::string> text;
  fields.text("prompt", [&](const std::string& v) { text = v; });
  if (!text) return std::nullopt;
  std::vector<int32_t> ids;
  if (!reader.tokenizer) {
    fields.problem("prompt", fmt::format("a prompt needs a tokenizer ({})", reader.no_tokenizer),
                   reader.has_source ? "Use encoder_tokens" : "Use tokens");
    return ids;
  }
  try {
    reader.tokenizer->encode(*text, ids);
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems()) fields.problem("prompt", problem.what, problem.fix);
  }
  return ids;
}

void read_source(RequestFields& fields, const RequestReader& reader, GenerationRequest& request) {
  const auto text = read_text(fields, reader), source = read_ids(fields, "encoder_tokens"),
             start = read_ids(fields, "tokens");
  if (text && source)
    fields.problem("encoder_tokens", "prompt and encoder_tokens are both given", "Use one of them");
  if (!fields.has("prompt") && !fields.has("encoder_tokens"))
    fields.problem("prompt", "there is neither prompt nor encoder_tokens", "Add one of them");
  set_prompt(reader, text.value_or(std::vector<int32_t>{}), request);
  if (source) request.source = *source;
  if (start) request.prompt = *start;
  if (request.prompt.empty() && (start || !fields.has("tokens")))
    fields.problem("tokens", "there is no token with which the decoder begins", "Put it into tokens");
}

void read_prompt(RequestFields& fields, const RequestReader& reader, bool add_bos,
                 GenerationRequest& request) {
  if (reader.has_source) return read_source(fields, reader, request);
  const auto text = read_text(fields, reader), ids = read_ids(fields, "tokens");
  fields.unsupported("encoder_tokens", {}, "Leave it out: this model has no encoder");
  if (text && ids) fields.problem("tokens", "prompt and tokens are both given", "Use one of them");
  if (!fields.has("prompt") && !fields.has("tokens"))
    fields.problem("prompt", "there is neither prompt nor tokens", "Add one of them");
  request.prompt = ids ? *ids : text.value_or(std::vector<int32_t>{});
  if (add_bos && reader.document_end < 0) {
    fields.problem("add_BOS", "add_BOS needs a tokenizer with an end-of-document token",
                   "Put the token into tokens");
  } else if (add_bos) {
    request.prompt.insert(request.prompt.begin(), reader.document_end);
  }
}

// One image token for each image becomes as many as it has rows.
void expand_images(RequestFields& fields, const ImageTokens& image, int64_t count,
                   std::vector<int32_t>& prompt) {
  const auto tokens = std::ranges::count(prompt, static_cast<int32_t>(image.token));
  if (tokens == count * image.rows && image.rows > 1) return;
  if (tokens != count) {
    return fields.problem(
        "images",
        fmt::format("the prompt has {} image tokens ({}), but there are {} images of {} rows", tokens,
                    image.token, count, image.rows),
        "Write one image token for each image");
  }
  std::vector<int32_t> whole;
  for (const int32_t token : prompt)
    whole.insert(whole.end(), static_cast<size_t>(token == image.token ? image.rows : 1), token);
  prompt = std::move(whole);
}

void read_images(RequestFields& fields, const RequestReader& reader, const std::string& where,
                 GenerationRequest& request) {
  if (!reader.images || !reader.read_images)
    return fields.unsupported("images", {json::array()}, "Leave it out: this model reads no images here");
  std::vector<std::string> names;
  fields.texts("images", names);
  expand_images(fields, *reader.images, std::ssize(names), request.prompt);
  if (names.empty()) return;
  try {
    request.images = reader.read_images(names, where);
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems())
      fields.problem("images", fmt::format("{}: {}", problem.where, problem.what), problem.fix);
  }
}

// Top-k, or top-p, that a request sets replaces the other among the defaults.
void read_filters(RequestFields& fields, SamplingOptions& sampling) {
  const double default_top_p = sampling.top_p;
  bool has_top_k = false;
  fields.integer("top_k", [&](int64_t v) { sampling.top_k = v, has_top_k = v > 0; });
  sampling.top_p = std::numeric_limits<double>::quiet_NaN();  // not set
  fields.real("top_p", sampling.top_p);
  if (std::isnan(sampling.top_p)) {
    sampling.top_p = has_top_k ? 0.0 : default_top_p;
  } else if (sampling.top_p > 0.0 && !has_top_k) {
    sampling.top_k = 0;
  }
}

void read_sampling(RequestFields& fields, GenerationRequest& request) {
  SamplingOptions& sampling = request.sampling;
  fields.integer("max_new_tokens", [&](int64_t v) { request.max_new_tokens = v; });
  fields.real("temperature", sampling.temperature);
  read_filters(fields, sampling);
  fields.real("top_p_decay", sampling.top_p_decay);
  fields.real("top_p_bound", sampling.top_p_bound);
  for (const char* name : {"seed", "random_seed"}) {
    fields.integer(name, [&](int64_t v) {
      sampling.seed = static_cast<uint64_t>(v);
      request.sequence = 0;
    });
  }
  fields.integer("num_beams", [&](int64_t v) { request.beams.width = v == 1 ? 0 : v; });
  fields.real("length_penalty", request.beams.length_penalty);
  fields.integer("num_return_sequences", [&](int64_t v) { request.choices = v; });
  fields.flag("logprobs", request.logprobs);
}

void read_stops(RequestFields& fields, GenerationRequest& request) {
  fields.texts("stop", request.stop.texts);
  fields.read<int32_t>("stop_token", "a token id", RequestFields::is_id,
                       [&](int32_t v) { request.stop.tokens = {v}; });
  fields.flag("stop_on_eol", request.stop.on_eol);
  fields.flag("stop_on_double_eol", request.stop.on_double_eol);
  fields.flag("prevent_newline_after_colon", request.prevent_newline_after_colon);
  fields.flag("skip_special_tokens", request.skip_special_tokens);
}

nlohmann::ordered_json choice_to_json(const GeneratedChoice& choice, const GenerationRequest& request,
                                      const Tokenizer* tokenizer) {
  nlohmann::ordered_json value;
  value["text"] = nullptr;
  if (tokenizer) value["text"] = answer_text(*tokenizer, request, choice);
  value["tokens"] = choice.tokens;
  if (request.logprobs) value["logprobs"] = choice.logprobs;
  if (request.beams.width > 0) value["score"] = choice.score;
  value["finish_reason"] = choice.finish_reason;
  return value;
}

}  // namespace

int32_t use_encoder_rules(RequestReader& reader, const ConfiguredTokens& configured) {
  reader.has_source = true;
  const SpecialTokens special = reader.tokenizer ? reader.tokenizer->special() : SpecialTokens{};
  reader.source_end = special.eos.value_or(-1);
  const std::optional<int32_t> of_tokenizer = decoder_start(special),
                               usual = of_tokenizer ? of_tokenizer : configured.pad;
  reader.decoder_start = configured.decoder_start.value_or(usual.value_or(-1));
  return special.eos.value_or(special.sep.value_or(-1));
}

void set_prompt(const RequestReader& reader, std::vector<int32_t> tokens, GenerationRequest& request) {
  if (!reader.has_source) {
    request.prompt = std::move(tokens);
    return;
  }
  request.source = std::move(tokens);
  std::vector<int32_t>& source = request.source;
  // T5's tokenizers of Hugging Face end every text with it.
  const bool has_end = !source.empty() && source.back() == reader.source_end;
  if (reader.source_end >= 0 && !has_end) source.push_back(reader.source_end);
  request.prompt.clear();
  if (reader.decoder_start >= 0) request.prompt.push_back(reader.decoder_start);
}

GenerationRequest request_from_json(const json& value, const RequestReader& reader,
                                    const std::string& where) {
  if (!value.is_object())
    throw data_error(
        {.what = "the request is not a JSON object", .where = where, .fix = "Write {\"prompt\": ...}"});
  GenerationRequest request = reader.defaults;
  RequestFields fields(value, where);
  bool add_bos = reader.add_bos;
  fields.flag("add_BOS", add_bos);
  read_prompt(fields, reader, add_bos, request);
  read_images(fields, reader, where, request);
  if (reader.total_length > 0)
    request.max_new_tokens =
        std::max<int64_t>(reader.total_length - static_cast<int64_t>(request.prompt.size()), 0);
  read_sampling(fields, request);
  read_stops(fields, request);
  fields.finish();
  return request;
}

nlohmann::ordered_json answer_to_json(const GenerationResult& result, const GenerationRequest& request,
                                      const Tokenizer* tokenizer) {
  if (result.choices.size() == 1) return choice_to_json(result.choices.front(), request, tokenizer);
  nlohmann::ordered_json choices = nlohmann::ordered_json::array();
  for (const GeneratedChoice& choice : result.choices)
    choices.push_back(choice_to_json(choice, request, tokenizer));
  return {{"choices", choices}};
}

std::string dump_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace teratron
