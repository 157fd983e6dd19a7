#include "teratron/tasks/training_texts.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/comm/consensus.h"
#include "teratron/generate/texts.h"
#include "teratron/tasks/live_model.h"

namespace teratron {

namespace {

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

std::vector<Prompt> prompts_of(const nlohmann::json& requests, const Trainer& trainer,
                               const LiveModel& model) {
  RequestReader reader = model.reader();
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string where = fmt::format("{}: prompt {}", *trainer.args().generate_prompts, i + 1);
    Prompt prompt{.request = request_from_json(requests[i], reader, where)};
    reader.defaults.sequence += static_cast<uint64_t>(std::max<int64_t>(prompt.request.choices, 1));
    prompt.text = requests[i].contains("prompt") ? std::string(requests[i]["prompt"])
                                                 : reader.tokenizer->decode(prompt.request.prompt);
    std::vector<Problem> problems = request_problems(prompt.request, model.limits());
    for (Problem& problem : problems) problem.where = where + ", " + problem.where;
    if (!problems.empty()) throw UserError(ExitCode::data, std::move(problems));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

class TrainingTexts {
 public:
  TrainingTexts(Trainer& trainer, const nlohmann::json& requests)
      : trainer_(trainer), model_(trainer), prompts_(prompts_of(requests, trainer, model_)) {}

  std::vector<SampleText> generate() {
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
  std::vector<SampleText> texts() {
    std::vector<GenerationRequest> requests;
    for (const Prompt& prompt : prompts_) requests.push_back(prompt.request);
    const std::vector<GenerationResult> results = model_.answers(requests);
    std::vector<SampleText> all;
    for (size_t i = 0; i < results.size(); ++i) {
      for (const GeneratedChoice& choice : results[i].choices) {
        all.push_back({.iteration = trainer_.state().iteration,
                       .prompt = prompts_[i].text,
                       .text = answer_text(trainer_.tokenizer(), requests[i], choice)});
      }
    }
    return all;
  }

  Trainer& trainer_;
  LiveModel model_;
  std::vector<Prompt> prompts_;
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
