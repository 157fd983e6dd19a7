// Bodies of requests to the server, and of `teratron generate --input`. What is accepted is answered.
#include <cstdint>
#include <string>

#include "teratron/base/error.h"
#include "teratron/generate/grammar/grammar_states.h"
#include "teratron/generate/json/request_json.h"
#include "teratron/serve/api/api_error.h"
#include "teratron/serve/api/embeddings.h"
#include "teratron/serve/api/megatron_request.h"
#include "teratron/serve/api/openai_answer.h"
#include "teratron/tokenizer/bpe/bytes_to_unicode.h"
#include "teratron/tokenizer/bpe/gpt2_tokenizer.h"

namespace {

using namespace teratron;

BpeConfig only_bytes() {
  BpeConfig spec;
  const auto add = [&](const std::string& token) {
    spec.vocab.emplace_back(token, static_cast<int32_t>(spec.vocab.size()));
  };
  for (int byte = 0; byte < 256; ++byte) add(byte_encode(std::string(1, static_cast<char>(byte))));
  add("<|endoftext|>");
  return spec;
}

struct Setup {
  Gpt2BpeTokenizer tokenizer{only_bytes(), true};
  ServedModel model{.tokenizer = tokenizer,
                    .name = "m",
                    .limits = {.vocabulary = 257,
                               .max_positions = 256,
                               .max_rows = 8,
                               .max_tokens = 4096,
                               .has_tokenizer = true},
                    .document_end = 256,
                    .max_request_tokens = 1000,
                    .max_prompts = 8};
  ChatTemplate chat = ChatTemplate::of_jinja(
      "{{ tools | tojson }}{% for m in messages %}{{ m.role ~ m.content ~ (m.tool_calls | default([]) | "
      "tojson) }}"
      "{% endfor %}",
      "fuzz");
};

// What an engine would give: the first tokens of the vocabulary.
std::vector<GenerationResult> results_of(const std::vector<GenerationRequest>& requests) {
  std::vector<GenerationResult> results;
  for (const GenerationRequest& request : requests) {
    GenerationResult& result = results.emplace_back();
    for (int64_t i = 0; i < std::max<int64_t>(1, std::min<int64_t>(request.choices, 4)); ++i) {
      GeneratedChoice& choice = result.choices.emplace_back();
      const int64_t count = std::clamp<int64_t>(request.max_new_tokens, 0, 8);
      for (int64_t t = 0; t < count; ++t) choice.tokens.push_back(static_cast<int32_t>(200 + t));
      choice.finish_reason = "length";
      if (request.logprobs) choice.logprobs.assign(request.prompt.size() + count - 1, -1.0);
    }
  }
  return results;
}

bool is_valid(const std::vector<GenerationRequest>& requests, const ServedModel& model) {
  for (const GenerationRequest& request : requests) {
    if (!request_problems(request, model.limits).empty()) return false;
  }
  return !requests.empty();
}

void answer(const OpenAiRequest& request, const ServedModel& model) {
  if (!is_valid(request.prompts, model)) return;
  const std::vector<GenerationResult> results = results_of(request.prompts);
  OpenAiAnswer answer(request, model);
  dump_line(answer.whole(results));
  if (total_tokens(request.prompts) > 1000) return;
  std::string events = answer.begin();
  for (size_t prompt = 0; prompt < results.size(); ++prompt) {
    for (const int32_t token : results[prompt].choices.front().tokens)
      events += answer.add(
          prompt, 0, {.id = token, .logprob = -1.0, .top = {{token, -1.0}, {65, -2.0}}, .finish_reason = {}});
  }
  events += answer.end();
}

// A grammar accepts its own shortest texts; texts are never understood in another way for being cut.
void read_other(uint8_t kind, const std::string& body, const Setup& setup) {
  if (kind == 252) {
    const EmbeddingsRequest request = parse_embeddings(RequestBody(body), setup.model);
    std::vector<GenerationResult> results = results_of(request.inputs);
    for (GenerationResult& result : results) result.choices.front().embedding = {1.0, -0.5};
    dump_line(embeddings_answer(request, results));
  } else if (kind == 253) {
    const RequestBody parsed(body);
    const AnswerGrammar made =
        answer_grammar({.one_of = {{.schema = parsed.fields().dump(), .where = "schema"}}});
    GrammarStates states(made.grammar, made.root);
    int32_t state = states.start();
    for (int step = 0; step < 200 && !states.may_end(state); ++step) {
      int32_t next = GrammarStates::none;
      for (int byte = 255; byte >= 0 && next == GrammarStates::none; --byte)
        next = states.next(state, static_cast<uint8_t>(byte));
      TERATRON_ASSERT(next != GrammarStates::none, "a text that is not complete can go on");
      state = next;
    }
  } else {
    ToolCallStream whole({.functions = {"f"}}), cut({.functions = {"f"}});
    whole.add(body);
    whole.finish();
    for (const char byte : body) cut.add(std::string(1, byte));
    cut.finish();
    TERATRON_ASSERT(whole.calls() == cut.calls(), "{} and {} calls", whole.calls(), cut.calls());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Setup setup;
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] >= 252) {
      read_other(data[0], body, setup);
      return 0;
    }
    const nlohmann::json value = parse_body(body);
    if (data[0] % 4 == 0) {
      const MegatronRequest request = parse_megatron(value, setup.model);
      if (is_valid(request.prompts, setup.model))
        dump_line(megatron_answer(request, results_of(request.prompts), setup.model));
    } else if (data[0] % 4 == 1) {
      answer(parse_completion(value, setup.model), setup.model);
    } else if (data[0] % 4 == 2) {
      answer(parse_chat(RequestBody(body), setup.model, setup.chat), setup.model);
    } else {
      request_from_json(value, {.tokenizer = &setup.tokenizer, .document_end = 256}, "line 1");
    }
  } catch (const ApiError&) {
  } catch (const MegatronError&) {
  } catch (const UserError&) {
  }
  return 0;
}
