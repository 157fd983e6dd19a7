#include "teratron/serve/api/megatron_request.h"

#include <algorithm>

#include "teratron/generate/json/request_fields.h"

namespace teratron {

namespace {

using nlohmann::json;

// Fields in Megatron-LM's order, each with its checks; the first that fails is the answer.
class MegatronReader {
 public:
  explicit MegatronReader(const json& body) : body_(body) {}

  /// The field, unless it is null, which counts as absent.
  const json* find(const char* name) const {
    const auto found = body_.find(name);
    return found == body_.end() || found->is_null() ? nullptr : &*found;
  }
  static void check(bool valid, const char* text, int status = 200) {
    if (!valid) throw MegatronError{status, text};
  }
  bool flag(const char* name) const {
    const json* const value = find(name);
    if (value && !value->is_boolean())
      throw MegatronError{200, fmt::format("{} must be a boolean value", name)};
    return value && value->get<bool>();
  }
  /// 0 if it is absent. Python's integers have no limit: those beyond 64 bits count as out of range.
  int64_t integer(const char* name, const char* text) const {
    const json* const value = find(name);
    if (!value) return 0;
    check(value->is_number_integer(), text);
    return RequestFields::is_int64(*value) ? value->get<int64_t>() : std::numeric_limits<int64_t>::max();
  }
  /// JSON integers are not floats there.
  double real(const char* name, const char* text, double otherwise) const {
    const json* const value = find(name);
    if (!value) return otherwise;
    check(value->is_number_float(), text);
    return value->get<double>();
  }

