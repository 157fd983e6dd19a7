#include "teratron/serve/api/embeddings.h"

#include <algorithm>

#include "teratron/serve/api/api_error.h"
#include "teratron/serve/api/prompts.h"
#include "teratron/tokenizer/base64.h"

namespace teratron {

namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;

void check_inputs(const EmbeddingsRequest& request, const ServedModel& model) {
  int64_t tokens = 0;
  for (const GenerationRequest& input : request.inputs) {
    for (const int32_t id : input.prompt) {
      if (id < model.limits.vocabulary) continue;
      throw ApiError(400,
                     fmt::format("token {} is not in the vocabulary of {} tokens. Use ids in [0, {})", id,
                                 model.limits.vocabulary, model.limits.vocabulary),
                     {.param = "input"});
    }
    const auto length = static_cast<int64_t>(input.prompt.size());
    tokens += length;
    if (length <= model.limits.max_positions) continue;
    throw ApiError(400,
                   fmt::format("This model's maximum context length is {} tokens, and a text has {}. Please "
                               "shorten it.",
                               model.limits.max_positions, length),
                   {.param = "input", .code = "context_length_exceeded"});
  }
  if (model.max_request_tokens > 0 && tokens > model.max_request_tokens) {
    throw ApiError(413,
                   fmt::format("The texts have {} tokens together, and at most {} are accepted. Send fewer "
                               "at once.",
                               tokens, model.max_request_tokens),
                   {.param = "input", .code = "too_many_tokens"});
  }
}

void read_encoding(RequestFields& fields, EmbeddingsRequest& request) {
  fields.text("encoding_format", [&](const std::string& format) {
    request.base64 = format == "base64";
    if (!request.base64 && format != "float")
      fields.problem("encoding_format",
                     fmt::format("there is no encoding_format '{}'", printable(format, 40)),
                     "Use float or base64");
  });
}

}  // namespace

EmbeddingsRequest parse_embeddings(const RequestBody& body, const ServedModel& model) {
  EmbeddingsRequest request{.inputs = {}, .model = model.name};
  try {
    RequestFields fields(body.fields(), "");
    int64_t adapter = 0;
    fields.text("model", [&](const std::string& name) {
      adapter = adapter_named(name, model);
      request.model = name;
    });
    read_encoding(fields, request);
    fields.unsupported("dimensions", {}, "Leave it out: the states of this model cannot be cut");
    fields.ignore_text("user");
    const std::vector<const json*> inputs = read_prompts(fields, "input", model);
    if (std::ranges::any_of(inputs, [](const json* input) { return *input == ""; }))
      fields.problem("input", "a text is empty", "Leave it out");
    fields.finish();
    for (const json* input : inputs) {
      request.inputs.push_back(
          {.prompt = prompt_ids(*input, model), .max_new_tokens = 0, .embeds = true, .adapter = adapter});
    }
  } catch (const UserError& error) {
    throw api_error(error);
  }
  check_inputs(request, model);
  return request;
}

Json embeddings_answer(const EmbeddingsRequest& request, const std::vector<GenerationResult>& results) {
  Json data = Json::array();
  int64_t tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const std::vector<double>& values = results[i].choices.front().embedding;
    const std::vector<float> rounded(values.begin(), values.end());
    Json entry = {{"object", "embedding"}, {"index", i}};
    if (request.base64) {
      entry["embedding"] =
          encode_base64({reinterpret_cast<const char*>(rounded.data()), rounded.size() * sizeof(float)});
    } else {
      entry["embedding"] = rounded;
    }
    data.push_back(std::move(entry));
    tokens += static_cast<int64_t>(request.inputs[i].prompt.size());
  }
  return {{"object", "list"},
          {"data", std::move(data)},
          {"model", request.model},
          {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
}

}  // namespace teratron
