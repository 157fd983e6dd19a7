// Answers of /v1/completions and /v1/chat/completions: whole, or as server-sent events.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/generate/texts.h"
#include "teratron/serve/api/openai_request.h"
#include "teratron/serve/api/token_logprobs.h"

namespace teratron {

class OpenAiAnswer {
 public:
  /// Both must outlive it.
  OpenAiAnswer(const OpenAiRequest& request, const ServedModel& model);

  nlohmann::ordered_json whole(const std::vector<GenerationResult>& results) const;

  // A stream: begin(), add() for each token, end().
  std::string begin();
  /// Events; may be empty, since texts that may become a stop are held back.
  std::string add(size_t prompt, int64_t choice, const GeneratedToken& token);
  std::string end() const;
  /// In place of end().
  static std::string failed(const nlohmann::ordered_json& error);

 private:
  struct Stream {
    TextStream text;
    TokenLogprobs logprobs;
    std::optional<ToolCallStream> calls;  // if the answer may have some
    int64_t tokens = 0;
  };

  nlohmann::ordered_json head(bool chunk) const;
  nlohmann::ordered_json usage(int64_t completion_tokens) const;
  nlohmann::ordered_json choice_json(size_t prompt, int64_t index, const GeneratedChoice& choice) const;
  nlohmann::ordered_json logprobs_json(size_t prompt, const GeneratedChoice& choice) const;
  TokenLogprobs new_logprobs(size_t prompt) const;
  nlohmann::ordered_json message(const std::string& text, std::string& finish_reason) const;
  std::vector<nlohmann::ordered_json> changes(Stream& stream, const std::string& text, bool ends) const;
  std::string event(int64_t index, const nlohmann::ordered_json& change, const std::string& finish_reason,
                    Stream* stream) const;

  const OpenAiRequest& request_;
  const ServedModel& model_;
  std::string id_;
  int64_t created_;
  std::vector<std::unique_ptr<Stream>> streams_;  // by prompt and choice
};

}  // namespace teratron
