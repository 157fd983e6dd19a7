// One forward of many sequences: what the scheduler asks of the stages, and the tokens that come back.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/generate/logit_edits.h"
#include "teratron/generate/sampling.h"

namespace teratron {

struct RequestImages;

/// Consecutive tokens of one sequence: a chunk of its prompt or its newest token.
struct StepRow {
  int64_t first_token = 0;  // in the step
  int64_t tokens = 0;
  int64_t length = 0;                           // of the sequence, these tokens included
  const std::vector<int32_t>* pages = nullptr;  // of the sequence
  int64_t slot = 0;                             // of the sequence, for what layers keep of it in one place
  // With an encoder:
  const std::vector<int32_t>* source_pages = nullptr;  // of what the sequence attends to
  int64_t source_length = 0;
  const std::vector<int32_t>* source_tokens =
      nullptr;                            // to be encoded in this step, before other rows; or null
  const RequestImages* images = nullptr;  // whose rows are the image tokens of these tokens; null: none
  int64_t first_image_row = 0;            // of them
  int64_t adapter = 0;                    // whose weights are used; 0: the model's
  bool sums = false;                      // the sum of these tokens' last states is wanted
};

/// What follows a token of the step.
struct StepChoice {
  int64_t token = 0;  // index in the step
  RowSampling sampling = {};
  int64_t best = 0;            // > 0: the most probable tokens, this many, instead of one
  RowSampling following = {};  // of the token after it, if the step continues
  LogitEdits edits = {};       // before the token is chosen
};

/// The log probability that token `next` follows a token of the step.
struct StepTarget {
  int64_t token = 0;
  int64_t next = 0;
};

struct StepInput {
  std::vector<int64_t> tokens;
  std::vector<int64_t> positions;
  std::vector<StepRow> rows;        // those of one token first
  std::vector<StepChoice> choices;  // in the order of the rows, at most one for each
  std::vector<StepTarget> targets;  // in the order of the rows
  bool logprobs = false;            // of chosen tokens
  int64_t top = 0;                  // so many of the most probable tokens beside chosen tokens and targets

  /// Each row is one token, and the next step will probably have the same rows, each with the token chosen
  /// here. The step may then be begun before the host knows these tokens.
  bool continues = false;
};

struct StepOutput {
  struct Token {
    int64_t id = 0;
    double logprob = 0.0;
  };
  std::vector<std::vector<Token>> choices;  // the best, or one token and the `top` ones
  std::vector<std::vector<Token>> targets;  // the target and the `top` ones
  std::vector<std::vector<double>> sums;    // of each row that wants one
};

/// Divides the work into about `parts` steps of similar numbers of tokens, in order. Each row with source
/// tokens is a separate step, and a step has rows of one adapter.
std::vector<StepInput> split_step(const StepInput& step, int64_t parts);

}  // namespace teratron
