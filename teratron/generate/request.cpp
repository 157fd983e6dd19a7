#include "teratron/generate/request.h"

#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "teratron/tokenizer/base64.h"

namespace teratron {

namespace {

void check_ids(const std::vector<int32_t>& ids, const char* where, const RequestLimits& limits,
               std::vector<Problem>& problems) {
  const auto outside = std::find_if(ids.begin(), ids.end(), [&](int32_t id) {
    return (id < 0 || id >= limits.vocabulary) && !(limits.images && id == limits.images->token);
  });
  if (outside == ids.end()) return;
  problems.push_back(
      {.what = fmt::format("token {} is not in the vocabulary of {} tokens", *outside, limits.vocabulary),
       .where = where,
       .fix = fmt::format("Use ids in [0, {})", limits.vocabulary)});
}

void check_source(const std::vector<int32_t>& source, const RequestLimits& limits,
                  std::vector<Problem>& problems) {
  if (!limits.has_source) {
    if (!source.empty()) {
      problems.push_back({.what = "the model has no encoder, but encoder_tokens are given",
                          .where = "encoder_tokens",
                          .fix = "Leave them out"});
    }
    return;
  }
  check_ids(source, "encoder_tokens", limits, problems);
  if (source.empty()) {
    problems.push_back({.what = "the encoder has no tokens",
                        .where = "encoder_tokens",
                        .fix = "Give the ids of the source, or a prompt"});
  }
  if (static_cast<int64_t>(source.size()) > limits.max_positions) {
    problems.push_back({.what = fmt::format("the source has {} tokens and the model {} positions",
                                            source.size(), limits.max_positions),
                        .where = "encoder_tokens",
                        .fix = "Shorten it"});
  }
}

void check_images(const GenerationRequest& request, const RequestLimits& limits,
                  std::vector<Problem>& problems) {
  const int64_t images = request.images ? request.images->count : 0;
  if (!limits.images) {
    if (images > 0)
      problems.push_back({.what = "the model reads no images", .where = "images", .fix = "Leave them out"});
    return;
  }
  const ImageTokens& image = *limits.images;
  const auto tokens = std::count(request.prompt.begin(), request.prompt.end(), image.token);
  if (tokens != images * image.rows) {
    problems.push_back(
        {.what = fmt::format("the prompt has {} image tokens ({}), but {} images of {} rows need {}", tokens,
                             image.token, images, image.rows, images * image.rows),
         .where = "images",
         .fix = "Give an image for each image token"});
  }
}

void check_prompt(const GenerationRequest& request, const RequestLimits& limits,
                  std::vector<Problem>& problems) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) {
    problems.push_back({.what = "the prompt has no tokens",
                        .where = "prompt",
                        .fix = "Write at least one word, or set add_BOS"});
  }
  check_ids(request.prompt, "tokens", limits, problems);
  check_images(request, limits, problems);
  // The last token of a prompt is the model's input only if another one follows it.
  const int64_t longest = limits.max_positions + (request.max_new_tokens > 0 ? -1 : request.embeds ? 0 : 1);
  if (length > longest) {
    problems.push_back({.what = fmt::format("the prompt has {} tokens and the model {} positions", length,
                                            limits.max_positions),
                        .where = "prompt",
                        .fix = "Shorten the prompt"});
  }
}

void check_range(bool valid, std::string what, const char* where, std::vector<Problem>& problems) {
  if (!valid)
    problems.push_back({.what = std::move(what), .where = where, .fix = "Use a value in this range"});
}

void check_rows(int64_t rows, const char* where, const RequestLimits& limits,
                std::vector<Problem>& problems) {
  if (rows <= limits.max_rows) return;
  problems.push_back(
      {.what = fmt::format("{} sequences at once, but a request may have {}", rows, limits.max_rows),
       .where = where,
       .fix = std::string(limits.more_rows)});
}

void check_answers(const GenerationRequest& request, const RequestLimits& limits,
                   std::vector<Problem>& problems) {
  const int64_t width = request.beams.width;
  check_range(request.max_new_tokens >= 0, fmt::format("{} is below 0", request.max_new_tokens),
              "max_new_tokens", problems);
  if (request.max_new_tokens == 0 && !request.logprobs && !request.embeds) {
    problems.push_back({.what = "no new tokens are asked for, and no log probabilities",
                        .where = "max_new_tokens",
                        .fix = "Set logprobs for the log probabilities of the prompt"});
  }
  check_range(request.choices >= 1, fmt::format("{} is below 1", request.choices), "num_return_sequences",
              problems);
  if (width == 0) check_rows(request.choices, "num_return_sequences", limits, problems);
  const bool top_fits = request.top_logprobs >= 0 && request.top_logprobs <= largest_top_logprobs;
  check_range(top_fits, fmt::format("{} is not in [0, {}]", request.top_logprobs, largest_top_logprobs),
              "top_logprobs", problems);
  check_range(width >= 0, fmt::format("{} is below 0", width), "num_beams", problems);
  check_rows(width, "num_beams", limits, problems);
  if (width > 0 && request.choices > width) {
    problems.push_back({.what = fmt::format("{} answers of {} beams", request.choices, width),
                        .where = "num_return_sequences",
                        .fix = "Use at most num_beams"});
  }
  if (width > 0 && (request.sampling.top_k > 1 || request.sampling.top_p > 0.0)) {
    problems.push_back({.what = "a beam search does not sample, but top_k or top_p is set",
                        .where = "num_beams",
                        .fix = "Set only one of them"});
  }
  if (width > 0 && !request.form.empty()) {
    problems.push_back(
        {.what = "beams do not keep to a form", .where = "num_beams", .fix = "Set only one of them"});
  }
  if (!request.stop.texts.empty() && !limits.has_tokenizer) {
    problems.push_back(
        {.what = "texts that end an answer need a tokenizer", .where = "stop", .fix = "Use stop_token"});
  }
  if (std::find(request.stop.texts.begin(), request.stop.texts.end(), "") != request.stop.texts.end())
    problems.push_back({.what = "an empty text ends every answer", .where = "stop", .fix = "Leave it out"});
}

}  // namespace

