#include "teratron/serve/api/openai_sampling.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace teratron {

namespace {

using nlohmann::json;

// {"50256": -100}
void read_logit_bias(const json& value, const ServedModel& model, RequestFields& fields,
                     SamplingOptions& sampling) {
  for (const auto& [text, bias] : value.items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    const bool is_id =
        error == std::errc() && end == text.data() + text.size() && id >= 0 && id < model.limits.vocabulary;
    if (!is_id || !bias.is_number() || std::abs(bias.get<double>()) > 100.0) {
      return fields.problem("logit_bias",
                            fmt::format("logit_bias has '{}': {}", printable(text, 40), bias.dump()),
                            "Write ids of tokens and numbers from -100 to 100");
    }
    sampling.logit_bias.emplace_back(id, bias.get<double>());
  }
}

void read_penalties(RequestFields& fields, const ServedModel& model, SamplingOptions& sampling) {
  fields.real("min_p", sampling.min_p);
  fields.real("presence_penalty", sampling.presence_penalty);
  fields.real("frequency_penalty", sampling.frequency_penalty);
  fields.real("repetition_penalty", sampling.repetition_penalty);
  fields.read<json>(
      "logit_bias", "an object of token ids and numbers", [](const json& v) { return v.is_object(); },
      [&](const json& v) { read_logit_bias(v, model, fields, sampling); });
}

}  // namespace

bool read_openai_sampling(RequestFields& fields, const ServedModel& model, GenerationRequest& request) {
  SamplingOptions& sampling = request.sampling;
  sampling = model.sampling;
  sampling.seed = random_seed();
  sampling.joins_filters = true;
  if (sampling.top_p == 0.0) sampling.top_p = 1.0;
  read_penalties(fields, model, sampling);
  fields.real("temperature", sampling.temperature);
  fields.integer("top_k", [&](int64_t v) { sampling.top_k = v; });
  fields.real("top_p", sampling.top_p);
  bool has_seed = false;
  fields.integer("seed", [&](int64_t v) {
    has_seed = v != -1;  // vLLM's for a random one
    if (has_seed) sampling.seed = static_cast<uint64_t>(v);
  });
  if (sampling.top_k < -1)
    fields.problem("top_k", fmt::format("top_k = {} is below -1", sampling.top_k), "Use -1 for all tokens");
  if (sampling.top_p <= 0.0 || sampling.top_p > 1.0)
    fields.problem("top_p", fmt::format("top_p = {} is not in (0, 1]", sampling.top_p),
                   "Use 1 for all tokens");
  if (sampling.temperature < 0.0 || sampling.temperature > 100.0) {
    fields.problem("temperature", fmt::format("temperature = {} is not in [0, 100]", sampling.temperature),
                   "Use 1, less for more probable texts");
  }
  sampling.top_k = std::max<int64_t>(sampling.top_k, 0);
  if (sampling.top_p == 1.0) sampling.top_p = 0.0;
  if (sampling.temperature == 0.0) {
    sampling.temperature = 1.0;
    sampling.top_k = 1;
  }
  if (sampling.top_k == 1) sampling.top_p = 0.0;  // the most probable token always stays
  return has_seed;
}

}  // namespace teratron
