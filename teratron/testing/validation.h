// Helpers for tests of validate_arguments(): a small valid configuration, and the check that a combination is
// rejected.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "teratron/base/strings.h"
#include "teratron/settings/arguments.h"

namespace teratron {

using Args = std::vector<std::string>;

inline const Args small = split(
    "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 32 --micro-batch-size 2 "
    "--train-iters 10 "
    "--lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 100");

inline const Program gpt_training = {.names = {"gpt", "training"}};

/// `small` and further flags, validated.
inline ParsedArguments validated(const Args& more, int64_t world_size = 1) {
  Args args = small;
  args.insert(args.end(), more.begin(), more.end());
  ParsedArguments parsed = parse_arguments(gpt_training, args, {.refuse_planned = false});
  validate_arguments(parsed, world_size);
  return parsed;
}

inline bool noted(const ParsedArguments& parsed, const std::string& text) {
  return std::any_of(parsed.notices.begin(), parsed.notices.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

/// Flags with blanks between them, or a list.
struct FlagList : Args {
  FlagList(const char* text) : Args(split(text)) {}
  FlagList(std::initializer_list<std::string> flags) : Args(flags) {}
};

/// Flags in addition to `small`, and a problem that must be reported.
struct BadCombination {
  FlagList flags;
  int64_t world_size;
  const char* where;
  const char* what;
  const char* fix = "";
};

/// `first`: flags before those of the row.
inline void expect_rejected(const BadCombination& bad, Args first = {}) {
  first.insert(first.end(), bad.flags.begin(), bad.flags.end());
  SCOPED_TRACE(fmt::format("{}", fmt::join(first, " ")));
  try {
    validated(first, bad.world_size);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    bool found = false;
    for (const Problem& p : error.problems()) {
      found = found || (p.where == bad.where && p.what.find(bad.what) != std::string::npos &&
                        p.fix.find(bad.fix) != std::string::npos);
    }
    EXPECT_TRUE(found) << error.what();
  }
}

}  // namespace teratron
