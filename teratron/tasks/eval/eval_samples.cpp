#include "teratron/tasks/eval/eval_samples.h"

#include <algorithm>

#include "teratron/base/json.h"
#include "teratron/base/text_lines.h"
#include "teratron/generate/json/request_fields.h"
#include "teratron/tasks/text/python_text.h"

namespace teratron {

namespace {

using nlohmann::json;

const std::set<std::string> option_fields = {"max_new_tokens",
                                             "temperature",
                                             "top_k",
                                             "top_p",
                                             "top_p_decay",
                                             "top_p_bound",
                                             "num_beams",
                                             "seed",
                                             "random_seed",
                                             "stop",
                                             "length_penalty",
                                             "stop_token",
                                             "add_BOS",
                                             "stop_on_eol",
                                             "tokens",
                                             "encoder_tokens",
                                             "stop_on_double_eol",
                                             "prevent_newline_after_colon"};

constexpr const char* forms =
    "Write {context, continuation}, {context, choices, answer} or {prompt, answer, match}";

// Reads the samples of one line.
class LineReader {
 public:
  LineReader(const json& value, const EvalReader& reader, std::string where, EvalData& data)
      : value_(value), reader_(reader), where_(std::move(where)), data_(data) {}

  void read(int64_t line) {
    if (!value_.is_object()) throw data_error({"the line is not a JSON object", where_, forms});
    EvalSample sample{.line = line, .id = value_.value("id", json()), .first_request = data_.requests.size()};
    known_ = {"id"};
    if (value_.contains("choices")) {
      read_choices(sample);
    } else if (value_.contains("continuation")) {
      known_.insert({"context", "continuation", "delimiter"});
      add_continuation(text("context"), text("continuation"));
    } else if (value_.contains("prompt") || value_.contains("tokens") || value_.contains("encoder_tokens")) {
      read_generated(sample);
    } else {
      throw data_error({"the line has neither continuation, choices nor prompt", where_, forms});
    }
    for (const auto& [name, unused] : value_.items()) {
      if (!known_.contains(name)) data_.ignored.insert(name);
    }
    data_.samples.push_back(std::move(sample));
  }

 private:
  [[noreturn]] void reject(std::string what, std::string fix) const {
    throw data_error({std::move(what), where_, std::move(fix)});
  }

  std::string text(const char* name) const {
    const auto found = value_.find(name);
    if (found == value_.end()) reject(fmt::format("the line has no {}", name), "Add it");
    if (!found->is_string()) reject(fmt::format("{} is not a text", name), "Write a text");
    return *found;
  }

  void add_continuation(const std::string& context, const std::string& continuation) {
    const std::string delimiter = value_.contains("delimiter") ? text("delimiter") : "";
    data_.requests.push_back(
        continuation_request({context, delimiter + continuation}, reader_, where_, data_.truncated));
  }

  void read_choices(EvalSample& sample) {
    known_.insert({"context", "choices", "answer", "delimiter"});
    const json& choices = value_["choices"];
    if (!RequestFields::are_texts(choices) || choices.size() < 2)
      reject("choices is not a list of two texts or more", "Write the texts to choose from");
    sample.choices = choices.get<std::vector<std::string>>();
    sample.requests = sample.choices.size();
    sample.answer = answer_of(sample.choices);
    sample.expected = sample.answer;
    const std::string context = text("context");
    for (const std::string& choice : sample.choices) {
      if (choice.empty()) reject("a choice is empty", "Write its text, or leave it out");
      add_continuation(context, choice);
    }
  }

  size_t answer_of(const std::vector<std::string>& choices) const {
    const auto found = value_.find("answer");
    if (found == value_.end()) reject("the line has no answer", "Add the number of the right choice, from 0");
    if (found->is_number_integer()) {
      const auto number = found->get<int64_t>();
      if (number >= 0 && number < static_cast<int64_t>(choices.size())) return static_cast<size_t>(number);
      reject(fmt::format("answer {} is not one of the {} choices", found->dump(), choices.size()),
             "Write its number, from 0");
    }
    const auto text = found->is_string() ? std::find(choices.begin(), choices.end(), *found) : choices.end();
    if (text == choices.end())
      reject(fmt::format("answer {} is not one of the choices", printable(found->dump(), 60)),
             "Write the number of the right choice, from 0, or its text");
    return static_cast<size_t>(text - choices.begin());
  }