std::vector<Problem> request_problems(const GenerationRequest& request, const RequestLimits& limits) {
  std::vector<Problem> problems = sampling_problems(request.sampling);
  check_prompt(request, limits, problems);
  check_source(request.source, limits, problems);
  check_answers(request, limits, problems);
  return problems;
}

namespace {

nlohmann::json images_to_json(const RequestImages* images) {
  if (!images) return nullptr;
  const std::string_view bytes(reinterpret_cast<const char*>(images->values.data()),
                               images->values.size() * sizeof(float));
  return {{"count", images->count}, {"values", encode_base64(bytes)}};
}

std::shared_ptr<const RequestImages> images_from_json(const nlohmann::json& value) {
  if (value.is_null()) return nullptr;
  const std::optional<std::string> bytes = decode_base64(value.at("values").get<std::string>());
  TERATRON_ASSERT(bytes, "images of a request");
  auto images = std::make_shared<RequestImages>();
  images->count = value.at("count");
  images->values.resize(bytes->size() / sizeof(float));
  std::memcpy(images->values.data(), bytes->data(), images->values.size() * sizeof(float));
  return images;
}

}  // namespace

std::string serialize(const GenerationRequest& r) {
  const nlohmann::json value = {{"prompt", r.prompt},
                                {"images", images_to_json(r.images.get())},
                                {"source", r.source},
                                {"max_new_tokens", r.max_new_tokens},
                                {"sampling",
                                 {r.sampling.temperature, r.sampling.top_k, r.sampling.top_p,
                                  r.sampling.top_p_decay, r.sampling.top_p_bound}},
                                {"seed", r.sampling.seed},
                                {"joins_filters", r.sampling.joins_filters},
                                {"penalties",
                                 {r.sampling.min_p, r.sampling.presence_penalty, r.sampling.frequency_penalty,
                                  r.sampling.repetition_penalty}},
                                {"logit_bias", r.sampling.logit_bias},
                                {"stop_tokens", r.stop.tokens},
                                {"stop_texts", r.stop.texts},
                                {"eol", {r.stop.on_eol, r.stop.on_double_eol, r.prevent_newline_after_colon}},
                                {"beams", {r.beams.width, r.beams.length_penalty}},
                                {"form", to_json(r.form)},
                                {"choices", r.choices},
                                {"sequence", r.sequence},
                                {"logprobs", r.logprobs},
                                {"logprobs_from", r.logprobs_from},
                                {"skip_special_tokens", r.skip_special_tokens},
                                {"top_logprobs", r.top_logprobs},
                                {"embeds", r.embeds},
                                {"adapter", r.adapter}};
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

GenerationRequest deserialize_request(const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(text);
  const nlohmann::json &sampling = value.at("sampling"), &eol = value.at("eol"), &beams = value.at("beams"),
                       &penalties = value.at("penalties");
  return {.prompt = value.at("prompt"),
          .images = images_from_json(value.at("images")),
          .source = value.at("source"),
          .max_new_tokens = value.at("max_new_tokens"),
          .sampling = {.temperature = sampling[0],
                       .top_k = sampling[1],
                       .top_p = sampling[2],
                       .top_p_decay = sampling[3],
                       .top_p_bound = sampling[4],
                       .seed = value.at("seed"),
                       .joins_filters = value.at("joins_filters"),
                       .min_p = penalties[0],
                       .presence_penalty = penalties[1],
                       .frequency_penalty = penalties[2],
                       .repetition_penalty = penalties[3],
                       .logit_bias = value.at("logit_bias")},
          .stop = {.tokens = value.at("stop_tokens"),
                   .texts = value.at("stop_texts"),
                   .on_eol = eol[0],
                   .on_double_eol = eol[1]},
          .beams = {.width = beams[0], .length_penalty = beams[1]},
          .form = answer_form_from_json(value.at("form")),
          .prevent_newline_after_colon = eol[2],
          .skip_special_tokens = value.at("skip_special_tokens"),
          .choices = value.at("choices"),
          .sequence = value.at("sequence"),
          .logprobs = value.at("logprobs"),
          .logprobs_from = value.at("logprobs_from"),
          .top_logprobs = value.at("top_logprobs"),
          .embeds = value.at("embeds"),
          .adapter = value.at("adapter")};
}

}  // namespace teratron
