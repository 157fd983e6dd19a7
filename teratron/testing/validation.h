// What the tests of finish() share: a small valid configuration, and the check that a combination is refused.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/settings/arguments.h"

namespace teratron {

using Texts = std::vector<std::string>;

inline const Texts small = {"--num-layers",
                            "4",
                            "--hidden-size",
                            "64",
                            "--num-attention-heads",
                            "8",
                            "--seq-length",
                            "32",
                            "--micro-batch-size",
                            "2",
                            "--train-iters",
                            "10",
                            "--lr",
                            "1e-3",
                            "--mock-data",
                            "--tokenizer-type",
                            "NullTokenizer",
                            "--vocab-size",
                            "100"};

inline ParsedArguments finished(const Texts& more, int64_t world_size = 1) {
  Texts args = small;
  args.insert(args.end(), more.begin(), more.end());
  ParsedArguments parsed = parse_arguments("pretrain gpt", args, {.refuse_planned = false});
  finish(parsed, world_size);
  return parsed;
}

/// Flags beside `small`, and the problem that must be among those found.
struct BadCombination {
  Texts args;
  int64_t world_size;
  const char* where;
  const char* what;
  const char* fix;
};

inline void expect_refused(const BadCombination& bad) {
  try {
    finished(bad.args, bad.world_size);
    FAIL() << "accepted";
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
