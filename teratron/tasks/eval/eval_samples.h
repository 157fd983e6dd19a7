// Samples of `teratron eval`: JSON lines, and the requests to a model that they become.
//
//   {"context": ..., "continuation": ...}              log likelihood of the continuation
//   {"context": ..., "choices": [...], "answer": ...}  the choice with the largest one; the answer is its
//                                                      number from 0, or its text
//   {"prompt": ..., "answer": ..., "match": ...}       generated, compared with the answer or one of a list
//                                                      of answers (answer_match.h; default exact); and any
//                                                      option of generation (json/request_json.h)
//
// A line may have "id", any value, and "delimiter", a text between context and continuation that belongs to
// the continuation but not to the length of a choice. Other fields have no effect.
//
// Tokens are those of lm-evaluation-harness. Blanks at the end of a context belong to the continuation.
// Context and continuation are tokenized together; the continuation's tokens are those after the context's.
// A text without context follows the first of the tokenizer's bos, end of document and eos. What does not
// fit into the model's positions loses its beginning. A model with an encoder reads the context as its
// source.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/generate/json/request_json.h"
#include "teratron/tasks/eval/answer_match.h"

namespace teratron {

struct EvalSample {
  int64_t line = 0;
  nlohmann::json id = {};  // null: none
  size_t first_request = 0;
  size_t requests = 1;  // of each choice
  std::vector<std::string> choices = {};
  size_t answer = 0;                      // of the choices
  std::optional<AnswerMatch> match = {};  // of a generated text
  nlohmann::json expected = {};           // "answer" as it stands
};

struct EvalData {
  std::vector<EvalSample> samples;
  std::vector<GenerationRequest> requests;
  int64_t truncated = 0;          // requests that lost their beginning
  std::set<std::string> ignored;  // fields without effect
  uint64_t sequences = 0;         // of the random numbers that the requests take
};

struct EvalReader {
  const RequestReader& requests;  // with a tokenizer; its defaults are those of generated texts
  RequestLimits limits;
};

/// UserError(data) with file:line for each line with an error.
EvalData read_eval_data(const std::string& path, const EvalReader& reader);

/// The request for the log likelihood of a continuation; `truncated` is increased if it lost its beginning.
/// UserError(data) at `where` if the continuation has no tokens, or more than the model has positions.
struct ContinuationTexts {
  std::string context, continuation;
};
GenerationRequest continuation_request(const ContinuationTexts& texts, const EvalReader& reader,
                                       const std::string& where, int64_t& truncated);

}  // namespace teratron