 private:
  const json& body_;
};

std::vector<std::string> read_prompts(const MegatronReader& fields) {
  constexpr size_t most = 128;
  const json* const prompts = fields.find("prompts");
  fields.check(prompts, "prompts argument required", 400);
  fields.check(!fields.find("max_len"), "max_len is no longer used.  Replace with tokens_to_generate", 400);
  fields.check(!fields.find("sentences"), "sentences is no longer used.  Replace with prompts", 400);
  fields.check(prompts->is_array(), "prompts is not a list of strings", 400);
  fields.check(!prompts->empty(), "prompts is empty", 400);
  fields.check(prompts->size() <= most, "Maximum number of prompts is 128", 400);
  fields.check(RequestFields::are_texts(*prompts), "prompts is not a list of strings", 400);
  return prompts->get<std::vector<std::string>>();
}

void read_length(const MegatronReader& fields, GenerationRequest& request) {
  request.max_new_tokens = 64;
  if (fields.find("tokens_to_generate")) {
    request.max_new_tokens =
        fields.integer("tokens_to_generate", "tokens_to_generate must be an integer greater than 0");
    fields.check(request.max_new_tokens >= 0,
                 "tokens_to_generate must be an integer greater than or equal to 0");
  }
  request.logprobs = fields.flag("logprobs");
  fields.check(request.max_new_tokens > 0 || request.logprobs,
               "tokens_to_generate=0 implies logprobs should be True");
}

void read_top_p(const MegatronReader& fields, SamplingOptions& sampling) {
  sampling.top_p = fields.real("top_p", "top_p must be a positive float less than or equal to 1.0", 0.0);
  fields.check(sampling.top_p <= 0.0 || sampling.top_k <= 0, "cannot set both top-k and top-p samplings.");
  fields.check(sampling.top_p >= 0.0 && sampling.top_p <= 1.0, "top_p must be less than or equal to 1.0");
  if (fields.find("top_p_decay")) {
    sampling.top_p_decay =
        fields.real("top_p_decay", "top_p_decay must be a positive float less than or equal to 1.0", 0.0);
    fields.check(sampling.top_p > 0.0, "top_p_decay cannot be set without top_p");
    fields.check(sampling.top_p_decay >= 0.0 && sampling.top_p_decay <= 1.0,
                 "top_p_decay must be less than or equal to 1.0");
  }
  if (!fields.find("top_p_bound")) return;
  sampling.top_p_bound =
      fields.real("top_p_bound", "top_p_bound must be a positive float less than or equal to top_p", 0.0);
  fields.check(sampling.top_p > 0.0, "top_p_bound cannot be set without top_p");
  fields.check(sampling.top_p_bound > 0.0 && sampling.top_p_bound <= sampling.top_p,
               "top_p_bound must be greater than 0 and less than top_p");
}

void read_sampling(const MegatronReader& fields, SamplingOptions& sampling) {
  constexpr const char* positive = "temperature must be a positive number less than or equal to 100.0";
  if (const json* const value = fields.find("temperature")) {
    fields.check(value->is_number(), positive);
    sampling.temperature = value->get<double>();
    fields.check(sampling.temperature > 0.0 && sampling.temperature <= 100.0, positive);
  }
  sampling.top_k = fields.integer(
      "top_k", "top_k must be an integer equal to or greater than 0 and less than or equal to 1000");
  fields.check(sampling.top_k >= 0 && sampling.top_k <= 1000,
               "top_k must be equal to or greater than 0 and less than or equal to 1000");
  read_top_p(fields, sampling);
}

void read_stops(const MegatronReader& fields, GenerationRequest& request) {
  request.stop.on_double_eol = fields.flag("stop_on_double_eol");
  request.stop.on_eol = fields.flag("stop_on_eol");
  request.prevent_newline_after_colon = fields.flag("prevent_newline_after_colon");
}

void read_seed(const MegatronReader& fields, SamplingOptions& sampling) {
  sampling.seed = random_seed();
  const json* const value = fields.find("random_seed");
  if (!value) return;
  const int64_t seed = fields.integer("random_seed", "random_seed must be integer");
  fields.check(seed >= 0, "random_seed must be a positive integer");
  sampling.seed = static_cast<uint64_t>(seed);
}

void read_beams(const MegatronReader& fields, size_t prompts, const ServedModel& model,
                GenerationRequest& request) {
  if (fields.find("beam_width")) {
    request.beams.width = fields.integer("beam_width", "beam_width must be integer");
    fields.check(request.beams.width >= 1, "beam_width must be an integer > 1");
    fields.check(prompts == 1, "When doing beam_search, batch size must be 1");
    request.choices = request.beams.width;
  }
  if (fields.find("stop_token")) {  // of a beam search
    const int64_t token = fields.integer("stop_token", "stop_token must be an integer");
    const bool is_id = token >= 0 && token < model.limits.vocabulary;
    if (request.beams.width > 0) request.stop.tokens.assign(is_id ? 1 : 0, static_cast<int32_t>(token));
  }
  request.beams.length_penalty = fields.real("length_penalty", "length_penalty must be a float", 1.0);
}

void check_length(const MegatronRequest& request, const ServedModel& model) {
  int64_t longest = 0;
  for (const GenerationRequest& each : request.prompts)
    longest = std::max(longest, static_cast<int64_t>(each.prompt.size()));
  const GenerationRequest& first = request.prompts.front();
  const int64_t positions = model.limits.max_positions;
  if (first.beams.width > 0) {
    if (longest >= positions || first.max_new_tokens == 0)
      throw MegatronError{200, "context length + tokens_to_generate too large"};
    return;
  }
  if (longest > positions || first.max_new_tokens > positions - longest)
    throw MegatronError{200, "Length of prompt + tokens_to_generate longer than allowed"};
  const int64_t all = static_cast<int64_t>(request.prompts.size()) * (longest + first.max_new_tokens);
  if (model.max_request_tokens > 0 && all > model.max_request_tokens) {
    throw MegatronError{
        200, fmt::format("Too many tokens.  {} is greater than {}", all, model.max_request_tokens)};
  }
}

}  // namespace

MegatronRequest parse_megatron(const json& body, const ServedModel& model) {
  const MegatronReader fields(body);
  const std::vector<std::string> prompts = read_prompts(fields);
  GenerationRequest common;
  common.stop.tokens = model.end_tokens;
  read_length(fields, common);
  read_sampling(fields, common.sampling);
  const bool add_bos = fields.flag("add_BOS");
  const bool any_empty = std::find(prompts.begin(), prompts.end(), "") != prompts.end();
  fields.check(!any_empty || add_bos, "Empty prompts require add_BOS=true");
  read_stops(fields, common);
  read_seed(fields, common.sampling);
  MegatronRequest request{.prompts = {}, .logs = !fields.flag("no_log")};
  read_beams(fields, prompts.size(), model, common);
  if (add_bos && model.document_end < 0)
    throw MegatronError{200, "add_BOS needs a tokenizer with an end-of-document token"};
  for (const std::string& prompt : prompts) {
    GenerationRequest& each = request.prompts.emplace_back(common);
    if (add_bos) each.prompt.push_back(model.document_end);
    model.tokenizer.encode(prompt, each.prompt);
    if (!fields.find("random_seed")) common.sequence += 1;
  }
  check_length(request, model);
  return request;
}

namespace {

void add_text(const std::vector<int32_t>& tokens, const ServedModel& model, nlohmann::ordered_json& answer) {
  answer["text"].push_back(model.tokenizer.decode(tokens));
  nlohmann::ordered_json segments = nlohmann::ordered_json::array();
  for (const int32_t token : tokens) segments.push_back(model.tokenizer.decode({&token, 1}));
  answer["segments"].push_back(std::move(segments));
}

}  // namespace

nlohmann::ordered_json megatron_answer(const MegatronRequest& request,
                                       const std::vector<GenerationResult>& results,
                                       const ServedModel& model) {
  const bool beams = request.prompts.front().beams.width > 0;
  const bool logprobs = request.prompts.front().logprobs;
  nlohmann::ordered_json answer = {{"text", nlohmann::ordered_json::array()},
                                   {"segments", nlohmann::ordered_json::array()}};
  nlohmann::ordered_json values = nlohmann::ordered_json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    for (const GeneratedChoice& choice : results[i].choices) {
      std::vector<int32_t> tokens = request.prompts[i].prompt;
      tokens.insert(tokens.end(), choice.tokens.begin(), choice.tokens.end());
      add_text(tokens, model, answer);
      if (beams) {
        values.push_back(choice.score);
      } else {
        values.push_back(choice.logprobs);
      }
    }
  }
  if (beams) {
    answer["scores"] = std::move(values);
  } else {
    answer["logprobs"] = logprobs ? std::move(values) : nlohmann::ordered_json();
  }
  return answer;
}

}  // namespace teratron
