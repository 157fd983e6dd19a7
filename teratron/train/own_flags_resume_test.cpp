// A run of a family with flags of its program, resumed.
#include <algorithm>

#include "teratron/models/family.h"
#include "teratron/testing/train_run.h"
#include "teratron/train/loop/train_loop.h"

namespace teratron {
namespace {

using OwnFlags = SmallRun;

// They are settings of the model like those of the table.
TEST_F(OwnFlags, AreComparedAndTakenFromTheCheckpoint) {
  int64_t kinds = 2;
  const auto registry = [&kinds] {
    kinds = 2;
    Family own = find_family("gpt");
    own.name = "own";
    own.settings.names = {"own", "gpt", "training"};
    own.fields = {custom_field("kinds", &kinds, "Number of kinds", {.min = 1})};
    return Registry{.families = {own}};
  };
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10", "--kinds", "5"}), 1, registry()), ExitCode::ok);
  try {
    train(flags("run"), 1, registry());
    FAIL() << "2 kinds instead of 5";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_EQ(error.problems().at(0).what, "kinds: 5 in the checkpoint, 2 in this run");
  }
  const Registry again = registry();
  const ParsedArguments parsed =
      pretrain_arguments(flags("run", {"--use-checkpoint-args"}), 1, default_model(again));
  EXPECT_EQ(kinds, 5);
  EXPECT_TRUE(std::ranges::any_of(parsed.notices, [](const std::string& line) {
    return line.starts_with("taken from ") && line.ends_with(": kinds=5");
  }));
  EXPECT_EQ(train(flags("run", {"--use-checkpoint-args"}), 2, registry()), ExitCode::ok);
  EXPECT_THROW(train(flags("run", {"--use-checkpoint-args", "--kinds", "4"}), 1, registry()), UserError);
}

}  // namespace
}  // namespace teratron