  void read_generated(EvalSample& sample) {
    known_.insert({"prompt", "answer", "match"});
    const auto answer = value_.find("answer");
    if (answer == value_.end()) reject("the line has no answer", "Add it");
    sample.expected = *answer;
    std::vector<std::string> answers;
    if (answer->is_string() || answer->is_number()) {
      answers = {answer->is_string() ? answer->get<std::string>() : answer->dump()};
    } else if (RequestFields::are_texts(*answer) && !answer->empty()) {
      answers = answer->get<std::vector<std::string>>();
    } else {
      reject("answer is not a text, a number or a list of texts", "Write one of them");
    }
    const std::string rule = value_.contains("match") ? text("match") : "exact";
    if (!match_rule(rule))
      reject(fmt::format("match {} is unknown", printable(rule, 40)), "Use exact, prefix, regex or number");
    sample.match.emplace(*match_rule(rule), std::move(answers), where_);
    add_generated();
  }

  void add_generated() {
    json fields = json::object();
    for (const auto& [name, value] : value_.items()) {
      if (name != "prompt" && !option_fields.contains(name)) continue;
      known_.insert(name);
      fields[name] = value;
    }
    RequestReader requests = reader_.requests;
    // Sampling is asked for by any of its options.
    for (const char* name : {"temperature", "top_k", "top_p", "num_beams"})
      if (fields.contains(name)) requests.defaults.sampling.top_k = 0;
    requests.defaults.sequence = data_.sequences;
    GenerationRequest request = request_from_json(fields, requests, where_);
    data_.sequences += static_cast<uint64_t>(std::max<int64_t>(request.choices, 1));
    shorten(request);
    data_.requests.push_back(std::move(request));
  }

  // As lm-evaluation-harness: the prompt and all new tokens fit.
  void shorten(GenerationRequest& request) {
    const int64_t positions = reader_.limits.max_positions;
    const bool fits = request.max_new_tokens < positions;
    const int64_t longest = fits ? positions - request.max_new_tokens : std::max<int64_t>(1, positions / 2);
    std::vector<int32_t>& tokens = reader_.limits.has_source ? request.source : request.prompt;
    const int64_t more =
        static_cast<int64_t>(tokens.size()) - (reader_.limits.has_source ? positions : longest);
    if (more <= 0) return;
    tokens.erase(tokens.begin(), tokens.begin() + more);
    data_.truncated += 1;
  }

