#include "teratron/tasks/training_texts.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/comm/consensus.h"
#include "teratron/generate/engine.h"
#include "teratron/generate/json/request_json.h"
#include "teratron/generate/texts.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/end_tokens.h"

namespace teratron {

namespace {

constexpr int64_t max_texts_at_once = 16;

struct Prompt {
  std::string text;
  GenerationRequest request;
};

// The lines of the file, as JSON requests.
std::vector<nlohmann::json> read_requests(const std::string& path) {
  std::ifstream file = open_text(path, ExitCode::config);
  const bool is_json = std::filesystem::path(path).extension() == ".jsonl";
  std::vector<nlohmann::json> requests;
  int64_t number = 0;
  for (std::string line; next_line(file, line, path);) {
    ++number;
    if (line.empty()) continue;
    nlohmann::json request = {{"prompt", line}};
    if (is_json) request = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (request.is_discarded()) {
      throw data_error({.what = "the line is not JSON",
                        .where = fmt::format("{}:{}", path, number),
                        .fix = "Write {\"prompt\": ...} on each line"});
    }
    requests.push_back(std::move(request));
  }
  if (requests.empty()) {
    throw config_error({.what = "there is no prompt in the file",
                        .where = "--generate-prompts " + path,
                        .fix = "Write one per line"});
  }
  return requests;
}

std::vector<Prompt> prompts_of(const nlohmann::json& requests, const Trainer& trainer) {
  const Tokenizer& tokenizer = trainer.tokenizer();
  RequestReader reader{.tokenizer = &tokenizer, .document_end = tokenizer.special().eod.value_or(-1)};
  reader.defaults.sampling.seed = static_cast<uint64_t>(trainer.args().seed);
  reader.defaults.stop.tokens = end_tokens(tokenizer_options(trainer.args()), tokenizer);
  if (trainer.model().source) {
    const int32_t end = use_encoder_rules(reader, /*configured=*/{});  // as training samples begin
    if (end >= 0) add_end(end, reader.defaults.stop.tokens);
  }
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string where = fmt::format("{}: prompt {}", *trainer.args().generate_prompts, i + 1);
    Prompt prompt{.request = request_from_json(requests[i], reader, where)};
    reader.defaults.sequence += static_cast<uint64_t>(std::max<int64_t>(prompt.request.choices, 1));
    prompt.text = requests[i].contains("prompt") ? std::string(requests[i]["prompt"])
                                                 : tokenizer.decode(prompt.request.prompt);
    const RequestLimits limits{.vocabulary = trainer.model().vocabulary,
                               .max_positions = trainer.model().max_positions,
                               .max_rows = most_request_rows,
                               .max_tokens = std::numeric_limits<int64_t>::max(),
                               .has_tokenizer = true,
                               .has_source = trainer.model().source.has_value()};
    std::vector<Problem> problems = request_problems(prompt.request, limits);
    for (Problem& problem : problems) problem.where = where + ", " + problem.where;
    if (!problems.empty()) throw UserError(ExitCode::data, std::move(problems));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Replicas that share experts generate in step.
InferenceRanks ranks_of(const Trainer& trainer) {
  const Mesh& mesh = trainer.mesh();
  const Group& stages = mesh.group(Axis::pp);
  const bool shared = mesh.group(Axis::tp).size % mesh.group({Axis::etp, Axis::ep}).size != 0;
  return {.tensor_parallel = mesh.group(Axis::tp),
          .pipeline = {.chunks = trainer.engine().options().parallel.pipeline.chunks_of_stage(stages.rank),
                       .group = stages,
                       .links = mesh.pipeline_links()},
          .mesh = mesh,
          .copies = shared ? mesh.replicas() : Group()};
}

class TrainingTexts {
 public:
  TrainingTexts(Trainer& trainer, const nlohmann::json& requests)
      : trainer_(trainer),
        ranks_(*trainer.mesh().world().communicator),
        prompts_(prompts_of(requests, trainer)),
        parameters_({.dtype = trainer.engine().options().precision.dtype,
                     .device = trainer.device(),
                     .seed = 0,
                     .aliases = true}),
        model_(language_model(trainer.model(), parameters_, ranks_of(trainer))) {
    parameters_.alias(trainer.engine().parameters());
  }

  std::vector<SampleText> generate() {
    trainer_.engine().buffers().finish_param_gather();
    try {
      return texts();
    } catch (const Fault& fault) {  // thrown on all ranks
      if (fault.exit_code() != ExitCode::out_of_memory) throw;
      if (trainer_.is_first_rank())
        warn("{}; no texts are generated after iteration {}", fault.what(), trainer_.state().iteration);
      return {};
    }
  }

 private:
  // One engine for each time: between them it holds no memory.
  std::vector<SampleText> texts() {
    int64_t longest = 1, longest_source = 1, rows = 0, widest = 1;
    for (const Prompt& prompt : prompts_) {
      const GenerationRequest& request = prompt.request;
      const auto length = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
      longest = std::max(longest, length);
      longest_source = std::max(longest_source, static_cast<int64_t>(request.source.size()));
      rows += std::max(request.choices, request.beams.width);
      widest = std::max({widest, request.choices, request.beams.width});
    }
    const Tokenizer& tokenizer = trainer_.tokenizer();
    Engine engine(model_,
                  {.tokenizer = &tokenizer,
                   .newlines = newline_tokens(tokenizer),
                   .max_rows = std::max(widest, std::min(rows, max_texts_at_once)),
                   .longest = longest,
                   .longest_source = longest_source},
                  ranks_);
    std::map<int64_t, const Prompt*> prompt_of;
    for (const Prompt& prompt : prompts_) prompt_of[engine.submit(prompt.request)] = &prompt;
    while (engine.step()) {
    }
    std::map<int64_t, std::vector<SampleText>> of_id;
    for (const GenerationResult& result : engine.take_results()) {
      const Prompt& prompt = *prompt_of.at(result.id);
      for (const GeneratedChoice& choice : result.choices) {
        of_id[result.id].push_back({.iteration = trainer_.state().iteration,
                                    .prompt = prompt.text,
                                    .text = answer_text(tokenizer, prompt.request, choice)});
      }
    }
    std::vector<SampleText> all;
    for (auto& [id, samples] : of_id) std::move(samples.begin(), samples.end(), std::back_inserter(all));
    return all;
  }

  Trainer& trainer_;
  HostGroup& ranks_;
  std::vector<Prompt> prompts_;
  ParameterSet parameters_;
  LanguageModel model_;
};

// Rank 0's result of `read`, or its error, on all ranks.
nlohmann::json read_on_first_rank(const Trainer& trainer, const std::string& path) {
  nlohmann::json found;
  std::optional<UserError> error;
  if (trainer.is_first_rank()) {
    try {
      found["requests"] = read_requests(path);
    } catch (const UserError& problem) {
      error = problem;
    }
  }
  found = nlohmann::json::parse(broadcast_bytes(*trainer.mesh().world().communicator, found.dump()));
  if (error) throw *error;
  if (!found.contains("requests")) {
    throw config_error({.what = "rank 0 cannot read the prompts",
                        .where = "--generate-prompts " + path,
                        .fix = "See its message"});
  }
  return found["requests"];
}

}  // namespace

TextSampler make_text_sampler(Trainer& trainer) {
  if (!trainer.family().generates) {
    throw config_error({.what = "models of this family do not generate text",
                        .where = "--generate-interval",
                        .fix = "Leave it out"});
  }
  const nlohmann::json requests = read_on_first_rank(trainer, *trainer.args().generate_prompts);
  const auto texts = std::make_shared<TrainingTexts>(trainer, requests);
  return [texts] { return texts->generate(); };
}

}  // namespace teratron