  const json& value_;
  const EvalReader& reader_;
  std::string where_;
  EvalData& data_;
  std::set<std::string> known_;
};

std::vector<int32_t> encoded(const EvalReader& reader, const std::string& text) {
  std::vector<int32_t> ids;
  if (reader.requests.add_bos && reader.requests.document_end >= 0)
    ids.push_back(reader.requests.document_end);
  reader.requests.tokenizer->encode(text, ids);
  return ids;
}

// What a text without context follows.
std::vector<int32_t> beginning(const Tokenizer& tokenizer, const std::string& where) {
  const SpecialTokens& special = tokenizer.special();
  for (const auto& id : {special.bos, special.eod, special.eos})
    if (id) return {*id};
  throw data_error({"the context is empty, and the tokenizer has no token with which a text begins", where,
                    "Write a context"});
}

void check_lengths(int64_t continuation, const EvalReader& reader, const std::string& where) {
  if (continuation < 1)
    throw data_error(
        {"the continuation has no tokens after those of the context", where, "Write a longer one"});
  if (continuation > reader.limits.max_positions) {
    throw data_error({fmt::format("the continuation has {} tokens and the model {} positions", continuation,
                                  reader.limits.max_positions),
                      where, "Write a shorter one"});
  }
}

// Appends the tokens of a text without those that the tokenizer adds to every text, as lm-evaluation-harness.
void append_bare(const Tokenizer& tokenizer, const std::string& text, std::vector<int32_t>& ids) {
  std::vector<int32_t> added;
  tokenizer.encode("", added);
  tokenizer.encode(text, ids);
  const bool ends = ids.size() >= added.size() && std::equal(added.rbegin(), added.rend(), ids.rbegin());
  if (ends) ids.resize(ids.size() - added.size());
}

GenerationRequest decoder_request(const ContinuationTexts& texts, const EvalReader& reader,
                                  const std::string& where, int64_t& truncated) {
  GenerationRequest request;
  set_prompt(reader.requests, encoded(reader, texts.context), request);
  request.logprobs_from = static_cast<int64_t>(request.prompt.size());
  if (request.logprobs_from == 0)
    throw data_error(
        {"the tokenizer has no token with which the decoder begins", where, "Use another tokenizer"});
  append_bare(*reader.requests.tokenizer, texts.continuation, request.prompt);
  check_lengths(static_cast<int64_t>(request.prompt.size()) - request.logprobs_from, reader, where);
  std::vector<int32_t>& source = request.source;
  const int64_t more = static_cast<int64_t>(source.size()) - reader.limits.max_positions;
  if (more > 0) source.erase(source.begin(), source.begin() + more);
  truncated += more > 0 ? 1 : 0;
  return request;
}

}  // namespace

GenerationRequest continuation_request(const ContinuationTexts& texts, const EvalReader& reader,
                                       const std::string& where, int64_t& truncated) {
  GenerationRequest request;
  if (reader.limits.has_source) {
    request = decoder_request(texts, reader, where, truncated);
  } else {
    const std::string context(right_stripped(texts.context));
    const std::vector<int32_t> before = encoded(reader, context);
    request.prompt = encoded(reader, texts.context + texts.continuation);
    auto first = static_cast<int64_t>(std::min(before.size(), request.prompt.size()));
    check_lengths(static_cast<int64_t>(request.prompt.size()) - first, reader, where);
    if (first == 0) {
      const std::vector<int32_t> start = beginning(*reader.requests.tokenizer, where);
      request.prompt.insert(request.prompt.begin(), start.begin(), start.end());
      first = 1;
    }
    const int64_t more = static_cast<int64_t>(request.prompt.size()) - (reader.limits.max_positions + 1);
    if (more > 0) request.prompt.erase(request.prompt.begin(), request.prompt.begin() + more);
    request.logprobs_from = more > 0 ? first - more : first;
    truncated += more > 0 ? 1 : 0;
  }
  request.max_new_tokens = 0;
  request.logprobs = true;
  request.top_logprobs = 1;
  return request;
}

EvalData read_eval_data(const std::string& path, const EvalReader& reader) {
  EvalData data;
  std::vector<Problem> problems;
  std::ifstream file = open_text(path, ExitCode::data);
  int64_t number = 0;
  for (std::string line; next_line(file, line, path);) {
    ++number;
    if (stripped(line).empty()) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const size_t requests = data.requests.size();
    try {
      const json value = parse_json(line, {.where = where, .kind = ExitCode::data});
      LineReader(value, reader, where, data).read(number);
      for (size_t i = requests; i < data.requests.size(); ++i) {
        for (Problem& problem : request_problems(data.requests[i], reader.limits))
          problems.push_back({problem.what, where, problem.fix});
      }
    } catch (const UserError& error) {
      for (Problem problem : error.problems()) {
        // The tokenizer's do not know the line.
        if (!problem.where.starts_with(path)) problem.where = fmt::format("{}: {}", where, problem.where);
        problems.push_back(std::move(problem));
      }
    }
  }
  if (data.samples.empty() && problems.empty()) problems.push_back({"the file has no samples", path, forms});
  if (!problems.empty()) throw UserError(ExitCode::data, std::move(problems));
  return data;
}

}  // namespace teratron
